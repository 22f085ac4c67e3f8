"""Which sources of a model are not timed: those whose prediction is far behind the best measured time of the run."""

from collections.abc import Sequence

from cudal2_agent.agent.observe.ranking import Ranked
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.history import History
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Prediction, Unmeasured
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import RunRecord

# A prediction so many times the best measured time leaves a source out (benchmarks/emulator/timing_model/screening.py).
FACTOR = 2.0

LeftOut = tuple[Built, Unmeasured, float]  # with the seconds of its prediction


class SourceScreen:
    """Leaves out sources of one run. Schedules are always timed, and so is the best-predicted source of a batch."""

    def __init__(self, run: RunRecord, sandbox: Sandbox, history: History, clock: RunClock) -> None:
        self._run, self._sandbox, self._history, self._clock = run, sandbox, history, clock

    def left_out(self, batch: Sequence[Built]) -> list[LeftOut]:
        """The built candidates of `batch` that need no measurement, as they are recorded."""
        sources = [
            built for built in batch if not built.candidate.origin.trusted_writer and not built.candidate.origin.schedule
        ]
        best_us = best_time_us(self._history.ranked)
        if best_us is None or len(sources) < 2 or not self._applies:
            return []
        predicted: list[tuple[Built, Prediction, float]] = []
        for built in sources:
            begin_s = self._clock.spent_s()
            with self._clock.outside():
                prediction = self._sandbox.estimate(built, self._run.task)
            if known(prediction, self._run.chip.name):
                predicted.append((built, prediction, self._clock.spent_s() - begin_s))
        kept = min((prediction.predicted_us for _, prediction, _ in predicted), default=0.0)
        return [
            (built, unmeasured(built, prediction, best_us), seconds)
            for built, prediction, seconds in predicted
            if prediction.predicted_us > max(FACTOR * best_us, kept)
        ]

    @property
    def _applies(self) -> bool:
        settings = self._run.settings
        return settings.screen_sources and self._sandbox.can_measure and self._run.task.mode is TimingMode.OFFLINE


def best_time_us(ranked: Sequence[Ranked]) -> float | None:
    """The best plausible measured time; None where nothing was measured."""
    return min((one.time_us for one in ranked if one.plausible), default=None)


def known(prediction: Prediction, chip: str) -> bool:
    """Whether the timing model knows the kernel and was fitted on the chip that measures."""
    return not prediction.is_floor and prediction.model == f"timing-model on {chip}"


def unmeasured(built: Built, prediction: Prediction, best_us: float) -> Unmeasured:
    reason = f"predicted {prediction.predicted_us:.2f} us against {best_us:.2f} us measured; not timed"
    return Unmeasured(verified_by="nothing", reason=reason, prediction=prediction, inspection=built.inspection)
