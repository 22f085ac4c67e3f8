"""Groups on disk: their features take longer to make than a training epoch, and a stored run does not change."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT
from cudal2_agent.policies.training.groups import ScheduleGroup, TimedRun, group_of

ARRAYS = ("features", "prior", "costs", "raced", "rounds", "rival_features", "rival_prior")

# Called after each group with the number of groups so far.
OnGroup = Callable[[int], None]


class GroupCache:
    """One file for each run in a folder. A damaged file is made anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def groups(self, runs: Sequence[TimedRun], seed: int, jobs: int, on_group: OnGroup = lambda _: None) -> list[ScheduleGroup]:
        """The groups of the runs, in order, without runs that have too few schedules. `jobs`: processes that make new ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = [run for run in runs if self._read(run, seed) is None]
        done = len(runs) - len(missing)
        on_group(done)
        for number, _ in enumerate(self._made(missing, seed, jobs), 1):
            on_group(done + number)
        read = (self._read(run, seed) for run in runs)
        return [group for group in read if group is not None and len(group.costs)]

    def _made(self, runs: Sequence[TimedRun], seed: int, jobs: int) -> Iterator[None]:
        make = partial(_make, self._folder, seed)
        if len(runs) < 2 * jobs or jobs == 1:
            yield from map(make, runs)
            return
        # A spawned process: a forked one would inherit the threads of numpy and of the store.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield from pool.map(make, runs, chunksize=4)

    def _read(self, run: TimedRun, seed: int) -> ScheduleGroup | None:
        """None where there is no whole file; without schedules where the run had too few."""
        try:
            with np.load(_path(self._folder, run, seed), allow_pickle=False) as stored:
                return ScheduleGroup(
                    run.run_id,
                    run.task,
                    run.chip.name,
                    float(np.log(run.baseline_us)),
                    **{name: stored[name] for name in ARRAYS},
                )
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None


def _make(folder: Path, seed: int, run: TimedRun) -> None:
    group = group_of(run, seed)
    arrays: dict[str, Any] = {name: getattr(group, name) if group else np.zeros(0) for name in ARRAYS}
    with whole_file(_path(folder, run, seed)) as target, target.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _path(folder: Path, run: TimedRun, seed: int) -> Path:
    timed = [[sorted(one.values.items()), one.cost, one.raced, one.round] for one in run.timed]
    known = [run.run_id, run.task.model_dump(mode="json"), run.chip.model_dump(mode="json"), timed, seed, FINGERPRINT]
    return folder / f"{digest(known)}.npz"
