"""Fills a store with invented runs. Several processes write it, each with its own shapes."""

import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from benchmarks.store.invented_runs import RUNS_PER_SHAPE, STEPS_PER_RUN, Inventor, shapes
from benchmarks.store.real_runs import RunEvent, load_runs
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.store.store import Store, Writer, open_store

RUNS_PER_BATCH = 4
STEPS_PER_SHAPE = RUNS_PER_SHAPE * STEPS_PER_RUN


class Filled(NamedTuple):
    """`steps` were added, in `seconds` of wall-clock time.

    `peak_bytes`: the largest resident memory of a process that wrote.
    """

    steps: int
    seconds: float
    peak_bytes: int


def fill(url: str, steps: int, processes: int) -> Filled:
    """Writes whole shapes until the store has at least so many steps. Shapes that an earlier call wrote stay."""
    with open_store(url) as store:
        there = sum(store.step_counts().values())
    chosen = shapes(-(-steps // STEPS_PER_SHAPE))[there // STEPS_PER_SHAPE :]
    begun = time.monotonic()
    done = 0
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        peaks = []
        for number, (written, peak_bytes) in enumerate(pool.map(_fill_shape, [url] * len(chosen), chosen), 1):
            done += written
            peaks.append(peak_bytes)
            if number % 10 == 0:
                rate = done / (time.monotonic() - begun)
                print(f"{done} steps, {rate:.0f} per second", file=sys.stderr, flush=True)
    return Filled(done, time.monotonic() - begun, max(peaks, default=0))


def write(writer: Writer | Store, events: list[RunEvent]) -> int:
    """Writes the records of one run; how many of them are steps. In a `Store`, each is durable before the next."""
    run_id, steps = "", 0
    for event in events:
        match event:
            case RunRecord():
                writer.start_run(event)
                run_id = event.run_id
            case Observation():
                writer.record_observation(run_id, event)
            case Step():
                writer.record_step(event)
                steps += 1
    return steps


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_kept: dict[str, tuple[Inventor, Store]] = {}


def _fill_shape(url: str, shape: tuple[int, int, int]) -> tuple[int, int]:
    if url not in _kept:
        os.nice(5)
        _kept[url] = Inventor(load_runs()), open_store(url, busy_timeout_s=600)
    inventor, store = _kept[url]
    steps = 0
    waiting: list[list[RunEvent]] = []
    for events in inventor.runs_of(shape):
        waiting.append(events)
        if len(waiting) == RUNS_PER_BATCH:
            steps += _write_batch(store, waiting)
            waiting = []
    return steps + _write_batch(store, waiting), peak_bytes()


def _write_batch(store: Store, runs: list[list[RunEvent]]) -> int:
    if not runs:
        return 0
    with store.batch() as writer:
        return sum(write(writer, events) for events in runs)
