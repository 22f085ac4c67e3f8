"""Stored sweeps: screened and raced ratios of a run, several runs of a task, failures, and schedules of other versions."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.proposals.forest_tuner import other_arms, trained_forest
from benchmarks.proposals.sweeps import stored_sweeps, sweeps_of_rows
from cudal2_agent.agent.bench.proposals.proposal_rows import read_rows
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.store.store import Store, open_store
from tests.doubles import OBSERVATION, measured, run_record, step

TASK = GemmTask(m=64, n=64, k=64, arch=Arch.SM_80)
CHIP = REFERENCE_CHIPS[Arch.SM_80]
CANDIDATES = SchedulePolicy(families(TASK.arch)).propose(Observation(task=TASK, chip=CHIP, round=1, seed=0), 12)
BROKEN = CompileFailed(message="no", log="")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 's.sqlite'}")


def add(store: Store, run_id: str, found: Sequence[tuple[Candidate, Evaluation]], task: GemmTask = TASK) -> None:
    store.start_run(run_record(run_id, task=task, chip=CHIP, status="finished"))
    store.record_observation(run_id, OBSERVATION)
    for index, (candidate, evaluation) in enumerate(found):
        store.record_step(step(index, run_id=run_id, candidate=candidate, evaluation=evaluation))


def ratios(store: Store) -> dict[str, float]:
    (sweep,) = stored_sweeps(store)
    ids = {one.origin.schedule and frozenset(one.origin.schedule.items()): one.id for one in CANDIDATES}
    return {ids[entry.key]: float(ratio) for entry, ratio in zip(sweep.entries, sweep.ratios, strict=True)}


def test_a_race_decides_and_scales_the_screen(store: Store) -> None:
    one, two, three = CANDIDATES[:3]
    screens = [(one, measured(5.0, effort="screen")), (two, measured(8.0, effort="screen")), (three, BROKEN)]
    add(store, "r", [*screens, (one, measured(6.25, effort="race"))])
    found = ratios(store)
    assert found[one.id] == pytest.approx(1.6)
    assert found[two.id] == pytest.approx(10 / 8 * 1.6 / 2)
    assert math.isnan(found[three.id])


def test_a_candidate_that_fails_in_the_race_has_failed(store: Store) -> None:
    one, two = CANDIDATES[:2]
    add(store, "r", [(one, measured(5.0, effort="screen")), (one, BROKEN), (two, measured(5.0, effort="screen"))])
    assert math.isnan(ratios(store)[one.id])


def test_runs_of_a_task_are_one_sweep(store: Store) -> None:
    one = CANDIDATES[0]
    for number, time_us in enumerate((4.0, 5.0, 8.0)):
        add(store, f"r{number}", [(one, measured(time_us, effort="screen"))])
    assert ratios(store)[one.id] == pytest.approx(2.0)


def test_what_no_family_writes_any_more_is_left_out(store: Store) -> None:
    gone = CANDIDATES[1].model_copy(update={"origin": Origin(policy="schedule", schedule={"family": "gone"})})
    free = CANDIDATES[2].model_copy(update={"origin": Origin(policy="chat")})
    add(store, "r", [(CANDIDATES[0], measured(5.0)), (gone, measured(4.0)), (free, measured(3.0))])
    assert list(ratios(store)) == [CANDIDATES[0].id]


def test_a_task_on_which_nothing_ran_is_no_sweep(store: Store) -> None:
    add(store, "r", [(CANDIDATES[0], BROKEN)])
    assert stored_sweeps(store) == []


def test_judged_shapes_teach_nothing(store: Store) -> None:
    add(store, "r", [(one, measured(5.0 + number)) for number, one in enumerate(CANDIDATES)])
    with pytest.raises(UsageError, match="needs sweeps of other shapes"):
        trained_forest(store, {TASK.shape})
    _, note = trained_forest(store, set())
    assert note == f"{len(CANDIDATES)} schedules of 1 tasks"
    assert set(other_arms(store, set())) == {"lfbo", "lfbo-trained"}
    assert other_arms(store, set())["lfbo-trained"]().open(TASK.arch, 0).name == "lfbo-trained"


def test_rows_of_proposals_are_sweeps_of_all_arms() -> None:
    rows, _ = read_rows([Path(__file__).parents[3] / "benchmarks/results/h200_proposals_2026-11-27_fourth.jsonl.gz"])
    found = sweeps_of_rows(rows[:3])
    assert [one.task for one in found] == [row.task for row in rows[:3]]
    for sweep, row in zip(found, rows, strict=False):
        assert len(sweep.entries) == len({one.candidate_id for one in row.candidates if one.schedule})
        assert sweep.best == pytest.approx(max(one.raced for one in row.candidates if one.raced))
