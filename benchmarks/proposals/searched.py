"""How good the first candidates of committed searches were, by the best that the same search found.

Run from the repository's root: python -m benchmarks.proposals.searched [--rows FILE ...] [--steps FILE ...]
A candidate counts as in `benchmarks.h200.searches`. The best of a search is that of its race. Nothing was measured again, and
nobody else's best is known, so that a search of few candidates flatters its first ones; a proposal bench (`evaluate`) does not.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from benchmarks.h200.grid import grid_shapes, held_out
from benchmarks.h200.marked_page import table_row
from benchmarks.h200.searches import Search, read_searches
from cudal2_agent.agent.bench.proposals.estimates import estimate
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.records.campaign import ShapeResult

FOLDER = Path(__file__).parents[1] / "h200"
ROWS = [FOLDER / f"rows/{name}-2026-11-26.jsonl.gz" for name in ("offline", "tn", "nt", "server")]
STEPS = [FOLDER / "steps/all-2026-11-26.sweep.zst"]
FIRST_NEAR, BEST_NEAR, EARLY = 0.95, 0.98, 8
_GRID, _HELD_OUT = frozenset(grid_shapes()), held_out()


class FirstCandidates(NamedTuple):
    """Over the best of the same search: the first candidate, and the best of the first eight. `best_of`: candidates in all."""

    first: float
    early: float
    best_of: int


def judged(row: ShapeResult, search: Search) -> FirstCandidates | None:
    """None where no kernel of the search raced."""
    if row.best is None or not search.best:
        return None
    best, so_far = row.best.speedup.ratio, [ratio or 0.0 for ratio in search.best]
    return FirstCandidates(so_far[0] / best, so_far[min(EARLY, len(so_far)) - 1] / best, len(so_far))


def kind_of(row: ShapeResult) -> str:
    task = row.task
    where = "grid" if task.shape in _GRID else "off the grid"
    apart = ", held out" if task.shape in _HELD_OUT else ""
    return f"{task.mode}, {task.layout}, {where}{apart}"


def table(rows: Sequence[ShapeResult], searches: Sequence[Search]) -> Iterator[str]:
    """Markdown: a line for each kind of shapes."""
    by_run = {search.run_id: search for search in searches}
    kinds: dict[str, list[FirstCandidates]] = {}
    for row in rows:
        search = by_run.get(row.run_id or "")
        if search is not None and (found := judged(row, search)) is not None:
            kinds.setdefault(kind_of(row), []).append(found)
    yield table_row("searches", "shapes", "candidates", "first within 5 %", "best of 8 within 2 %", "first", "best of 8")
    yield "|---" * 7 + "|"
    for kind, members in sorted(kinds.items()):
        first = _share([one.first >= FIRST_NEAR for one in members])
        early = _share([one.early >= BEST_NEAR for one in members])
        means = [f"{geometric_mean([max(one[place], 1e-3) for one in members]):.3f}" for place in (0, 1)]
        yield table_row(kind, str(len(members)), str(max(one.best_of for one in members)), first, early, *means)


def _share(told: Sequence[bool]) -> str:
    one = estimate([float(each) for each in told])
    return f"{100 * one.value:.0f} % ({100 * one.low:.0f}–{100 * one.high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proposals.searched",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=Path, nargs="+", default=ROWS)
    parser.add_argument("--steps", type=Path, nargs="+", default=STEPS)
    options = parser.parse_args()
    print("\n".join(table(read_results(options.rows), list(read_searches(options.steps)))))


if __name__ == "__main__":
    main()
