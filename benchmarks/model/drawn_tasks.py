"""Draws the 24 tasks on which a language model in the loop is compared with the search: `tasks.json`.

Run from the repository's root: python -m benchmarks.model.drawn_tasks
The rule, with one seed:
- twelve weak matrix products: of the shapes of H200s that are wholly slower than AutoTuning (offline, layout `nn`, FP16, the
  newest row of each), in order of AutoTuning's time and cut into twelve equal parts, one of each part;
- six unaligned ones: two of each layout, one with odd rows and one with rows of 8-byte multiples, sizes log-uniform;
- six modules: of KernelBench's levels 1 and 2 (f32, H200s, the newest row), whose kernel is less than 1.25 times as fast
  as the fastest of PyTorch's ways and whose buffers take at most 2.5 GiB, one of each of six classes.
Eight of them, four products, two unaligned ones and two modules, serve the ablations.
"""

import json
import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import execute, script, write_json
from benchmarks.modules.rows import Row, read_rows
from benchmarks.speed.grid import CAMPAIGNS
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, Layout, TimingMode

SEED = 44
TASKS = Path(__file__).with_name("tasks.json")
RESULTS = Path(__file__).parents[1] / "results"
WEAK, UNALIGNED_SIZES = 12, (200.0, 4100.0)
MODULE_ROWS = ("2026-11-28", "2026-11-28_second", "2026-11-28_third")  # that were there when the tasks were drawn
GAIN, MOST_BYTES = 1.25, 5 * 2**29
# Classes of operations, as rows name them, each with its likes where it has few tasks.
CLASSES = (
    ("pool", "reduction", "scan"),
    ("softmax", "norm"),
    ("transposed convolution", "transposed convolution and more"),
    ("convolution", "convolution and more"),
    ("product", "product and more"),
    ("pointwise",),
)
ABLATED = {"weak": 4, "unaligned": 2, "modules": 2}
T = TypeVar("T")


def draw(rows: Sequence[ShapeResult], modules: Iterable[Row]) -> dict[str, object]:
    """The tasks by group, and those of the ablations: shapes as M x N x K with their layout, modules by name."""
    rng = random.Random(SEED)
    found = {"weak": _weak(rows, rng), "unaligned": _unaligned(rng), "modules": _modules(list(modules), rng)}
    ablated = {group: rng.sample(found[group], count) for group, count in ABLATED.items()}
    return {"seed": SEED, **found, "ablated": [one for tasks in ablated.values() for one in tasks]}


def _weak(rows: Sequence[ShapeResult], rng: random.Random) -> list[str]:
    slower = [row for row in rows if _counts(row) and row.best is not None and row.best.speedup.high < 1]
    slower.sort(key=lambda row: (row.baselines_us[AUTOTUNED], row.task.shape))
    return [f"{rng.choice(part).task.shape} nn" for part in _parts(slower, WEAK)]


def _counts(row: ShapeResult) -> bool:
    task = row.task
    kind = (task.mode, task.layout, task.element, task.accumulate)
    return kind == (TimingMode.OFFLINE, Layout.NN, ElementType.F16, AccumulatorType.F32)


def _parts(found: Sequence[T], count: int) -> list[Sequence[T]]:
    """Equal parts in order; their sizes differ by at most one."""
    ends = [len(found) * index // count for index in range(count + 1)]
    return [found[begin:end] for begin, end in pairwise(ends)]


def _unaligned(rng: random.Random) -> list[str]:
    """Rows of A have K elements, or M where A is transposed; rows of B and D likewise. All three sizes get the alignment."""
    low, high = (math.log(size) for size in UNALIGNED_SIZES)

    def size(step: int, rest: int) -> int:
        return int(math.exp(rng.uniform(low, high))) // step * step + rest

    kinds = ((2, 1), (8, 4))  # odd rows; rows of 8 bytes and not of 16
    return [f"{'x'.join(str(size(*kind)) for _ in range(3))} {layout.value}" for layout in Layout for kind in kinds]


def _modules(rows: Sequence[Row], rng: random.Random) -> list[str]:
    newest = {row["task"]: row for row in rows}
    weak = [
        row
        for row in newest.values()
        if row["status"] == "measured" and row.get("speedup") and row["speedup"][0] < GAIN and row["bytes"] <= MOST_BYTES
    ]
    names = [sorted(row["task"] for row in weak if row["class"] in likes) for likes in CLASSES]
    return [rng.choice(each) for each in names]


def drawn() -> dict[str, object]:
    """From the committed rows. Raises: UsageError for a file of rows that cannot be read."""
    files = [RESULTS / f"h200_modules_rows_{name}.jsonl.gz" for name in MODULE_ROWS]
    return draw(counting(read_results([CAMPAIGNS / "rows"]), None), (row for file in files for row in read_rows(file)))


def tasks() -> dict[str, object]:
    """The committed tasks."""
    return dict(json.loads(TASKS.read_text(encoding="utf-8")))


def main() -> None:
    script(__file__, __doc__).parse_args()
    write_json(TASKS, drawn())


if __name__ == "__main__":
    execute(main)
