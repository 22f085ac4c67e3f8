"""What holds back each class of operation: Nsight Compute's counters of the best kernels of measured tasks.

    python -m benchmarks.modules.counters ROWS --problems FILE_OR_FOLDER... --out FILE.jsonl [--gpus 4] [--seconds 200]

Of each class the task whose speedup over the fastest baseline is the median, and the one that loses most, among tasks of up to
MOST_BYTES. Candidates are written again by the fuser, so that rows and code must be of one commit.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import cache_argument, execute, script
from benchmarks.modules.kernelbench import read_tasks
from benchmarks.modules.rows import Row, add_row, read_rows
from cudal2_agent.contract.errors import Cudal2Error, UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.profile import LaunchProfile
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.options import CompileOptions, ProfileOptions, WorkerOptions
from cudal2_agent.policies.fusion.policy import FusionPolicy
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.profiling.profiler import Profiler

MOST_BYTES = 9e9  # of operands: ncu saves and restores what a launch writes, for every pass
PROPOSED = 4  # candidates among which the best one was, as `kernelbench` asks for
PROFILE_S = 150.0
_SHOWN = ("duration_ns", "dram_pct", "l2_pct", "issue_pct", "tensor_pct", "smem_pct", "occupancy_pct", "registers", "waves")


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Of each class the median, then of each the slowest against the fastest baseline; one where they are the same."""
    classes: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] == "measured" and row.get("speedup") and row["bytes"] <= MOST_BYTES:
            classes.setdefault(row["class"], []).append(row)
    for ones in classes.values():
        ones.sort(key=lambda row: (row["speedup"][0], row["task"]))
    medians = [ones[len(ones) // 2] for ones in classes.values()]
    return medians + [ones[0] for ones in classes.values() if len(ones) > 1]


def counted(launch: LaunchProfile) -> Row:
    """The counters of a launch that say what it waits for."""
    metrics = launch.metrics
    stalls = {name.removeprefix("stall_"): value for name, value in metrics.items() if name.startswith("stall_")}
    moved = metrics.get("dram_read_bytes", 0.0) + metrics.get("dram_write_bytes", 0.0)
    return {
        "entry": launch.entry,
        "grid": launch.grid,
        "block": launch.block,
        "moved_bytes": moved,
        **{name: round(metrics[name], 3) for name in _SHOWN if name in metrics},
        "stalls": {name: round(stalls[name], 2) for name in sorted(stalls, key=lambda name: -stalls[name])[:3]},
    }


def rebuilt(row: Row, task: ModuleTask, builder: Builder) -> Built | str:
    """The candidate of a row, or why there is none."""
    asked = Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=0, seed=0)
    one = next((each for each in FusionPolicy().propose(asked, PROPOSED) if each.id == row["best"]), None)
    if one is None:
        return "the fuser of this commit does not write the candidate of the row"
    built = builder.build_one(one, task)
    return built if isinstance(built, Built) else built.headline


def profiled(row: Row, task: ModuleTask, builder: Builder, profiler: Profiler) -> Row:
    kept = {name: row[name] for name in ("task", "arithmetic", "class", "bytes", "flops", "best", "us", "fastest", "speedup")}
    built = rebuilt(row, task, builder)
    if isinstance(built, str):
        return kept | {"status": "failed", "message": built}
    try:
        profile = profiler.profile(built, task)
    except Cudal2Error as exc:
        return kept | {"status": "failed", "message": f"{type(exc).__name__}: {exc}"[:600]}
    return kept | {"status": "counted", "tool": profile.tool, "launches": [counted(each) for each in profile.launches]}


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--problems", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no further task begins")
    cache_argument(parser, "modules-cache")
    given = parser.parse_args()
    tasks = {task.name: task for _, task in read_tasks(given.problems, [])}
    rows = [row for row in chosen(read_rows(given.rows)) if row["task"] in tasks]
    if not rows:
        raise UsageError(f"--problems has none of the tasks that were chosen of {given.rows}, so there is nothing to count")
    run(iter(rows), tasks, given.out, given.gpus, time.monotonic() + given.seconds, str(given.cache))


def run(waiting: Iterator[Row], tasks: Mapping[str, ModuleTask], out: Path, gpus: int, end_s: float, cache: str) -> None:
    lock, chip = threading.Lock(), REFERENCE_CHIPS[next(iter(tasks.values())).arch]
    builder = Builder(CompileOptions(cache_dir=cache, jobs=4), chip)

    def work(gpu: int) -> None:
        profiler: Any = Profiler(ProfileOptions(timeout_s=PROFILE_S), WorkerOptions(device=gpu))
        while time.monotonic() < end_s:
            with lock:
                row = next(waiting, None)
            if row is None:
                return
            found = profiled(row, tasks[row["task"]], builder, profiler)
            with lock:
                add_row(out, found)
                print(json.dumps(found), flush=True)

    with ThreadPoolExecutor(gpus) as pool:
        list(pool.map(work, range(gpus)))
    builder.close()


if __name__ == "__main__":
    execute(main)
