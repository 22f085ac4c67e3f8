"""Writes `summary.json` from the committed rows: what the campaigns came to on the 1,000 shapes, against AutoTuning.

Run from the repository's root:
    python -m benchmarks.h200.summary [RESULTS ...] [--environment KEY] [--out benchmarks/h200/summary.json] [--table]
        [--page docs/results.md]
RESULTS: files or folders of rows, `benchmarks/h200/rows` by default. The newest row of a shape counts.
`--table` prints Markdown tables as well; `--page` writes them into a page, between its two marks.

The five figures of a mode are those of the grid in layout `nn`, FP16 with FP32 accumulation, held-out shapes included. Figures
of other sets of shapes follow in the same form. A set without rows has 0 shapes and null in place of its figures.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.campaign.result_files import read_results
from agent.campaign_report.figures import CLASS_NAMES, CLASSES, figures_of, has_result
from agent.campaign_report.newest_rows import counting
from benchmarks.h200.grid import grid_shapes, held_out
from contract.campaign import ShapeResult
from contract.errors import UsageError
from contract.task import AccumulatorType, ElementType, Layout, TimingMode
from contract.whole_file import whole_file

FOLDER = Path(__file__).parent
ROWS = FOLDER / "rows"
SUMMARY = FOLDER / "summary.json"
BEGIN, END = "<!-- tables of benchmarks.h200.summary -->\n", "<!-- end of these tables -->"
NOTHING_YET = "No row is committed yet.\n"
GRID, HELD_OUT = frozenset(grid_shapes()), held_out()

# Sets of shapes reported apart from the grid in layout `nn`.
PARTS = ("tuned", "held_out", "off_grid", *(layout.value for layout in Layout if layout is not Layout.NN))
PART_NAMES = {
    "tuned": "grid, not held out",
    "held_out": "grid, held out of every tuning",
    "off_grid": "off the grid, held out of every tuning",
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


def filled(page: str, summary: dict[str, Any]) -> str:
    """A page with the tables between its marks. Raises: UsageError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the page has no place for tables; add the lines {BEGIN.strip()!r} and {END!r}")
    text = "".join(f"{line}\n" for line in tables(summary)) or NOTHING_YET
    told = f"Commit {summary['commit']}, {summary['date']}, {summary['environment']}.\n\n" if summary["commit"] else ""
    return f"{before}{begin}\n{told}{text}\n{end}{after}".replace("\n\n\n", "\n\n")


def _mode_summary(rows: Sequence[ShapeResult]) -> dict[str, Any]:
    parts = {name: figures_of([row for row in rows if _part_of(row) == name]).model_dump() for name in PARTS}
    return {**figures_of([row for row in rows if is_headline(row)]).model_dump(), **parts}


def _parts_table(figures: dict[str, Any]) -> Iterator[str]:
    head = ("shapes", "geometric mean", "without programmatic launch", "faster", "proved by the emulator", "GPU s per shape")
    yield from _head(("set", *head))
    named = {"the grid": figures, **{PART_NAMES.get(part, f"grid, layout `{part}`"): figures[part] for part in PARTS}}
    for name, part in named.items():
        if part["shapes"] or part["without_result"]:
            yield _line(
                name,
                f"{part['shapes']:,}" + (f" (and {part['without_result']} without a result)" if part["without_result"] else ""),
                _ratio(part["geomean"]),
                _ratio(part["geomean_without_programmatic"]),
                "—" if part["faster_share"] is None else f"{part['faster_share']:.1%}",
                f"{part['proved']:,}",
                _seconds(part["gpu_seconds"]),
            )


def _classes_table(figures: dict[str, Any]) -> Iterator[str]:
    yield from _head(("AutoTuning takes", "shapes", "geometric mean", "without programmatic launch", "GPU s per shape"))
    for name in CLASSES:
        plain, seconds = figures["classes_without_programmatic"][name], figures["class_gpu_seconds"][name]
        ratio = _ratio(figures["classes"][name])
        yield _line(CLASS_NAMES[name], str(figures["class_shapes"][name]), ratio, _ratio(plain), _seconds(seconds))


def _head(names: Sequence[str]) -> Iterator[str]:
    yield _line(*names)
    yield "|---" * len(names) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _ratio(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}"


def is_headline(row: ShapeResult) -> bool:
    """Whether a row counts in the five figures of its mode."""
    return _has_types(row) and row.task.layout is Layout.NN and row.task.shape in GRID


def _part_of(row: ShapeResult) -> str | None:
    """The set of `PARTS` that a row belongs to; None for a shape that is neither of the grid nor held out."""
    if row.task.layout is not Layout.NN:
        return row.task.layout.value if row.task.shape in GRID else None
    if row.task.shape in HELD_OUT:
        return "held_out" if row.task.shape in GRID else "off_grid"
    return "tuned" if row.task.shape in GRID else None


def _has_types(row: ShapeResult) -> bool:
    return row.task.element is ElementType.F16 and row.task.accumulate is AccumulatorType.F32


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.h200.summary", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, default=[ROWS])
    parser.add_argument("--environment", help="whose rows count; needed where they come from several")
    parser.add_argument("--out", type=Path, default=SUMMARY)
    parser.add_argument("--table", action="store_true", help="print Markdown tables")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args()
    summary = summarise(read_results(options.results), options.environment)
    with whole_file(options.out) as temporary:
        temporary.write_text(written(summary), encoding="utf-8")
    if options.page:
        page = filled(options.page.read_text(encoding="utf-8"), summary)
        with whole_file(options.page) as temporary:
            temporary.write_text(page, encoding="utf-8")
    if options.table:
        print("\n".join(tables(summary)))


if __name__ == "__main__":
    main()
