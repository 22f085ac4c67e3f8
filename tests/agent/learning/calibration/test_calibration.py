"""A calibration of a GPU that is slower in known ways: what it finds, what it adopts, and how it goes on after a kill."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.learning.calibration import calibration as calibration_module
from cudal2_agent.agent.learning.calibration import spread_schedules
from cudal2_agent.agent.learning.calibration.adaptation import CalibrationResult, no_worse
from cudal2_agent.agent.learning.calibration.calibration import Base, Calibration
from cudal2_agent.agent.learning.calibration.calibration_runs import (
    ShapeMeasurer,
    calibration_settings,
    measured_runs,
    tasks_done,
)
from cudal2_agent.agent.wiring.chip_rates import rates_of
from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.boosted_trees import VALUE
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.policy_file import read_weights
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.training import adapting, groups
from cudal2_agent.policies.training.training_plan import StagePlan
from cudal2_agent.store.store import Store, open_store
from tests.doubles.learned_policies import split_trees
from tests.doubles.scripted import ENVIRONMENT
from tests.doubles.slower_chip import EXPECTED, TRUE, SlowerSandbox

SIZES = ((64, 64, 128), (512, 64, 512), (64, 256, 256), (128, 64, 64), (256, 256, 64), (64, 64, 1024), (256, 64, 256))
TASKS = [GemmTask(m=m, n=n, k=k) for m, n, k in (*SIZES, (128, 128, 128), (512, 64, 64))]
SOME = 5
TREES = split_trees(0, lower=0.25, higher=0.5)


@pytest.fixture(scope="module", autouse=True)
def _one_family() -> Iterator[None]:
    """The family whose spaces take the least time to list."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (spread_schedules, groups):
            patch.setattr(module, "families", lambda arch: [one for one in families(arch) if one.name == "latency"])
        yield


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return calibration_settings(load_settings(home=tmp_path, seed=0)).model_copy(update={"budget": 8, "round_size": 8})


def opened(settings: Settings, store: Store, tasks: list[GemmTask], chip: Chip = EXPECTED) -> Calibration:
    prior_of = open_prior(settings)
    said: list[str] = []
    return Calibration(tasks, chip, ENVIRONMENT, settings.home, store, Base(trees=TREES), prior_of, 0, "0.1.0", said.append)


def measure(calibration: Calibration, settings: Settings, sandbox: SlowerSandbox, minutes: float = 100.0) -> None:
    measurer = ShapeMeasurer(settings, calibration.store, sandbox, lambda *_: ANALYTIC, lambda _: None)
    calibration.measure(measurer, minutes)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, CalibrationResult]:
    """All tasks measured and adapted to, with a short training."""
    with pytest.MonkeyPatch.context() as patch:
        stages = (StagePlan(stage="supervised", epochs=20, rate=2e-3),)
        patch.setattr(adapting, "ANEW", adapting.ANEW.model_copy(update={"stages": stages}))
        home = tmp_path_factory.mktemp("calibrated")
        settings = calibration_settings(load_settings(home=home, seed=0))
        with open_store(settings.store_url) as store:
            calibration = opened(settings, store, TASKS)
            measure(calibration, settings, SlowerSandbox())
            return settings, calibration.adapt()


def test_it_says_what_it_measured_and_judges_on_what_it_held_back(calibrated: tuple[Settings, CalibrationResult]) -> None:
    _, result = calibrated
    assert (result.chip, result.kind, result.shapes, result.held_back) == ("Slow 90", "offline f32", 9, 2)
    assert result.schedules > 9 * 12
    assert result.before_name == "analytic"
    assert result.before == result.analytic
    assert {"first within 5 %", "best of 8 within 2 %", "rank correlation"} <= result.policy.keys()
    assert result.shipped == {}, "it was trained anew"


def test_rates_that_order_no_worse_are_kept_and_used(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (StagePlan(stage="supervised", epochs=1, rate=1e-6),)
    monkeypatch.setattr(adapting, "ANEW", adapting.ANEW.model_copy(update={"stages": stages}))
    with open_store(settings.store_url) as store:
        calibration = opened(settings, store, TASKS)
        measure(calibration, settings, SlowerSandbox(kindness=0.0))
        result = calibration.adapt()
    assert result.adopted[0].path == settings.home / "chips" / "Slow-90.json"
    kept = rates_of(EXPECTED, settings.home)
    assert kept is not None
    assert (EXPECTED.launch_us, kept.launch_us) == result.rates["launch_us"]
    assert EXPECTED.launch_us < kept.launch_us < 1.2 * TRUE.launch_us
    assert kept.environment == ENVIRONMENT
    other = open_prior(settings)(TASKS[0].model_copy(update={"mode": TimingMode.SERVER}), EXPECTED)
    assert other.name == "analytic, fitted rates"


def test_auto_finds_the_adopted_policy_for_this_chip_and_kind_alone(calibrated: tuple[Settings, CalibrationResult]) -> None:
    settings, result = calibrated
    [policy] = [one for one in result.adopted if one.part == "prior"]
    assert (policy.path is not None) == no_worse(result.policy, result.fitted if result.adopted[0].path else result.before)
    assert policy.path is not None
    assert policy.path.name == "Slow-90-offline-f32.safetensors"
    card, _, kept = read_weights(policy.path)
    assert card.stages == ("supervised", "group-relative", "trees")
    assert kept is not None, "the second opinions are those of the policy it began with"
    assert kept.good.tensors[VALUE].tolist() == TREES.good.tensors[VALUE].tolist()
    prior_of = open_prior(settings)
    found = prior_of(TASKS[0], EXPECTED)
    assert isinstance(found, LearnedPrior)
    assert (found.card.base, found.card.held_out, found.card.chips) == (None, 2, ("Slow 90",))
    server = TASKS[0].model_copy(update={"mode": TimingMode.SERVER})
    assert not isinstance(prior_of(server, EXPECTED), LearnedPrior)
    assert prior_of(TASKS[0], EXPECTED.model_copy(update={"name": "Other 90"})) is ANALYTIC


def test_a_second_call_measures_nothing_again_and_goes_on(calibrated: tuple[Settings, CalibrationResult]) -> None:
    settings, _ = calibrated
    sandbox = SlowerSandbox()
    with open_store(settings.store_url) as store:
        measure(opened(settings, store, TASKS), settings, sandbox)
    assert sandbox.tasks == []


def test_the_time_of_earlier_calls_counts(calibrated: tuple[Settings, CalibrationResult]) -> None:
    settings, _ = calibrated
    more = [*TASKS, GemmTask(m=64, n=64, k=64)]
    sandbox = SlowerSandbox()
    with open_store(settings.store_url) as store:
        spent = sum(tasks_done(store, "Slow 90").values())
        measure(opened(settings, store, more), settings, sandbox, minutes=0.9 * spent)
        assert sandbox.tasks == []
        measure(opened(settings, store, more), settings, sandbox, minutes=2 * spent)
    assert sandbox.tasks == more[-1:]


class Killed(BaseException):
    """Ends a run as a kill does: its record says that it is running."""


class KilledSandbox(SlowerSandbox):
    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if len(self.tasks) == 2:
            raise Killed
        return super().evaluate(built, task, effort)


@pytest.mark.parametrize(
    ("sandbox", "ended"), [(lambda: SlowerSandbox(lasts=2), KeyboardInterrupt), (KilledSandbox, Killed)], ids=["ctrl-c", "kill"]
)
def test_measured_shapes_survive(settings: Settings, sandbox: Callable[[], SlowerSandbox], ended: type[BaseException]) -> None:
    with open_store(settings.store_url) as store:
        calibration = opened(settings, store, TASKS[:4])
        with pytest.raises(ended):
            measure(calibration, settings, sandbox())
        before = measured_runs(store, "Slow 90", TASKS[:4])
        assert 1 <= len(before) <= 2
        rest = SlowerSandbox()
        measure(calibration, settings, rest)
        assert rest.tasks == TASKS[len(before) : 4]
        after = measured_runs(store, "Slow 90", TASKS[:4])
        assert [run.timed.run_id for run in after[: len(before)]] == [run.timed.run_id for run in before]
        assert [run.minute for run in after] == sorted(run.minute for run in after)


@pytest.mark.parametrize("least", [(1, 9), (9, 1)], ids=["too few judge", "too few to learn from"])
def test_too_few_shapes_adopt_nothing_and_say_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, least: tuple[int, int]
) -> None:
    for name, count in zip(("MIN_TRAINED", "MIN_TESTED"), least, strict=True):
        monkeypatch.setattr(calibration_module, name, count)
    with open_store(settings.store_url) as store:
        calibration = opened(settings, store, TASKS[:SOME])
        measure(calibration, settings, SlowerSandbox())
        result = calibration.adapt()
    assert result.shapes == SOME
    assert [one.path for one in result.adopted] == [None, None]
    assert "more --minutes" in result.adopted[0].reason
    assert not list(settings.home.glob("policies/*"))
    assert not list(settings.home.glob("chips/*"))


def test_a_chip_whose_rates_were_measured_keeps_them(calibrated: tuple[Settings, CalibrationResult], tmp_path: Path) -> None:
    settings, _ = calibrated
    elsewhere = settings.model_copy(update={"home": tmp_path})
    with open_store(settings.store_url) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "ANEW", adapting.ANEW.model_copy(update={"stages": adapting.ANEW.stages[1:]}))
        known = EXPECTED.model_copy(update={"measured": True})
        result = opened(elsewhere, store, TASKS, known).adapt()
    assert result.adopted[0].path is None
    assert "measured one by one" in result.adopted[0].reason
    assert result.fitted == {}
    assert not list(tmp_path.glob("chips/*"))


def test_what_is_worse_is_told_apart() -> None:
    good = {"first over best": 1.02, "best of 8 over best": 1.001, "rank correlation": 0.8}
    assert no_worse(good, good)
    assert no_worse({**good, "rank correlation": 0.9}, good)
    assert not no_worse({**good, "first over best": 1.05}, good)
    assert not no_worse({**good, "best of 8 over best": 1.01}, good)
    assert not no_worse({**good, "rank correlation": 0.7}, good)
    assert not no_worse({}, good)
