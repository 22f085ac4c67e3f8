"""Which schedules of earlier runs a search starts from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Timing
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout, TimingMode
from cudal2_agent.contract.records.trajectory import Precedent
from cudal2_agent.store.precedents import StoredPrecedents, best_steps_near
from cudal2_agent.store.store import Store, open_store
from tests.doubles import CHIP, OBSERVATION, candidate, measured, run_record, step


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as opened:
        yield opened


def scheduled(number: int) -> Candidate:
    return candidate(number).model_copy(
        update={"origin": Origin(policy="schedule", schedule={"family": "f", "stages": number})}
    )


def record(
    store: Store, run_id: str, task: GemmTask, times_us: dict[int, float], status: str = "finished", **race: float
) -> None:
    """A run whose candidates took these times when screened, beside 10 us of the baseline, and those of `race` in the race."""
    store.start_run(run_record(run_id, task=task, status=status))
    store.record_observation(run_id, OBSERVATION)
    steps = [(number, measured(time_us, effort="screen")) for number, time_us in times_us.items()]
    steps += [(int(number[1:]), measured(time_us, effort="race")) for number, time_us in race.items()]
    for index, (number, evaluation) in enumerate(steps):
        store.record_step(step(index, run_id=run_id, candidate=scheduled(number), evaluation=evaluation))


def numbers(found: list[Precedent]) -> list[int]:
    return [int(one.schedule["stages"]) for one in found]


def test_near_shapes_come_first_and_raced_schedules_before_screened_ones(store: Store) -> None:
    record(store, "far", GemmTask(m=1024, n=512, k=512), {7: 2.0})
    record(store, "near", GemmTask(m=512, n=512, k=512), {1: 4.0, 2: 5.0, 3: 6.0}, c2=5.5)
    found = StoredPrecedents(store).near(GemmTask(m=512, n=512, k=512), CHIP, 12)
    assert numbers(found) == [2, 1, 7, 3]
    assert found[0].speedup == pytest.approx(10 / 5.5)
    assert found[0].baseline_us == pytest.approx(10.0)
    assert found[0].task.shape == "512x512x512"
    assert numbers(StoredPrecedents(store).near(GemmTask(m=512, n=512, k=512), CHIP, 2)) == [2, 1]


@pytest.mark.parametrize(
    "task",
    [
        GemmTask(m=512, n=512, k=512, layout=Layout.TN),
        GemmTask(m=512, n=512, k=512, accumulate=AccumulatorType.F16),
        GemmTask(m=512, n=512, k=16384),
    ],
    ids=["layout", "accumulator", "size"],
)
def test_runs_on_other_tasks_do_not_count(store: Store, task: GemmTask) -> None:
    record(store, "run", GemmTask(m=512, n=512, k=512), {1: 4.0})
    assert StoredPrecedents(store).near(task, CHIP, 12) == []
    assert StoredPrecedents(store).near(GemmTask(m=512, n=512, k=512), CHIP.model_copy(update={"name": "other"}), 12) == []


def test_a_run_that_goes_on_does_not_count_until_it_has_finished(store: Store) -> None:
    task = GemmTask(m=512, n=512, k=512)
    record(store, "run", task, {1: 4.0}, status="running")
    precedents = StoredPrecedents(store)
    assert precedents.near(task, CHIP, 12) == []
    store.update_run(run_record("run", task=task, status="finished"))
    assert numbers(precedents.near(task, CHIP, 12)) == [1]


def test_equal_schedules_of_several_runs_are_one(store: Store) -> None:
    for name in ("one", "other"):
        record(store, name, GemmTask(m=512, n=512, k=512), {1: 4.0})
    assert numbers(StoredPrecedents(store).near(GemmTask(m=512, n=512, k=512), CHIP, 12)) == [1]


def test_a_server_starts_from_the_offline_best_of_its_shape_by_plain_time(store: Store) -> None:
    """Before schedules of other shapes, although a run of a near shape in server mode has higher speedups."""
    offline = GemmTask(m=512, n=512, k=512)
    server = offline.model_copy(update={"mode": TimingMode.SERVER})
    store.start_run(run_record("own", task=offline, status="finished"))
    store.record_observation("own", OBSERVATION)
    for index, (number, time_us, plain_us) in enumerate([(1, 3.0, 5.0), (2, 3.1, 4.0), (3, 3.2, 4.5), (4, 3.9, None)]):
        timed = measured(time_us, effort="race")
        plain = plain_us and Timing(name="plain", samples_us=(plain_us,) * len(timed.timing.samples_us))
        evaluation = timed.model_copy(update={"plain": plain})
        store.record_step(step(index, run_id="own", candidate=scheduled(number), evaluation=evaluation))
    record(store, "near", server.model_copy(update={"m": 600}), {7: 2.0}, c7=2.0)
    assert numbers(StoredPrecedents(store).near(server, CHIP, 12)) == [4, 2, 3, 1, 7]
    assert numbers(StoredPrecedents(store).near(offline, CHIP, 12)) == [1, 7, 2, 3, 4]


def test_bf16_starts_from_the_best_in_f16_of_its_shape_and_the_other_way_round(store: Store) -> None:
    """Before what led other shapes in its own element type, and in server mode too."""
    half = GemmTask(m=512, n=512, k=512)
    brain = half.model_copy(update={"element": ElementType.BF16})
    record(store, "half", half, {1: 4.0, 2: 5.0})
    record(store, "near", brain.model_copy(update={"m": 520}), {7: 2.0, 8: 3.0})
    precedents = StoredPrecedents(store)
    assert numbers(precedents.near(brain, CHIP, 12)) == [1, 2, 7, 8]
    server = brain.model_copy(update={"mode": TimingMode.SERVER})
    assert numbers(precedents.near(server, CHIP, 12)) == [1, 2, 7, 8]
    assert numbers(precedents.near(half, CHIP, 12)) == [1, 7, 2, 8]
    record(store, "brain", brain, {3: 4.0})
    assert numbers(precedents.near(half, CHIP, 1)) == [1]


@pytest.mark.parametrize(
    ("own", "task", "carried"),
    [
        ({"mode": TimingMode.OFFLINE}, {"mode": TimingMode.SERVER}, True),
        ({"mode": TimingMode.SERVER}, {"mode": TimingMode.OFFLINE}, False),
        ({"mode": TimingMode.SERVER}, {"mode": TimingMode.SERVER, "element": ElementType.BF16}, True),
        ({"element": ElementType.BF16}, {}, True),
        ({}, {}, False),
        ({"m": 520}, {"element": ElementType.BF16}, False),
    ],
    ids=["a-server", "not-from-a-server", "a-server-in-bf16", "f16", "itself", "another-shape"],
)
def test_what_carries_over(own: dict[str, object], task: dict[str, object], *, carried: bool) -> None:
    half = GemmTask(m=512, n=512, k=512)
    led = Precedent(run_id="r", task=half.model_copy(update=own), schedule={"family": "f"}, speedup=1.0)
    assert led.carries_over(half.model_copy(update=task)) is carried


def test_the_best_kernels_are_the_winners_of_finished_runs_and_the_nearest_come_first(store: Store) -> None:
    task = GemmTask(m=512, n=512, k=512)
    record(store, "far", GemmTask(m=1024, n=512, k=512), {7: 2.0})
    record(store, "near", task, {1: 4.0, 2: 5.0}, c2=5.5)  # the fastest screen did not win
    record(store, "other", GemmTask(m=512, n=512, k=512, layout=Layout.TN), {3: 1.0})
    record(store, "goes-on", task, {4: 1.0}, status="running")
    for run_id, number in (("far", 7), ("near", 2), ("other", 3), ("goes-on", 4)):
        run = store.run(run_id)
        store.update_run(run.model_copy(update={"best_candidate_id": scheduled(number).id}))
    for step_ in store.steps("near"):
        store.record_step(step_.model_copy(update={"reward": 1.0}))
    assert [known.step.run_id for known in best_steps_near(store, task, CHIP, 9)] == ["near"]  # the others have no reward
    for run_id in ("far", "other", "goes-on"):
        for step_ in store.steps(run_id):
            store.record_step(step_.model_copy(update={"reward": 1.0}))
    found = best_steps_near(store, task, CHIP, 9)
    assert [(known.task.shape, known.time_us) for known in found] == [("512x512x512", 5.5), ("1024x512x512", 2.0)]
    assert found[0].speedup == pytest.approx(10 / 5.5)
    assert best_steps_near(store, task, CHIP, 1) == found[:1]
