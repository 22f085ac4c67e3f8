"""Training by trying, with a score that knows the times."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.contract.errors import TrainingFailed, WorkerError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.score import Scored
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT, features_of
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.network import Network
from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, read_entry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.training import online_training
from cudal2_agent.policies.training.checkpoints import Checkpoints
from cudal2_agent.policies.training.online_training import OnlinePlan, OnlineTraining, StepReport
from cudal2_agent.policies.training.schedule_network import ScheduleNetwork, feature_scale
from cudal2_agent.policies.training.training_plan import NetworkSize
from tests.doubles import measured, unmeasured
from tests.doubles.timed_runs import H200, drawn_entries, tasks

TASKS = tasks()[:3]


def own_us(entries: Sequence[PoolEntry], task: GemmTask) -> list[float]:
    """Wide tiles are faster than the analytic prior thinks: its favourites are near the best, and not the best."""
    errors = [-0.08 * np.log2(entry.work.tile[0] * entry.work.tile[1]) for entry in entries]
    return [float(us) for us in ANALYTIC.predict_us(entries, task, H200) * np.exp(errors)]


CARD = PolicyCard(
    name="untrained",
    fingerprint=FINGERPRINT,
    chips=("H200",),
    tasks={},
    runs=0,
    schedules=0,
    stages=(),
    seed=0,
    held_out=0,
    created="2026-11-23",
    product="0.1.0",
)
PLAN = OnlinePlan(steps=12, tasks=3, group=8, updates=3, rivals=32, rate=3e-3)


class KnownTimes:
    """Scores by the known times. `failing`: numbers of calls at which the machine fails."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.calls, self._failing = 0, set(failing)
        self.proposed: list[str] = []

    @property
    def chip(self) -> Chip:
        return H200

    def score(self, task: GemmTask, candidates: Sequence[AnyCandidate]) -> list[Scored]:
        self.calls += 1
        if self.calls in self._failing:
            raise WorkerError("the worker is lost")
        known = {family.name: family for family in families(task.arch)}
        entries = [read_entry(known, one.origin.schedule or {}, task, H200) for one in candidates]
        times = own_us([entry for entry in entries if entry is not None], task)
        self.proposed += [one.id for one in candidates]
        return [
            Scored(candidate_id=one.id, evaluation=measured(us), value=-np.log(us), basis="measured")
            for one, us in zip(candidates, times, strict=True)
        ]


@pytest.fixture(scope="module")
def start() -> dict[str, np.ndarray]:
    features = np.concatenate([features_of(drawn_entries(task), task, H200)[0] for task in TASKS]).astype(np.float32)
    size = NetworkSize(members=1, width=32, depth=2, dimensions=2, dropout=0.0)
    tensors = ScheduleNetwork(*feature_scale(features), size, 0).tensors()
    return {name: value * (0 if name.startswith("0.error") else 1) for name, value in tensors.items()}


def first_over_best(network: ScheduleNetwork, task: GemmTask) -> float:
    prior = LearnedPrior(CARD, Network(network.tensors()))
    pool = SchedulePool(families(task.arch), task, H200, 0, prior)
    times = own_us(pool.entries, task)
    return times[int(np.argmin(pool.predicted_us))] / min(times)


@pytest.mark.slow
def test_it_finds_by_trying_what_the_analytic_prior_does_not_know(start: dict[str, np.ndarray], tmp_path: Path) -> None:
    before = [first_over_best(ScheduleNetwork.of(start).eval(), task) for task in TASKS]
    reports: list[StepReport] = []
    trained = OnlineTraining(PLAN, TASKS, CARD, start, Checkpoints(tmp_path, "a")).run(KnownTimes(), reports.append)
    after = [first_over_best(trained, task) for task in TASKS]
    assert np.mean(after) < np.mean(before) - 0.03, (before, after)
    values = [report.value for report in reports if report.value is not None]
    assert np.mean(values[-3:]) > np.mean(values[:3])
    assert [report.step for report in reports] == list(range(1, 13))


@pytest.mark.slow
def test_a_lost_worker_ends_it_and_it_goes_on_from_the_last_step(start: dict[str, np.ndarray], tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"steps": 4})
    whole = OnlineTraining(plan, TASKS, CARD, start, Checkpoints(tmp_path / "whole", "a")).run(KnownTimes())
    with pytest.raises(WorkerError):
        OnlineTraining(plan, TASKS, CARD, start, Checkpoints(tmp_path / "parts", "a")).run(KnownTimes(failing=[8]))
    score = KnownTimes()
    again = OnlineTraining(plan, TASKS, CARD, start, Checkpoints(tmp_path / "parts", "a")).run(score)
    assert score.calls == 2 * plan.tasks, "steps 3 and 4"
    assert [v.tobytes() for v in again.tensors().values()] == [v.tobytes() for v in whole.tensors().values()]


def test_what_is_not_known_teaches_nothing(start: dict[str, np.ndarray], tmp_path: Path) -> None:
    class Silent(KnownTimes):
        def score(self, task: GemmTask, candidates: Sequence[AnyCandidate]) -> list[Scored]:  # noqa: ARG002
            return [Scored(candidate_id=one.id, evaluation=unmeasured(3.0), value=None, basis=None) for one in candidates]

    reports: list[StepReport] = []
    plan = PLAN.model_copy(update={"steps": 2})
    trained = OnlineTraining(plan, TASKS, CARD, start, Checkpoints(tmp_path, "a")).run(Silent(), reports.append)
    assert [report.value for report in reports] == [None, None]
    assert trained.tensors()["0.layers.0.weight"] == pytest.approx(start["0.layers.0.weight"])


def test_a_loss_that_is_no_number_ends_it(
    start: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = online_training.group_relative
    monkeypatch.setattr(online_training, "group_relative", lambda *given: real(*given) * float("nan"))
    with pytest.raises(TrainingFailed, match="the loss is not a number in step 1"):
        OnlineTraining(PLAN, TASKS, CARD, start, Checkpoints(tmp_path, "a")).run(KnownTimes())


def test_a_group_is_drawn_without_replacement(start: dict[str, np.ndarray], tmp_path: Path) -> None:
    score = KnownTimes()
    plan = PLAN.model_copy(update={"steps": 1, "tasks": 1, "group": 16})
    OnlineTraining(plan, TASKS, CARD, start, Checkpoints(tmp_path, "a")).run(score)
    assert len(set(score.proposed)) == 16
