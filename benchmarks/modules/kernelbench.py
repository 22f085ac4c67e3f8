"""KernelBench's tasks measured on the GPUs of this machine: the fuser's first candidates beside every baseline of PyTorch.

    python -m benchmarks.modules.kernelbench --problems FILE_OR_FOLDER... --out FOLDER [--gpus 4] [--seconds 540]

Problems are traced tasks (.json). FOLDER gets `rows.jsonl`, one line a task, and `table.md`; tasks with a row are skipped, so
that the same command goes on. Several workers a GPU prepare and verify at the same time; one that times has the GPU alone.
`--dry` prints the queue and the candidates, without a GPU.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import execute, script
from benchmarks.modules.crew import Crew
from benchmarks.modules.measuring import Measuring, candidates_of
from benchmarks.modules.queueing import PROCESS_BYTES, Board, item_of
from benchmarks.modules.rows import Row, add_row, head_of, nodes_of, place_of, read_rows
from benchmarks.modules.summary import summary
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.fusion.policy import FusionPolicy

AUTOTUNED, DRAWN_BY = 60, "max-autotune of modules, 2026-11"  # tasks of levels 1 and 2 with max-autotune, and the rule's seed
ROOM_BYTES = 1_500_000_000  # of a GPU that stay free


def drawn(names: Sequence[str], count: int = AUTOTUNED) -> list[str]:
    """The tasks of levels 1 and 2 that max-autotune is measured on: the first by a hash of the seed, level and number."""
    asked = [name for name in names if place_of(name)[0] in (1, 2)]

    def place(name: str) -> str:
        level, number = place_of(name)
        return hashlib.sha256(f"{DRAWN_BY}/{level}/{number}".encode()).hexdigest()

    return sorted(sorted(asked, key=place)[:count])


def read_tasks(paths: Sequence[Path], levels: Sequence[int]) -> Iterator[tuple[Path, ModuleTask]]:
    """Traced tasks of files and folders. Raises: UsageError for a file that is none."""
    for file in [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]:
        try:
            task = ModuleTask.model_validate_json(file.read_text("utf-8"))
        except (OSError, ValueError) as exc:
            raise UsageError(f"{file} is no traced task: {str(exc)[:200]}") from exc
        if not levels or place_of(task.name)[0] in levels:
            yield file, task


def dry(board: Board, candidates: int) -> None:
    """Print the queue, most work first, with what each task's candidates are."""
    for item in board.waiting:
        task, policy = ModuleTask.model_validate_json(item.file.read_text("utf-8")), FusionPolicy()
        asked = Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=0, seed=0)
        found = policy.propose(asked, candidates_of(task, candidates))
        plans = ", ".join("{}+{}".format(*nodes_of(each)) for each in found) or policy.exhausted
        size = f"{task.operand_bytes / 1e9:6.2f} GB, needs {item.need_bytes / 1e9:5.1f}"
        print(f"{item.work_s:6.1f} s  {size}  {head_of(task)['class']:28} {item.name}: {plans}", flush=True)


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--problems", type=Path, nargs="+", required=True, help="traced tasks, or folders of them")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--levels", type=lambda text: [int(each) for each in text.split(",")], default=[], help="such as 1,2")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes of each GPU: 4, with --autotune 1, so that none disturbs tuning")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which nothing is waited for")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of a stage of one task")
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--autotune", action="store_true", help="the drawn tasks alone, with max-autotune")
    parser.add_argument("--memory-gb", type=float, default=80.0, help="of a GPU; less where it has less")
    parser.add_argument("--soundness", type=Path, help="rows of `cudal2-agent tasks check --rows`")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "kernelbench-logs")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "kernelbench-cache")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    run(given)


def run(given: argparse.Namespace) -> None:
    begin, workers = time.monotonic(), given.workers or (1 if given.autotune else 4)
    for folder in (given.out, given.logs, given.cache):
        folder.mkdir(parents=True, exist_ok=True)
    tasks = {task.name: (file, task) for file, task in read_tasks(given.problems, given.levels)}
    heads = {name: head_of(task) for name, (_, task) in tasks.items()}
    autotuned, path = drawn([*tasks]) if given.autotune else [], given.out / "rows.jsonl"
    done = {(row["task"], row["arithmetic"]) for row in read_rows(path)}
    wanted = [name for name in (autotuned if given.autotune else tasks) if (name, heads[name]["arithmetic"]) not in done]
    capacity = int(given.memory_gb * 1e9 - workers * PROCESS_BYTES - ROOM_BYTES)
    board = Board([item_of(*tasks[name]) for name in wanted], given.gpus, capacity)
    if given.dry:
        dry(board, given.candidates)
        return
    share_compilers(given.cache, workers * given.gpus)
    crew = Crew(
        board,
        gpus=given.gpus,
        workers=workers,
        command=lambda gpu: worker_command(given, autotuned, gpu),
        head=lambda item: dict(heads[item.name]),
        say=RowKeeper(path, given.soundness, begin),
        logs=given.logs,
        limit_s=given.limit,
    )
    complete = crew.run(given.seconds - (time.monotonic() - begin))
    text = summary(read_rows(path), len(tasks))
    (given.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    print("complete" if complete else f"{len(board.waiting)} tasks have no row yet; the same command goes on")


def share_compilers(cache: Path, processes: int) -> None:
    """Workers inherit one cache of the compiler, and its processes take half of the machine's cores in all."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // (2 * processes))))


def worker_command(given: argparse.Namespace, autotuned: Sequence[str], gpu: int) -> list[str]:
    """Starts a worker of a GPU."""
    options = Measuring(
        turns=str(given.cache / f"turns-{gpu}"),
        cache=str(given.cache / "kernels"),
        candidates=given.candidates,
        rounds=given.rounds,
        autotuned=tuple(autotuned),
    )
    return [sys.executable, "-m", "benchmarks.modules.measuring", options.model_dump_json()]


class RowKeeper:
    """Keeps every row with the soundness of its task, and prints a line of it. Any number of threads."""

    def __init__(self, path: Path, soundness: Path | None, begin_s: float) -> None:
        self._path, self._begin_s, self._lock = path, begin_s, threading.Lock()
        self._sound = {place_of(row["name"]): row["status"] for row in (read_rows(soundness) if soundness else ())}

    def __call__(self, row: Row) -> None:
        row["soundness"] = self._sound.get(place_of(row["task"]))
        figures = (row.get("us", ""), row.get("fastest", ""), row.get("speedup", row.get("message", "")))
        with self._lock:
            add_row(self._path, row)
            passed_s = time.monotonic() - self._begin_s
            print(f"{passed_s:6.1f} s", row["task"], row["status"], *figures, f"{row['wall_s']} s", flush=True)


if __name__ == "__main__":
    execute(main)
