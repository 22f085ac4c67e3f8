"""A calibration in an open store and sandbox: measures shapes within the time, adapts, judges, and adopts what is no worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.calibration.adaptation import Adaptation, no_worse
from agent.calibration.calibration_result import AdaptationPoint, Adopted, CalibrationResult, Figures
from agent.calibration.calibration_runs import ShapeMeasurer, measured_runs, run_minutes, tasks_done
from agent.calibration.calibration_tasks import held_back
from agent.wiring.chip_rates import FittedRates, file_name, keep_rates, with_own_rates
from contract.chip import Chip
from contract.errors import UsageError
from contract.evaluation import Environment
from contract.events import Emit
from contract.task import AccumulatorType, GemmTask, TimingMode
from policies.schedule.learned.features import FINGERPRINT
from policies.schedule.learned.known_policies import IN_HOME
from policies.schedule.learned.learned_prior import LearnedPrior
from policies.schedule.learned.network import Network, Tensors
from policies.schedule.learned.policy_file import SUFFIX, PolicyCard, kind_of, write_weights
from policies.schedule.optimiser.pool_prior import ANALYTIC, Prior, PriorOf
from policies.schedule.rate_fitting import RATES
from policies.training.adapting import ADAPTING, ANEW
from policies.trajectories.store import Store

MIN_TRAINED, MIN_TESTED = 6, 2  # shapes; fewer adapt and judge nothing
CURVE_MINUTES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """The policy that is trained on; without weights, one is trained anew."""

    name: str | None = None
    tensors: Tensors | None = None


@dataclass(frozen=True)
class Calibration:
    """`chip`: with the rates that it came with. `prior_of`: what searches use now. `product`: version of this project."""

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
    emit: Emit

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
        adaptation = Adaptation.of(runs, held_back(list(self.tasks)), self.chip, self.seed, self._on_features(len(runs)))
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
            return result.model_copy(update={"adopted": tuple(_left_out(part, reason) for part in ("rates", "policy"))})
        return self._adapted(adaptation, result)

    def _adapted(self, adaptation: Adaptation, result: CalibrationResult) -> CalibrationResult:
        now = with_own_rates(self.chip, self.home, self.emit)
        before = adaptation.judged(self.prior_of, now)
        analytic = adaptation.judged(_always(ANALYTIC), now)
        chip, rates, fitted = self._rates(adaptation, now, analytic)
        # A search without a learned policy gets the better of the two: a policy must not be worse than that.
        incumbent = fitted if self._unknown and rates.path is not None else before
        curve, tensors, figures = self._curve(adaptation, chip, result.minutes)
        policy = self._policy(adaptation, tensors, figures, incumbent)
        used = self.prior_of(self.tasks[0], now).name
        update = {
            "before_name": used,
            "before": before,
            "analytic": analytic,
            "fitted": fitted,
            "policy": figures,
            "rates": {name: (getattr(self.chip, name), getattr(chip, name)) for name in RATES},
            "curve": tuple(curve),
            "adopted": (rates, self._timing_model(rates), policy),
        }
        return result.model_copy(update=update)

    @property
    def _unknown(self) -> bool:
        """Whether searches use the analytic prior until now."""
        return self.prior_of(self.tasks[0], self.chip) is ANALYTIC

    def _rates(self, adaptation: Adaptation, now: Chip, before: Figures) -> tuple[Chip, Adopted, Figures]:
        """The chip that is used from now on, and the analytic prior's figures with rates that were fitted, if they were."""
        task = self.tasks[0]
        if self.chip.measured:
            return now, _left_out("rates", f"those of {self.chip.name} were measured one by one"), {}
        if task.mode is not TimingMode.OFFLINE or task.accumulate is not AccumulatorType.F32:
            return now, _left_out("rates", "they are fitted to runs of offline f32 alone, for which they stand"), {}
        chip = adaptation.fitted_chip()
        figures = adaptation.judged(_always(ANALYTIC), chip)
        if not no_worse(figures, before):
            return now, _left_out("rates", "the analytic prior orders the held-back shapes worse with them"), figures
        rates = FittedRates(
            chip=chip.name,
            **{name: getattr(chip, name) for name in RATES},
            shapes=len(adaptation.trained),
            schedules=adaptation.schedules,
            environment=self.environment,
            product=self.product,
            created_at=datetime.now(UTC),
        )
        return chip, Adopted(part="rates", path=keep_rates(self.home, rates), reason=""), figures

    def _timing_model(self, rates: Adopted) -> Adopted:
        if self.chip.measured:
            return _left_out("timing model", "what it knows of this chip stays")
        follows = "its tensor, memory and launch rates follow from those of the chip" if rates.path else "its rates stay"
        return _left_out("timing model", f"{follows}; these runs cannot tell its other rates apart")

    def _curve(self, adaptation: Adaptation, chip: Chip, spent: float) -> tuple[list[AdaptationPoint], Tensors, Figures]:
        """What each beginning of the measurements is worth, from the policy that ships to that of all of them."""
        curve: list[AdaptationPoint] = []
        tensors: Tensors = {}
        figures: Figures = {}
        if self.base.tensors is not None:
            zero = adaptation.judged(_always(LearnedPrior(self._card(adaptation, {}), Network(self.base.tensors))), chip)
            curve.append(AdaptationPoint(minutes=0.0, shapes=0, schedules=0, figures=zero))
        for minutes in (*(one for one in CURVE_MINUTES if one < spent), spent):
            runs = adaptation.begun_by(minutes)
            if len(runs) < MIN_TRAINED and minutes < spent:
                continue
            tensors = adaptation.policy(self.base.tensors, runs, chip)
            figures = adaptation.judged(_always(LearnedPrior(self._card(adaptation, {}), Network(tensors))), chip)
            schedules = sum(len(run.timed.timed) for run in runs)
            curve.append(AdaptationPoint(minutes=minutes, shapes=len(runs), schedules=schedules, figures=figures))
            self.tell(f"adapted to the first {minutes:.1f} minutes, {len(runs)} shapes")
        return curve, tensors, figures

    def _policy(self, adaptation: Adaptation, tensors: Tensors, after: Figures, before: Figures) -> Adopted:
        if not no_worse(after, before):
            return _left_out("policy", "it orders the held-back shapes worse than what searches use without it")
        card = self._card(adaptation, after)
        path = self.home / IN_HOME / f"{card.name}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_weights(path, tensors, card)
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another home with CUDAL2_HOME") from exc
        return Adopted(part="policy", path=path, reason="")

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
            stages=tuple(stage.stage for stage in plan.stages),
            seed=self.seed,
            held_out=len(adaptation.tested),
            figures=figures,
            base=self.base.name,
            kinds=(kind_of(task),),
            created=datetime.now(UTC).date().isoformat(),
            product=self.product,
        )

    def _on_features(self, count: int) -> Callable[[int], None]:
        def on_run(number: int) -> None:
            if number % 10 == 0 or number == count:
                self.tell(f"features of {number} of {count} shapes")

        return on_run


def _always(prior: Prior) -> PriorOf:
    return lambda _task, _chip: prior


def _left_out(part: str, reason: str) -> Adopted:
    return Adopted(part=part, path=None, reason=reason)
