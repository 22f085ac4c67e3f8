"""A calibration in an open store and sandbox: measures shapes within the time, adapts, judges, and adopts what is no worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cudal2_agent.agent.learning.calibration.adaptation import (
    Adaptation,
    Adopted,
    CalibrationResult,
    Figures,
    adaptation_shape,
    no_worse,
)
from cudal2_agent.agent.learning.calibration.calibration_runs import (
    CalibrationRun,
    ShapeMeasurer,
    measured_runs,
    run_minutes,
    tasks_done,
)
from cudal2_agent.agent.learning.calibration.spread_schedules import held_back
from cudal2_agent.agent.wiring.chip_rates import FittedRates, file_name, keep_rates, rates_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask, TimingMode
from cudal2_agent.policies.schedule.learned.boosted_trees import ScheduleTrees
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.network import Network, Tensors
from cudal2_agent.policies.schedule.learned.policy_file import IN_HOME, SUFFIX, PolicyCard, kind_of, write_weights
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Prior, PriorOf, RatedPrior
from cudal2_agent.policies.schedule.rate_fitting import RATES
from cudal2_agent.policies.training.training_plan import ADAPTING, ANEW, stages_of
from cudal2_agent.store.store import Store

MIN_TRAINED, MIN_TESTED = 6, 2  # shapes; fewer adapt and judge nothing

TIMING_MODEL = Adopted(
    part="timing model",
    path=None,
    reason="it predicts times on the reference chip of an architecture, and these runs cannot tell its rates apart",
)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """The policy that is trained on; without weights, one is trained anew. `trees`: its second opinions, which are kept."""

    name: str | None = None
    tensors: Tensors | None = None
    trees: ScheduleTrees | None = None


@dataclass(frozen=True)
class Calibration:
    """`prior_of`: what searches use now. `product`: version of this project."""

    tasks: Sequence[GemmTask]
    chip: Chip
    environment: Environment
    home: Path
    store: Store
    base: Base
    prior_of: PriorOf
    seed: int
    product: str
    tell: Tell

    def measure(self, measurer: ShapeMeasurer, minutes: float) -> None:
        """Measures the tasks that have no run yet until `minutes` are spent, those of earlier calls included.

        Raises: KeyboardInterrupt, after which the shapes so far are kept; MachineError, WorkerError, StoreError.
        """
        done = tasks_done(self.store, self.chip.name)
        spent = sum(done.get(task.id, 0.0) for task in self.tasks)
        last = 0.0
        for number, task in enumerate(self.tasks, 1):
            if task.id in done:
                continue
            if spent + last > minutes:
                return
            run = measurer.measure(task)
            if run is None:
                self.tell(f"{task.shape}: its operands do not fit into the memory of {self.chip.name}")
                continue
            last = run_minutes(run)
            spent += last
            self.tell(f"{task.shape}: shape {number} of {len(self.tasks)}, {spent:.1f} of {minutes:g} minutes")

    def adapt(self) -> CalibrationResult:
        """Fits, trains, judges and adopts. Raises: TrainingFailed; UsageError where a file cannot be written."""
        runs = measured_runs(self.store, self.chip.name, self.tasks)
        adaptation = self._read(runs)
        result = CalibrationResult(
            chip=self.chip.name,
            kind=kind_of(self.tasks[0]),
            minutes=max((run.minute for run in runs), default=0.0),
            shapes=len(adaptation.trained) + len(adaptation.tested),
            schedules=adaptation.schedules,
            held_back=len(adaptation.tested),
            base=self.base.name,
        )
        if len(adaptation.trained) < MIN_TRAINED or len(adaptation.tested) < MIN_TESTED:
            reason = (
                f"{len(adaptation.trained)} shapes to learn from and {len(adaptation.tested)} to judge by are too few; "
                "call it again with more --minutes"
            )
            return result.model_copy(update={"adopted": tuple(_left_out(part, reason) for part in ("rates", "prior"))})
        return self._adapted(adaptation, result)

    def _read(self, runs: Sequence[CalibrationRun]) -> Adaptation:
        """The shapes that were measured, those of every fourth task apart."""
        shapes = []
        for number, run in enumerate(runs, 1):
            shape = adaptation_shape(run, self.seed)
            shapes += [shape] if shape is not None else []
            if number % 10 == 0 or number == len(runs):
                self.tell(f"features of {number} of {len(runs)} shapes")
        judging = held_back(list(self.tasks))
        tested = [shape for shape in shapes if shape.group.task.id in judging]
        return Adaptation(self.chip, self.seed, [shape for shape in shapes if shape not in tested], tested)

    def _adapted(self, adaptation: Adaptation, result: CalibrationResult) -> CalibrationResult:
        used = self.prior_of(self.tasks[0], self.chip)
        before = adaptation.judged(self.prior_of)
        rates, fitted_chip, fitted = self._rates(adaptation)
        # Searches without a learned policy use fitted rates from now on: a policy must not be worse than these.
        incumbent = before if isinstance(used, LearnedPrior) or rates.path is None else fitted
        shipped = self._judged(adaptation, self.base.tensors) if self.base.tensors is not None else {}
        tensors = adaptation.policy(self.base.tensors)
        figures = self._judged(adaptation, tensors)
        update = {
            "before_name": used.name,
            "before": before,
            "analytic": adaptation.judged(_always(ANALYTIC)),
            "fitted": fitted,
            "shipped": shipped,
            "policy": figures,
            "rates": {name: (getattr(self.chip, name), getattr(fitted_chip, name)) for name in RATES} if fitted_chip else {},
            "adopted": (rates, TIMING_MODEL, self._policy(adaptation, tensors, figures, incumbent)),
        }
        return result.model_copy(update=update)

    def _rates(self, adaptation: Adaptation) -> tuple[Adopted, Chip | None, Figures]:
        """What became of the rates; the chip with those that were fitted, and the figures of the analytic prior with them."""
        task = self.tasks[0]
        if self.chip.measured:
            return _left_out("rates", f"those of {self.chip.name} were measured one by one"), None, {}
        if task.mode is not TimingMode.OFFLINE or task.accumulate is not AccumulatorType.F32:
            return _left_out("rates", "they are fitted to runs of offline f32 alone, for which they stand"), None, {}
        chip, kept = adaptation.fitted_chip(), rates_of(self.chip, self.home)
        figures = adaptation.judged(_always(RatedPrior(chip)))
        if not no_worse(figures, adaptation.judged(_always(RatedPrior(kept.of(self.chip)) if kept else ANALYTIC))):
            return _left_out("rates", "the analytic prior orders the held-back shapes worse with them"), chip, figures
        rates = FittedRates(
            chip=chip.name,
            tensor_tflops=chip.tensor_tflops,
            dram_tbps=chip.dram_tbps,
            launch_us=chip.launch_us,
            shapes=len(adaptation.trained),
            schedules=sum(len(shape.entries) for shape in adaptation.trained),
            environment=self.environment,
            product=self.product,
            created_at=datetime.now(UTC),
        )
        return Adopted(part="rates", path=keep_rates(self.home, rates), reason=""), chip, figures

    def _judged(self, adaptation: Adaptation, tensors: Tensors) -> Figures:
        return adaptation.judged(_always(LearnedPrior(self._card(adaptation, {}), Network(tensors))))

    def _policy(self, adaptation: Adaptation, tensors: Tensors, after: Figures, before: Figures) -> Adopted:
        if not no_worse(after, before):
            return _left_out("prior", "it orders the held-back shapes worse than what searches use without it")
        card = self._card(adaptation, after)
        path = self.home / IN_HOME / f"{card.name}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_weights(path, tensors, card, self.base.trees)
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another home with CUDAL2_HOME") from exc
        return Adopted(part="prior", path=path, reason="")

    def _card(self, adaptation: Adaptation, figures: Figures) -> PolicyCard:
        task = self.tasks[0]
        plan = ADAPTING if self.base.tensors is not None else ANEW
        return PolicyCard(
            name=f"{file_name(self.chip.name)}-{task.mode.value}-{task.accumulate.value}",
            fingerprint=FINGERPRINT,
            chips=(self.chip.name,),
            tasks={kind_of(task): len(adaptation.trained)},
            runs=len(adaptation.trained),
            schedules=adaptation.schedules,
            stages=stages_of(plan, trees=self.base.trees is not None),
            seed=self.seed,
            held_out=len(adaptation.tested),
            figures=figures,
            base=self.base.name,
            kinds=(kind_of(task),),
            created=datetime.now(UTC).date().isoformat(),
            product=self.product,
        )


def _always(prior: Prior) -> PriorOf:
    return lambda _task, _chip: prior


def _left_out(part: str, reason: str) -> Adopted:
    return Adopted(part=part, path=None, reason=reason)
