"""An H100 and an H200 beside the CUDA-L2 paper's published figures for the H100, shape by shape and by class.

Run from the repository's root:
    python -m benchmarks.speed.h100_table --shapes                      the 100 shapes to run on an H100
    python -m benchmarks.speed.h100_table ROWS... [--every-shape]       a Markdown table
ROWS: files or folders of rows of both chips; rows of an H100 lie in a folder of their own. A chip's newest row of a shape
counts. Classes are by the time of AutoTuning on the H100.

`benchmarks/campaigns/h100/published_h100.csv`: the paper's speedups on an H100 over the better layout of cuBLASLt-AutoTuning,
FP16 with FP32 accumulation, offline and server. Source: github.com/deepreinforce-ai/CUDA-L2 at dbe0177, column
cuBLASLt-auto-tuning-max of eval_results/cuda_l2_h100_F32F16F16F32_speedup_*.csv. Those times are of the host clock around a
synchronised call; ours are device times.
"""

import csv
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

from benchmarks.harness import execute, script, shown, table
from benchmarks.speed.grid import CAMPAIGNS, grid_shapes
from benchmarks.speed.summary import is_headline
from cudal2_agent.agent.campaign.report.figures import CLASS_NAMES, CLASSES, class_of, has_result, speedups
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import TimingMode

PUBLISHED = CAMPAIGNS / "h100" / "published_h100.csv"
COUNT, SEED = 100, 17
CHIPS = ("H100", "H200")

Results = dict[str, ShapeResult]


def h100_shapes() -> list[str]:
    """A random tenth of the grid, in a random order."""
    return random.Random(SEED).sample(grid_shapes(), COUNT)


def published(mode: TimingMode) -> dict[str, float]:
    """The paper's speedup by shape."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return {row["shape"]: float(row[mode.value]) for row in csv.DictReader(file)}


def by_chip(rows: Sequence[ShapeResult], mode: TimingMode) -> dict[str, Results]:
    """Each chip's rows with a result, by shape. Raises: UsageError where a chip has rows of two environments."""
    found: dict[str, Results] = {}
    for chip in CHIPS:
        own = [row for row in rows if row.task.mode is mode and is_headline(row) and chip in (row.environment or "")]
        found[chip] = {row.task.shape: row for row in counting(own) if has_result(row)}
    return found


def tables(rows: Sequence[ShapeResult], *, every_shape: bool = False) -> Iterator[str]:
    """Markdown for each mode that an H100 has rows of. Raises: UsageError where there is none."""
    shown = False
    for mode in TimingMode:
        chips = by_chip(rows, mode)
        if chips["H100"]:
            shown = True
            yield f"Mode `{mode.value}`, speedup over cuBLASLt-AutoTuning on the same chip:\n"
            yield from _classes(chips, published(mode))
            yield from _shapes(chips, published(mode)) if every_shape else ()
            yield ""
    if not shown:
        raise UsageError("no row comes from an H100; run a campaign there on the shapes that --shapes prints")


def _classes(chips: dict[str, Results], paper: dict[str, float]) -> Iterator[str]:
    ours = chips["H100"]
    head = ("shapes", "ours", "published kernels", "shapes where ours leads", "ours on an H200")
    groups = {CLASS_NAMES[name]: [shape for shape, row in ours.items() if class_of(row) == name] for name in CLASSES}
    rows = (_class_row(name, shapes, chips, paper) for name, shapes in {**groups, "all": list(ours)}.items() if shapes)
    return table(("AutoTuning takes on the H100", *head), rows)


def _class_row(name: str, shapes: Sequence[str], chips: dict[str, Results], paper: dict[str, float]) -> Sequence[object]:
    mine = dict(zip(shapes, speedups([chips["H100"][shape] for shape in shapes]), strict=True))
    there = speedups([chips["H200"][shape] for shape in shapes if shape in chips["H200"]])
    part = "" if len(there) == len(shapes) else f" ({len(there)} of them)"
    theirs = f"{geometric_mean(there):.3f}{part}" if there else shown(None)
    leads = sum(mine[shape] > paper[shape] for shape in shapes)
    published = geometric_mean([paper[shape] for shape in shapes])
    return name, len(shapes), f"{geometric_mean(mine.values()):.3f}", f"{published:.3f}", leads, theirs


def _shapes(chips: dict[str, Results], paper: dict[str, float]) -> Iterator[str]:
    yield ""
    rows = (_shape_row(shape, row, chips["H200"], paper) for shape, row in chips["H100"].items())
    yield from table(("shape", "ours, µs", "ours", "published kernel", "ours on an H200"), rows)


def _shape_row(shape: str, row: ShapeResult, there: Results, paper: dict[str, float]) -> Sequence[str]:
    assert row.best is not None
    besides = speedups([there[shape]])[0] if shape in there else None
    return shape, f"{row.best.time_us:.2f}", shown(row.best.speedup.ratio), shown(paper[shape]), shown(besides)


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--every-shape", action="store_true")
    options = parser.parse_args()
    print("\n".join(h100_shapes() if options.shapes else tables(read_results(options.rows), every_shape=options.every_shape)))


if __name__ == "__main__":
    execute(main)
