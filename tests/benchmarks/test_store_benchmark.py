"""The store's benchmark: invented steps are as hard to store as measured ones, and differ wherever measured ones differ."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.store.filling import write
from benchmarks.store.invented_runs import CANDIDATES, ROUND, STEPS_PER_RUN, Inventor, RunSize, shapes
from benchmarks.store.real_runs import RealRun, RunEvent, load_runs, pack, replayed
from benchmarks.store.store_bench import command, file_bytes, reading, resemblance
from benchmarks.store.store_table import MAX_APART, StoreResult, WritingFigures, misses, render
from cudal2_agent.agent.observe.ranking import attempt_of
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.store.store import open_store


@pytest.fixture(scope="module")
def runs() -> list[RealRun]:
    return load_runs()


@pytest.fixture(scope="module")
def inventor(runs: list[RealRun]) -> Inventor:
    return Inventor(runs)


def steps_of(events: list[RunEvent]) -> list[Step]:
    return [one for one in events if isinstance(one, Step)]


def test_measured_runs_keep_their_hashes(runs: list[RealRun]) -> None:
    for real in runs:
        seen = {one.id for one in replayed(real) if isinstance(one, Observation)}
        assert {step.observation_id for step in real.steps} == seen
        for step in real.steps:
            if isinstance(step.evaluation, Measured):
                assert step.candidate.id == step.evaluation.timing.name, "the source is not the one that was measured"


def test_the_file_is_made_of_the_runs_of_a_store(runs: list[RealRun], tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        write(store, list(replayed(runs[0])))
        packed = tmp_path / "runs.json.xz"
        packed.write_bytes(pack([store.trajectory(runs[0].run.run_id)]))
    assert load_runs(packed) == [runs[0]]


def test_invented_steps_cost_what_measured_ones_cost(runs: list[RealRun], tmp_path: Path) -> None:
    assert resemblance(runs, tmp_path).apart < MAX_APART


def test_an_invented_run_is_as_an_agent_records_it(inventor: Inventor) -> None:
    task = inventor.tasks[0].model_copy(update={"m": 512, "n": 256, "k": 128})
    events = list(inventor.run(task, Random(1)))
    assert isinstance(events[0], RunRecord)
    steps = steps_of(events)
    assert [step.index for step in steps] == list(range(STEPS_PER_RUN))
    assert len({step.candidate.id for step in steps}) == CANDIDATES
    seen = {one.id: one for one in events if isinstance(one, Observation)}
    for step in steps[:CANDIDATES]:
        before = steps[: step.index // ROUND * ROUND]
        assert seen[step.observation_id].attempts == tuple(attempt_of(one) for one in before)
    assert list(inventor.run(task, Random(1))) == events
    for event in events:
        assert type(event).model_validate_json(event.model_dump_json()) == event


def test_whatever_differs_between_measured_steps_differs(inventor: Inventor) -> None:
    task = inventor.tasks[0]
    measured = [
        step.evaluation
        for seed in range(2)
        for step in steps_of(list(inventor.run(task, Random(seed), RunSize(16, 1))))[:16]
        if isinstance(step.evaluation, Measured)
    ]
    samples = [sample for one in measured for sample in (*one.timing.samples_us, *one.baselines[0].samples_us)]
    assert len(set(samples)) > 0.95 * len(samples)
    assert len({one.ruler.secret for one in measured if one.ruler}) == len(measured)
    assert len({one.inspection.cubin_sha256 for one in measured}) == len(measured)
    assert len({json.dumps(one.inspection.opcodes) for one in measured}) == len(measured)


def test_shapes_are_those_of_the_grid() -> None:
    assert len(set(shapes(1000))) == 1000
    assert shapes(3) == shapes(1000)[:3]


def test_a_store_is_measured_and_its_misses_are_named(runs: list[RealRun], inventor: Inventor, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        write(store, list(inventor.run(inventor.tasks[0], Random(1), RunSize(8, 1))))
    url = f"sqlite:///{path}"
    listed = command(url, tmp_path, ["trajectories", "list"], repeats=1)
    assert (listed.arguments, listed.lines, listed.error) == ("trajectories list", 1, "")
    assert 0 < listed.peak_bytes < 2**31
    failed = command(url, tmp_path, ["trajectories", "show", "nobody"], repeats=1)
    assert "nobody" in failed.error
    result = StoreResult(
        command="python -m benchmarks.store",
        commit="abc",
        date="2026-11-22",
        machine="2 cores",
        python="3.11",
        packages={},
        steps=9,
        runs=1,
        processes=2,
        file_bytes=file_bytes(path),
        filled_steps=9,
        fill_seconds=2.0,
        fill_peak_bytes=10**8,
        resemblance=resemblance(runs, tmp_path),
        reading=reading(path),
        commands=(listed, failed),
        exported_steps=9,
        writing=WritingFigures(batched_steps_per_s=700, durable_steps_per_s=200, peak_bytes=10**8),
    )
    assert "| filled by 2 processes, invention included | 4 steps per second; at most 100 MB each |" in render(result)
    assert any("nobody" in miss for miss in misses(result))
    assert any("B per step" in miss for miss in misses(result)), "nine steps do not fill a store's pages"
