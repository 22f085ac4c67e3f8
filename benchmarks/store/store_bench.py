"""Measures a store: its size, how fast it is written and read, and the time and memory of the commands over it."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.store.filling import peak_bytes, write
from benchmarks.store.invented_runs import Inventor, RunSize
from benchmarks.store.real_runs import RealRun, RunEvent, replayed
from benchmarks.store.store_table import CommandFigures, ReadingFigures, Resemblance, WritingFigures
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.store.store import Store, open_store

RUNS_WRITTEN = 20  # for the rates of one process
REPEATS = 3
# The system's own figure of a child's memory includes that of the parent at its start, so the child reads its own.
_COMMAND = """
import atexit, os, re, sys
from pathlib import Path
from cudal2_agent.agent.cli.main import run

def tell_peak():
    [kilobytes] = re.findall(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
    Path(os.environ["CUDAL2_HOME"], "peak").write_text(kilobytes)

atexit.register(tell_peak)
sys.exit(run())
"""


def file_bytes(path: Path) -> int:
    """The size of a store whose write-ahead log is in the database."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


def resemblance(runs: Sequence[RealRun], folder: Path) -> Resemblance:
    """Bytes per step of the measured runs, and of invented runs of the same tasks and lengths, each in a store of its own."""
    inventor = Inventor(runs)
    invented = [
        list(inventor.run(real.run.task, Random(f"resemblance {number}"), _size(real))) for number, real in enumerate(runs)
    ]
    empty = _stored(folder / "empty.sqlite", [])
    steps = sum(len(real.steps) for real in runs)
    real_bytes = _stored(folder / "real.sqlite", [list(replayed(real)) for real in runs]) - empty
    invented_bytes = _stored(folder / "invented.sqlite", invented) - empty
    return Resemblance(steps=steps, real_bytes_per_step=real_bytes / steps, invented_bytes_per_step=invented_bytes / steps)


def writing(path: Path, inventor: Inventor) -> WritingFigures:
    """The rates of one process, which adds runs to the store."""
    tasks = islice(cycle(inventor.tasks), RUNS_WRITTEN)
    runs = [list(inventor.run(task, Random())) for task in tasks]
    half = RUNS_WRITTEN // 2
    with open_store(f"sqlite:///{path}") as store:
        batched_s = _seconds(lambda: _write_batches(store, runs[:half]))
        durable_s = _seconds(lambda: _write_durably(store, runs[half:]))
    return WritingFigures(
        batched_steps_per_s=_steps(runs[:half]) / batched_s,
        durable_steps_per_s=_steps(runs[half:]) / durable_s,
        peak_bytes=peak_bytes(),
    )


def reading(path: Path) -> ReadingFigures:
    """The functions behind the lists."""
    with open_store(f"sqlite:///{path}") as store:
        counts_s = min(_seconds(store.step_counts) for _ in range(REPEATS))
        runs_s = _seconds(store.runs)
    return ReadingFigures(step_counts_s=counts_s, runs_s=runs_s)


def command(url: str, home: Path, arguments: Sequence[str], repeats: int = REPEATS) -> CommandFigures:
    """The time, memory and output of one command of `cudal2-agent` in a process of its own; the fastest of some repeats."""
    figures = [_command(url, home, arguments) for _ in range(repeats)]
    return min(figures, key=lambda one: one.seconds)


def _command(url: str, home: Path, arguments: Sequence[str]) -> CommandFigures:
    environment = {**os.environ, "CUDAL2_STORE": url, "CUDAL2_HOME": str(home)}
    begun = time.monotonic()
    with (home / "stderr").open("w+b") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        written = lines = 0
        while block := process.stdout.read(1 << 20):
            written += len(block)
            lines += block.count(b"\n")
        process.wait()
        seconds = time.monotonic() - begun
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    return CommandFigures(
        arguments=" ".join(arguments[:4]),
        seconds=seconds,
        peak_bytes=1024 * int((home / "peak").read_text()),
        out_bytes=written,
        lines=lines,
        error=said[-1] if process.returncode and said else "",
    )


def _size(real: RealRun) -> RunSize:
    full = sum(1 for one in real.steps if isinstance(one.evaluation, Measured) and len(one.evaluation.baselines) > 1)
    return RunSize(len(real.steps) - full, full)


def _stored(path: Path, runs: Sequence[list[RunEvent]]) -> int:
    with open_store(f"sqlite:///{path}") as store:
        _write_batches(store, runs)
    return file_bytes(path)


def _write_batches(store: Store, runs: Sequence[list[RunEvent]]) -> None:
    for events in runs:
        with store.batch() as writer:
            write(writer, events)


def _write_durably(store: Store, runs: Sequence[list[RunEvent]]) -> None:
    for events in runs:
        write(store, events)


def _steps(runs: Sequence[list[RunEvent]]) -> int:
    return sum(isinstance(event, Step) for events in runs for event in events)


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
