"""Writes `summary.json` from the committed rows: what the campaigns came to on the 1,000 shapes, against AutoTuning.

Run from the repository's root:
    python -m benchmarks.speed.summary [RESULTS ...] [--environment KEY] [--table] [--page docs/results/speed.md]
RESULTS: files or folders of rows, `benchmarks/campaigns/rows` by default. The newest row of a shape counts.
`--table` prints Markdown tables as well; `--page` writes them into a page, between its two marks.

The five figures of a mode are those of the grid in layout `nn`, FP16 with FP32 accumulation, held-out shapes included. Without
rows they are 0 and null. Figures of other sets of shapes follow in the same form, for sets that have rows. Each layout is
apart, and in each the shapes off the grid and the held-out ones. Other types are left out.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import execute, fill, marks_of, script, shown, table, write_text
from benchmarks.speed.grid import CAMPAIGNS, grid_shapes, held_out
from cudal2_agent.agent.campaign.report.figures import CLASS_NAMES, CLASSES, figures_of, has_result
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, Layout, TimingMode

ROWS, SUMMARY = CAMPAIGNS / "rows", CAMPAIGNS / "summary.json"
MARKS = marks_of(__file__)
NOTHING_YET = "No row is committed yet.\n"
GRID, HELD_OUT = frozenset(grid_shapes()), held_out()

# Sets of shapes apart from the grid in layout `nn`: `off_grid` is held out, `other` is not. Of another layout, its name stands
# in front, and alone for its whole grid.
_SETS = ("held_out", "off_grid", "other")
_LAYOUTS = tuple(layout.value for layout in Layout if layout is not Layout.NN)
PARTS = ("tuned", *_SETS, *(f"{layout}{part}" for layout in _LAYOUTS for part in ("", *(f"_{one}" for one in _SETS))))
_SET_NAMES = {
    "": "grid",
    "tuned": "grid, not held out",
    "held_out": "grid, held out of every tuning",
    "off_grid": "off the grid, held out of every tuning",
    "other": "off the grid, not held out",
}


def summarise(rows: Sequence[ShapeResult], environment: str | None = None) -> dict[str, Any]:
    """Raises: UsageError where the rows come from several environments and none is named."""
    counted = [row for row in counting(rows, environment) if _has_types(row)]
    newest = max((row for row in counted if has_result(row)), key=lambda row: row.finished_at, default=None)
    return {
        **{mode.value: _mode_summary([row for row in counted if row.task.mode is mode]) for mode in TimingMode},
        "commit": newest.commit if newest else None,
        "date": newest.finished_at.date().isoformat() if newest else None,
        "environment": newest.environment if newest else None,
    }


def written(summary: dict[str, Any]) -> str:
    return json.dumps(summary, indent=1) + "\n"


def tables(summary: dict[str, Any]) -> Iterator[str]:
    """Markdown: a table of sets of shapes and a table of classes for each mode that has rows."""
    for mode in TimingMode:
        figures = summary[mode.value]
        if figures["shapes"]:
            yield f"Mode `{mode.value}`:\n"
            yield from _parts_table(figures)
            yield ""
            yield from _classes_table(figures)
            yield ""


def text_of(summary: dict[str, Any]) -> str:
    """What a page says: the tables, and what they were measured with."""
    text = "".join(f"{line}\n" for line in tables(summary)) or NOTHING_YET
    told = f"Commit {summary['commit']}, {summary['date']}, {summary['environment']}.\n\n" if summary["commit"] else ""
    return told + text


def _mode_summary(rows: Sequence[ShapeResult]) -> dict[str, Any]:
    members = {name: [row for row in rows if name in _parts_of(row)] for name in PARTS}
    parts = {name: figures_of(found).model_dump() for name, found in members.items() if found}
    return {**figures_of([row for row in rows if is_headline(row)]).model_dump(), **parts}


def _parts_table(figures: dict[str, Any]) -> Iterator[str]:
    head = ("shapes", "geometric mean", "without programmatic launch", "faster", "wholly faster", "wholly slower")
    named = {"the grid": figures, **{_part_name(part): figures[part] for part in PARTS if part in figures}}
    rows = [_part_row(name, part) for name, part in named.items() if part["shapes"] or part["without_result"]]
    return table(("set", *head, "proved by the emulator", "GPU s per shape"), rows)


def _part_row(name: str, part: dict[str, Any]) -> Iterator[str]:
    yield name
    yield f"{part['shapes']:,}" + (f" (and {part['without_result']} without a result)" if part["without_result"] else "")
    yield from (shown(part[ratio]) for ratio in ("geomean", "geomean_without_programmatic"))
    yield from (shown(part[f"{share}_share"], ".1%") for share in ("faster", "wholly_faster", "wholly_slower"))
    yield from (f"{part['proved']:,}", shown(part["gpu_seconds"], ".1f"))


def _classes_table(figures: dict[str, Any]) -> Iterator[str]:
    ratios = ("classes", "classes_without_programmatic")
    rows = (
        (
            CLASS_NAMES[name],
            figures["class_shapes"][name],
            *(shown(figures[ratio][name]) for ratio in ratios),
            shown(figures["class_gpu_seconds"][name], ".1f"),
        )
        for name in CLASSES
    )
    return table(("AutoTuning takes", "shapes", "geometric mean", "without programmatic launch", "GPU s per shape"), rows)


def is_headline(row: ShapeResult) -> bool:
    """Whether a row counts in the five figures of its mode."""
    return _has_types(row) and row.task.layout is Layout.NN and row.task.shape in GRID


def _parts_of(row: ShapeResult) -> set[str]:
    """The sets of `PARTS` that a row belongs to."""
    layout, on_grid, apart = row.task.layout, row.task.shape in GRID, row.task.shape in HELD_OUT
    own = ("held_out" if apart else "tuned") if on_grid else ("off_grid" if apart else "other")
    if layout is Layout.NN:
        return {own}
    return {f"{layout.value}_{own}", *([layout.value] if on_grid else [])}


def _part_name(part: str) -> str:
    layout, _, own = part.partition("_") if part[:2] in _LAYOUTS else ("", "", part)
    return _SET_NAMES[own] + (f", layout `{layout}`" if layout else "")


def _has_types(row: ShapeResult) -> bool:
    return row.task.element is ElementType.F16 and row.task.accumulate is AccumulatorType.F32


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("results", nargs="*", type=Path, default=[ROWS])
    parser.add_argument("--environment", help="whose rows count; needed where they come from several")
    parser.add_argument("--out", type=Path, default=SUMMARY)
    parser.add_argument("--table", action="store_true", help="print Markdown tables")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args()
    summary = summarise(read_results(options.results), options.environment)
    write_text(options.out, written(summary))
    if options.page:
        fill(options.page, MARKS, text_of(summary))
    if options.table:
        print("\n".join(tables(summary)))


if __name__ == "__main__":
    execute(main)
