"""SIGKILL during writes: what was acknowledged is in the store, and nothing is there by half.

Two writers share a store. One of them is killed at a random time, and another takes its place. A writer acknowledges a record
by its index in a file, after the store's method returned.
"""

import functools
import random
import signal
import sqlite3
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Step
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.store.steps import export_steps, to_line
from cudal2_agent.store.store import Store, open_store
from tests.doubles import CHIP, OBSERVATION, candidate, measured, run_record, step
from tests.store.conftest import HOMES

KILLS = 50
MIGRATIONS = 8
MAX_DELAY_S = 0.03  # after the first acknowledgement
STEPS_PER_OBSERVATION, STEPS_PER_BATCH = 3, 5
WGMMA_TASK = GemmTask(m=256, n=256, k=256, arch=Arch.SM_90A)
Write = Callable[[str, str, Path], None]


@functools.cache
def _schedules() -> list[tuple[Family[Any], list[Schedule]]]:
    """Of each family that writes kernels for the task: twenty, since each writer lists them anew."""
    spaces = [(family, list(islice(family.space(WGMMA_TASK, CHIP), 0, 200, 10))) for family in families(Arch.SM_90A)]
    return [(family, space) for family, space in spaces if space]


def observation_of(index: int) -> Observation:
    return OBSERVATION.model_copy(update={"round": index // STEPS_PER_OBSERVATION + 1})


def step_of(name: str, index: int) -> Step:
    """A step of every run's index. Sources that a family writes take turns with others."""
    family, schedules = _schedules()[index % 2]
    written = family.write(schedules[index % len(schedules)], WGMMA_TASK) if index % 3 else candidate(index)
    seen = observation_of(index)
    return step(index, run_id=name, round=seen.round, observation_id=seen.id, candidate=written, evaluation=measured(5 + index))


def write_steps(url: str, name: str, said: Path) -> None:
    """Records steps until it is killed, and says each of them."""
    with open_store(url) as store, said.open("ab", buffering=0) as file:
        store.start_run(run_record(name))
        for index in count():
            store.record_observation(name, observation_of(index))
            store.record_step(step_of(name, index))
            file.write(b"%d\n" % index)


def write_batches(url: str, name: str, said: Path) -> None:
    """Records whole runs until it is killed, each in one batch, and says each of them."""
    with open_store(url) as store, said.open("ab", buffering=0) as file:
        for number in count():
            own = f"{name}-{number}"
            with store.batch() as batch:
                batch.start_run(run_record(own))
                for index in range(STEPS_PER_BATCH):
                    batch.record_observation(own, observation_of(index))
                    batch.record_step(step_of(own, index))
            file.write(b"%d\n" % number)


class KilledWriter(NamedTuple):
    """A process that writes until it is killed. `said`: the file of what it acknowledged."""

    name: str
    process: ForkServerProcess
    said: Path

    def acknowledged(self) -> int:
        return len(self.said.read_bytes().splitlines())

    def kill(self, delay_s: float) -> None:
        """At a time after its first acknowledgement."""
        deadline = time.monotonic() + 30
        while not self.acknowledged():
            assert self.process.is_alive(), "the writer ended by itself"
            assert time.monotonic() < deadline, "the writer writes nothing"
            time.sleep(0.001)
        time.sleep(delay_s)
        self.process.kill()
        self.process.join(30)


def kill_writers(nursery: ForkServerContext, write: Write, path: Path, kills: int) -> dict[str, int]:
    """How many records each of the killed writers acknowledged. Two write at a time."""
    rng = random.Random(0)
    writers: list[KilledWriter] = []
    for number in range(kills):
        said = path.parent / f"run-{number}.said"
        said.touch()
        process = nursery.Process(target=write, args=(f"sqlite:///{path}", f"run-{number}", said))
        process.start()
        writers.append(KilledWriter(f"run-{number}", process, said))
        if number:
            writers[number - 1].kill(rng.uniform(0, MAX_DELAY_S))
    writers[-1].kill(rng.uniform(0, MAX_DELAY_S))
    assert {writer.process.exitcode for writer in writers} == {-signal.SIGKILL}
    return {writer.name: writer.acknowledged() for writer in writers}


def assert_whole(path: Path) -> None:
    """The database is intact, and no row refers to one that is missing."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def assert_steps(store: Store, name: str, count: int) -> None:
    """The run has the first `count` steps, each as it was written, with its observation."""
    trajectory = store.trajectory(name)
    assert list(trajectory.steps) == [step_of(name, index) for index in range(count)]
    seen = [observation_of(index) for index in range(count)]
    assert trajectory.observations == {one.id: one for one in seen}


def test_no_acknowledged_step_is_lost_and_none_is_there_by_half(nursery: ForkServerContext, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    acknowledged = kill_writers(nursery, write_steps, path, KILLS)
    assert_whole(path)
    with open_store(f"sqlite:///{path}") as store:
        counts = store.step_counts()
        assert counts.keys() == acknowledged.keys()
        for name, said in acknowledged.items():
            assert said <= counts[name] <= said + 1, "a writer may be killed before it acknowledges its last step"
            assert_steps(store, name, counts[name])
        store.start_run(run_record("after"))  # and the store takes further steps
        store.record_observation("after", observation_of(0))
        store.record_step(step_of("after", 0))
        assert_steps(store, "after", 1)


def test_a_batch_is_stored_whole_or_not_at_all(nursery: ForkServerContext, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    acknowledged = kill_writers(nursery, write_batches, path, KILLS)
    assert_whole(path)
    with open_store(f"sqlite:///{path}") as store:
        found = Counter(run.run_id.rpartition("-")[0] for run in store.runs())
        for name, said in acknowledged.items():
            assert said <= found[name] <= said + 1, "a writer may be killed before it acknowledges its last batch"
            for number in range(found[name]):
                assert_steps(store, f"{name}-{number}", STEPS_PER_BATCH)


def migrate(path: Path, said: Path) -> None:
    """Opens a store of version 0.1. Says when it begins and when it is done."""
    said.write_text("begun\n")
    open_store(f"sqlite:///{path}").close()
    said.write_text("begun\ndone\n")


def lines_of(path: Path) -> list[str]:
    """All steps of a store, as the export writes them."""
    with open_store(f"sqlite:///{path}") as store:
        return [to_line(step) for trajectory in store.trajectories() for step in export_steps(trajectory)]


def test_a_killed_migration_loses_nothing(nursery: ForkServerContext, tmp_path: Path) -> None:
    """The kills are spread over the time that a whole migration takes."""
    with tarfile.open(HOMES) as tar:
        tar.extract("./trajectories.sqlite", tmp_path, filter="data")
    original = (tmp_path / "trajectories.sqlite").read_bytes()
    begun = time.monotonic()
    expected = lines_of(tmp_path / "trajectories.sqlite")
    whole_s = time.monotonic() - begun
    unfinished = 0
    for number in range(MIGRATIONS):
        path, said = tmp_path / f"{number}.sqlite", tmp_path / f"{number}.said"
        path.write_bytes(original)
        said.touch()
        process = nursery.Process(target=migrate, args=(path, said))
        process.start()
        KilledWriter(path.name, process, said).kill(whole_s * number / MIGRATIONS)
        unfinished += "done" not in said.read_text()
        assert lines_of(path) == expected
        assert_whole(path)
    assert unfinished, "no migration was interrupted"
