"""Searches of the same shapes by different priors and budgets, side by side: what they find, and for how much work.

Run from the repository's root:
    python -m benchmarks.proposals.budgets benchmarks/results/h200_budgets_2026-11-24 --page docs/training/schedule_policy.md
FOLDER holds NAME.jsonl.gz (rows of `campaign results`) and NAME.sweep.zst (`trajectories export --format sweep`) for each arm.
Every arm ran in a home folder of its own: a search knew those of its arm before it, and no other. Shapes that all arms finished
count.

The best known ratio of a shape is the best of all arms and of the rows that are committed. A candidate counts as in
`benchmarks.h200.searches`. The first candidate's GPU seconds hold what every search pays once: operands, and AutoTuning. This
set-up is estimated as what the first candidate took longer than the median of the others, and is told apart.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log
from pathlib import Path
from statistics import geometric_mean, mean, median

from benchmarks.h200.marked_page import between, fill, table_row
from benchmarks.h200.searches import SUFFIX, Search, read_searches
from benchmarks.h200.summary import ROWS
from cudal2_agent.agent.bench.proposals.estimates import estimate
from cudal2_agent.agent.campaign.report.figures import CLASS_NAMES, CLASSES, class_of, has_result
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult

MARKS = between("benchmarks.proposals.budgets")
ROWS_SUFFIX = ".jsonl.gz"
NEAR = 0.98  # of the best known ratio
FIRST_NEAR = 0.95
HEAD = (
    "search", "over AutoTuning", "faster", "of the best known", "GPU s of set-up", "of candidates", "of the race", "host CPU s",
    "first within 5 % of the best known", "within 2 %", "after candidates, median", "after GPU s, median", "with set-up",
)  # fmt: skip


@dataclass(frozen=True)
class BudgetedSearch:
    """What one arm found for one shape, and the search behind it."""

    row: ShapeResult
    search: Search

    @property
    def ratio(self) -> float:
        """Speed over AutoTuning of the same rounds."""
        assert self.row.best is not None
        return self.row.best.speedup.ratio

    @property
    def set_up_s(self) -> float:
        """GPU seconds that a search pays once."""
        spent = self.search.spent_s
        others = [later - before for before, later in pairwise(spent)]
        return max(0.0, spent[0] - median(others)) if others else 0.0

    def near_at(self, best_known: float) -> float:
        """The number of candidates after which the best was near the best known; infinite where it never was."""
        found = (place for place, ratio in enumerate(self.search.best, 1) if ratio is not None and ratio >= NEAR * best_known)
        return next(found, inf)

    def near_s(self, best_known: float) -> float:
        """GPU seconds until then, the set-up included."""
        place = self.near_at(best_known)
        return inf if place == inf else self.search.spent_s[int(place) - 1]


Arms = Mapping[str, Mapping[str, BudgetedSearch]]  # by name, then by task


def read_arms(folder: Path) -> Arms:
    """The arms of a folder, of the tasks that all of them finished. Raises: UsageError."""
    names = sorted(file.name.removesuffix(ROWS_SUFFIX) for file in folder.glob(f"*{ROWS_SUFFIX}"))
    arms = {name: _read_arm(folder, name) for name in names}
    common = set.intersection(*map(set, arms.values())) if arms else set[str]()
    if not common:
        raise UsageError(
            f"{folder} holds no shape that all arms finished; name a folder with NAME{ROWS_SUFFIX} and NAME{SUFFIX}"
        )
    return {name: {task: found for task, found in arm.items() if task in common} for name, arm in arms.items()}


def best_known(arms: Arms, rows: Sequence[ShapeResult]) -> dict[str, float]:
    """The best ratio of each task, in the arms and in other rows of the same environment."""
    searched = [one for arm in arms.values() for one in arm.values()]
    own = {one.row.environment for one in searched}
    known = {one.row.task.id: 0.0 for one in searched}
    for row in [*(one.row for one in searched), *rows]:
        if row.best is not None and row.environment in own and row.task.id in known:
            known[row.task.id] = max(known[row.task.id], row.best.speedup.ratio)
    return known


def tables(arms: Arms, rows: Sequence[ShapeResult]) -> Iterator[str]:
    """Markdown: a line for each arm, classes of shapes, and each pair of arms."""
    known = best_known(arms, rows)
    yield f"{len(known)} shapes:\n"
    yield table_row(*HEAD)
    yield "|---" * len(HEAD) + "|"
    for name, arm in arms.items():
        yield table_row(f"`{name}`", *_figures(arm, known))
    yield ""
    yield from _class_table(arms)
    yield ""
    yield from _pair_table(arms)


def _read_arm(folder: Path, name: str) -> dict[str, BudgetedSearch]:
    steps = folder / f"{name}{SUFFIX}"
    if not steps.exists():
        raise UsageError(f"{steps} is missing; export the arm's steps with `trajectories export --format sweep`")
    by_run = {search.run_id: search for search in read_searches([steps])}
    rows = [row for row in read_results([folder / f"{name}{ROWS_SUFFIX}"]) if has_result(row)]
    found = [BudgetedSearch(row, by_run[row.run_id]) for row in rows if row.run_id in by_run]
    return {one.row.task.id: one for one in found if one.search.is_whole(one.row)}


def _figures(arm: Mapping[str, BudgetedSearch], known: Mapping[str, float]) -> Iterator[str]:
    found = [(one, known[task]) for task, one in arm.items()]
    yield f"{geometric_mean(one.ratio for one, _ in found):.3f}"
    yield f"{mean(one.ratio > 1 for one, _ in found):.0%}"
    yield f"{geometric_mean(one.ratio / best for one, best in found):.3f}"
    set_up_s = mean(one.set_up_s for one, _ in found)
    yield f"{set_up_s:.2f}"
    yield f"{mean(one.search.spent_s[-1] for one, _ in found) - set_up_s:.2f}"
    yield f"{mean(one.search.race_s for one, _ in found):.2f}"
    cpu_s = [one.row.host.cpu_s for one, _ in found if one.row.host is not None]
    yield f"{mean(cpu_s):.1f}" if cpu_s else "—"
    firsts = [one.search.best[0] or 0.0 for one, _ in found]
    near = sum(first >= FIRST_NEAR * best for first, (_, best) in zip(firsts, found, strict=True))
    yield f"{near} of {len(found)}"
    places = [one.near_at(best) for one, best in found]
    yield f"{sum(place < inf for place in places)} of {len(places)}"
    yield _middle(places, ".0f")
    yield _middle([one.near_s(best) - one.set_up_s for one, best in found], ".2f")
    yield _middle([one.near_s(best) for one, best in found], ".2f")


def _class_table(arms: Arms) -> Iterator[str]:
    """Classes are by the time of AutoTuning in the first arm."""
    classes = {task: class_of(one.row) for task, one in next(iter(arms.values())).items()}
    yield table_row("AutoTuning takes", "shapes", *(f"`{name}`" for name in arms))
    yield "|---" * (len(arms) + 2) + "|"
    for name in CLASSES:
        tasks = [task for task, own in classes.items() if own == name]
        if tasks:
            ratios = (geometric_mean(arm[task].ratio for task in tasks) for arm in arms.values())
            yield table_row(CLASS_NAMES[name], str(len(tasks)), *(f"{ratio:.3f}" for ratio in ratios))


def _pair_table(arms: Arms) -> Iterator[str]:
    """Paired by shape, with 95 % intervals over shapes."""
    yield table_row("search", "over", "speed", "interval", "at least as fast", "least", "most")
    yield "|---" * 7 + "|"
    names = list(arms)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            shares = [arms[second][task].ratio / one.ratio for task, one in arms[first].items()]
            found = estimate([log(share) for share in shares], exp)
            interval = f"{found.low:.3f}–{found.high:.3f}"
            held = f"{sum(share >= 1 for share in shares)} of {len(shares)}"
            extremes = (f"{min(shares):.3f}", f"{max(shares):.3f}")
            yield table_row(f"`{second}`", f"`{first}`", f"{found.value:.3f}", interval, held, *extremes)


def _middle(values: Sequence[float], form: str) -> str:
    """The median; infinite values count as the longest."""
    middle = median(values)
    return "—" if middle == inf else format(middle, form)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proposals.budgets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=Path, default=ROWS, help="committed rows, for the best known")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args()
    text = "".join(f"{line}\n" for line in tables(read_arms(options.folder), read_results([options.rows])))
    if options.page:
        fill(options.page, MARKS, text)
    print(text, end="")


if __name__ == "__main__":
    main()
