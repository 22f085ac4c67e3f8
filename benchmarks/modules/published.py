"""What others published for a folder of problems, measured on this GPU by the ruler of our own kernels.

    python -m benchmarks.modules.published --solutions h100.json --tasks TRACED --out F [--shard 0/4] [--seconds 500]

SOLUTIONS: JSON lines as CUDA-L1 publishes them (level_id, task_id, custom_code, ref_code), or a folder of files
`level1/19_….py` or `1_19….py`. The task of a solution is, in this order: TRACED/LEVEL_NUMBER*.json, traced elsewhere;
PROBLEMS/level1/19_….py; the row's own reference. The files run with all rights of this user.

Rows are added to F, and what F has is not measured again. The order is drawn by a seed, so that a part is a fair sample.
Files compile ahead while the one before has its turn on the GPU.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import cache_argument, execute, script
from benchmarks.modules.rows import Row, add_row, read_rows
from cudal2_agent.agent.cli.render.published_answer import as_row
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.published.measuring import measure
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRequest
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer, open_tracer

SEED = 42
_CODE = ("custom_code", "cuda_code", "code")
_NUMBERS = re.compile(r"(?:level)?(\d+)[/_](\d+)_?")


@dataclass(frozen=True)
class Solution:
    """`reference`: the problem that it was written for; empty where the source has none."""

    level: int
    number: int
    text: str
    reference: str = ""

    @property
    def name(self) -> str:
        return f"{self.level}/{self.number}"


def solutions_of(source: Path) -> list[Solution]:
    """Those with code, of JSON lines, a JSON list, or a folder of Python files."""
    if source.is_dir():
        found = [(_NUMBERS.match(path.relative_to(source).as_posix()), path) for path in sorted(source.rglob("*.py"))]
        return [Solution(int(named[1]), int(named[2]), path.read_text("utf-8-sig")) for named, path in found if named]
    text = source.read_text("utf-8")
    rows: list[Row] = json.loads(text) if text.lstrip().startswith("[") else [*map(json.loads, text.splitlines())]
    return [
        Solution(int(row["level_id"]), int(row["task_id"]), code, row.get("ref_code") or "")
        for row in rows
        if (code := next((row[name] for name in _CODE if row.get(name)), ""))
    ]


def chosen(found: Sequence[Solution], levels: set[int], shard: tuple[int, int], sample: int | None) -> list[Solution]:
    """Those of a shard, in an order that the seed draws; of a sample the first ones."""
    drawn = [each for each in found if not levels or each.level in levels]
    random.Random(SEED).shuffle(drawn)
    part, parts = shard
    return drawn[:sample][part::parts]


class Tasks:
    """The task of a solution; `problem_of` says where it comes from."""

    def __init__(self, traced: Path | None, problems: Path | None, tracer: Tracer, *, training: bool) -> None:
        self._traced = _by_numbers(traced, "*.json")
        self._problems = _by_numbers(problems, "*.py")
        self._tracer, self._training = tracer, training

    def of(self, one: Solution) -> ModuleTask:
        """Raises: Cudal2Error where it cannot be traced; ValueError for a file that is no task."""
        key = one.level, one.number
        if key in self._traced:
            return ModuleTask.model_validate_json(self._traced[key].read_text("utf-8"))
        text = self._problems[key].read_text("utf-8-sig") if key in self._problems else one.reference
        return self._tracer.trace(text, one.name, training=self._training)


def _by_numbers(folder: Path | None, pattern: str) -> dict[tuple[int, int], Path]:
    paths = sorted(folder.rglob(pattern)) if folder is not None else []
    named = [(_NUMBERS.match(path.relative_to(folder or path).with_suffix("").as_posix()), path) for path in paths]
    return {(int(found[1]), int(found[2])): path for found, path in named if found}


def rows(given: argparse.Namespace, left: Sequence[Solution]) -> Iterator[Row]:
    """Of each solution as it is measured; none begins after the time given."""
    begin, tracer = time.monotonic(), open_tracer()
    tasks = Tasks(given.tasks, given.problems, tracer, training=given.training)
    options = TimeOptions(rounds=given.rounds, max_autotune=given.autotune, side=False)
    caches = {"CUPY_CACHE_DIR": str(given.cache / "cupy"), "TORCHINDUCTOR_CACHE_DIR": str(given.cache / "torchinductor")}

    def row(one: Solution) -> Row | None:
        if time.monotonic() - begin > given.seconds:
            return None
        started = time.monotonic()
        try:
            request = PublishedRequest(
                task=tasks.of(one),
                text=one.text,
                device=given.device,
                seed=SEED,
                time=options,
                turns=str(given.cache / "turns"),
                limit_s=given.limit,
            )
            found = as_row(measure(request, caches, given.cache / "builds").model_copy(update={"file": one.name}))
        except (Cudal2Error, ValueError) as exc:
            found = {"status": "failed", "message": f"{type(exc).__name__}: {exc}"}
        return {"name": one.name, **found, "wall_s": round(time.monotonic() - started, 1)}

    with tracer, ThreadPoolExecutor(given.ahead) as pool:
        yield from (found for found in pool.map(row, left) if found is not None)


def summary(row: Row) -> str:
    """One line of a row."""
    if row["status"] == "failed":
        return f"{row['name']}: failed: {row['message'][:160]}"
    over = {name: f"{each['ratio']:.2f} [{each['low']:.2f}, {each['high']:.2f}]" for name, each in row["speedup_over"].items()}
    verdict = "right" if row["right"] else f"wrong on {','.join(row['wrong_on'])}"
    return f"{row['name']}: {verdict}; {row['us']} over {over}; {'; '.join(row['findings'])} ({row['wall_s']} s)"


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--solutions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, help="folder of traced tasks")
    parser.add_argument("--problems", type=Path, help="folder of problem files")
    parser.add_argument("--levels", default="", help="such as 1,2")
    parser.add_argument("--only", default="", help="such as 1/19,2/40")
    parser.add_argument("--sample", type=int, help="so many, drawn by the seed")
    parser.add_argument("--shard", default="0/1", help="I/N")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--autotune", action="store_true", help="compiled by max-autotune too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ahead", type=int, default=3, help="files in work; their turns on the GPU alternate")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a file")
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no further file begins")
    cache_argument(parser, "published-cache")
    given = parser.parse_args()
    part, _, parts = given.shard.partition("/")
    levels = {int(each) for each in given.levels.split(",") if each}
    wanted = chosen(solutions_of(given.solutions), levels, (int(part), int(parts)), given.sample)
    only, done = {*filter(None, given.only.split(","))}, {row["name"] for row in read_rows(given.out)}
    left = [each for each in wanted if each.name not in done and (not only or each.name in only)]
    print(f"{len(left)} of {len(wanted)} solutions are left", flush=True)
    for found in rows(given, left):
        print(summary(found), flush=True)
        add_row(given.out, found)


if __name__ == "__main__":
    execute(main)
