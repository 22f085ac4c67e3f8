"""The slowest results of the committed rows with what bounds them, as Markdown tables.

Run from the repository's root: python -m benchmarks.h200.worst [--rows FOLDER] [--environment KEY] [--page docs/results.md]
`--page` writes the tables into a page, between its two marks. Counters stand there once `campaign explain` has read them.
`--shapes` prints the shapes of the grid whose offline kernel is slower than AutoTuning instead, for `campaign run --shapes`.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.h200.marked_page import between, fill
from benchmarks.h200.summary import ROWS, is_headline
from cudal2_agent.agent.campaign.report.figures import slowest
from cudal2_agent.agent.campaign.report.newest_rows import counting
from cudal2_agent.agent.campaign.report.panel import kinds_of
from cudal2_agent.agent.campaign.report.reasons import reason_of
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import TimingMode

MARKS = between("benchmarks.h200.worst")
COUNT = 10


def tables(rows: Sequence[ShapeResult]) -> Iterator[str]:
    """A table for each mode, layout and type of the rows."""
    for kind, members in kinds_of(rows).items():
        yield f"{kind[0].upper()}{kind[1:]}:\n"
        yield "| shape | speedup | what bounds it |"
        yield "|---|---|---|"
        for row in slowest(members, COUNT):
            assert row.best is not None
            yield f"| {row.task.shape} | {row.best.speedup.ratio:.3f} | {reason_of(row).replace('|', '/')} |"
        yield ""


def losing(rows: Sequence[ShapeResult]) -> list[str]:
    """The shapes of the grid whose offline kernel is slower than AutoTuning, slowest first."""
    measured = [row for row in rows if is_headline(row) and row.task.mode is TimingMode.OFFLINE]
    return [row.task.shape for row in slowest(measured, len(measured)) if row.best and row.best.speedup.ratio < 1.0]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.h200.worst", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--environment", help="whose rows count; needed where they come from several")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--page", type=Path, help="a page whose tables are replaced")
    instead.add_argument("--shapes", action="store_true", help="print the shapes that are slower than AutoTuning")
    options = parser.parse_args()
    rows = counting(read_results([options.rows]), options.environment)
    text = "".join(f"{line}\n" for line in (losing(rows) if options.shapes else tables(rows)))
    if options.page:
        fill(options.page, MARKS, text)
    print(text, end="")


if __name__ == "__main__":
    main()
