"""Two searches of the same shapes against each other: two seeds, or a smaller and a larger budget.

Run from the repository's root: python -m benchmarks.h200.stability FIRST SECOND
FIRST, SECOND: files of rows of one environment; FILE@COMMIT takes the rows of one commit alone. Shapes that both have count.

A change is the second speedup over the first one, both over cuBLASLt-AutoTuning. It is within 2 % where the smaller of them is
at least 0.98 of the larger. Two seeds should agree within 2 % on 90 % of the shapes, and within 0.5 % in geometric mean. A
larger budget, as SECOND, should be no worse than 2 %. Classes are by the time of AutoTuning in FIRST.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean

from cudal2_agent.agent.campaign.report.figures import CLASS_NAMES, CLASSES, class_of, has_result
from cudal2_agent.agent.campaign.report.newest_rows import counting
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult

NEAR = 0.98
WORST = 5


@dataclass(frozen=True)
class SearchedTwice:
    """The same task searched twice."""

    first: ShapeResult
    second: ShapeResult

    @property
    def change(self) -> float:
        """Speedup of the second search over that of the first one."""
        assert self.first.best is not None
        assert self.second.best is not None
        return self.second.best.speedup.ratio / self.first.best.speedup.ratio

    @property
    def agrees(self) -> bool:
        return NEAR <= self.change <= 1 / NEAR

    @property
    def no_worse(self) -> bool:
        return self.change >= NEAR


def read_rows(word: str) -> list[ShapeResult]:
    """The rows of FILE or FILE@COMMIT. Raises: UsageError."""
    name, _, commit = word.partition("@")
    rows = [row for row in read_results([Path(name)]) if row.commit.startswith(commit)]
    if not rows:
        raise UsageError(f"{name} has no row of commit {commit}; leave out @{commit} or name a commit of its rows")
    return rows


def pairs_of(first: Sequence[ShapeResult], second: Sequence[ShapeResult]) -> list[SearchedTwice]:
    """The tasks with a result in both. Raises: UsageError where there is none, or where environments differ."""
    counting([*first, *second])  # times of several environments are not compared
    after = {row.task: row for row in counting(second) if has_result(row)}
    pairs = [SearchedTwice(row, after[row.task]) for row in counting(first) if has_result(row) and row.task in after]
    if not pairs:
        raise UsageError("the two have no shape in common; search the same shapes twice")
    return pairs


def report(pairs: Sequence[SearchedTwice]) -> Iterator[str]:
    """Markdown: the searches, a table by class, and the shapes that changed most."""
    for name, rows in (("first", [pair.first for pair in pairs]), ("second", [pair.second for pair in pairs])):
        commits = ", ".join(sorted({row.commit for row in rows}))
        tried, gpu_s = mean(row.candidates for row in rows), mean(row.gpu_seconds for row in rows)
        yield f"{name}: commit {commits}, {tried:.0f} candidates and {gpu_s:.1f} GPU s per shape"
    if len({row.commit for pair in pairs for row in (pair.first, pair.second)}) > 1:
        yield "the commits differ, so that this compares versions as well"
    yield ""
    yield "| AutoTuning takes | shapes | within 2 % | no worse than 2 % | geometric mean of changes |"
    yield "|---|---|---|---|---|"
    for name in CLASSES:
        yield from _line(CLASS_NAMES[name], [pair for pair in pairs if class_of(pair.first) == name])
    yield from _line("all", pairs)
    yield ""
    for pair in sorted(pairs, key=lambda pair: pair.change)[:WORST]:
        task = pair.first.task
        yield f"{task.shape} {task.layout.value} {task.mode.value}: {pair.change:.3f}"


def _line(name: str, pairs: Sequence[SearchedTwice]) -> Iterator[str]:
    if pairs:
        agree, no_worse = (sum(found) / len(pairs) for found in ([p.agrees for p in pairs], [p.no_worse for p in pairs]))
        change = geometric_mean([pair.change for pair in pairs])
        yield f"| {name} | {len(pairs)} | {agree:.0%} | {no_worse:.0%} | {change:.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.h200.stability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first")
    parser.add_argument("second")
    options = parser.parse_args()
    print("\n".join(report(pairs_of(read_rows(options.first), read_rows(options.second)))))


if __name__ == "__main__":
    main()
