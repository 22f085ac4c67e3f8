"""The answer of `bench` about published modules: a verdict by cases, the times beside all baselines, what is suspicious."""

import json
from collections.abc import Sequence
from typing import Any

from cudal2_agent.contract.reward.speedup import Speedup, median_us
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRow


def print_published(rows: Sequence[PublishedRow], as_json: bool) -> None:
    if as_json:
        print(json.dumps([as_row(row) for row in rows]))
        return
    print("\n".join(line for row in rows for line in _lines(row)))


def as_row(row: PublishedRow) -> dict[str, Any]:
    """The record with what follows from it: medians, speedups with their intervals, the verdict."""
    speedups = {"fastest": row.over_fastest(), "eager": row.over_eager()}
    times = [each for each in (row.call, row.graph, *row.baselines) if each is not None]
    return row.model_dump(mode="json") | {
        "right": row.right,
        "wrong_on": row.wrong_on,
        "us": {each.name: round(median_us(each), 3) for each in times},
        "speedup_over": {name: each.model_dump() for name, each in speedups.items() if each is not None},
    }


def _lines(row: PublishedRow) -> list[str]:
    if row.status == "failed":
        return [f"{row.file}: failed: {row.message}", *_told(row)]
    verdict = f"right on {len(row.tests)} tests" if row.right else f"WRONG on {', '.join(row.wrong_on)}"
    lines = [f"{row.file}: {verdict}; unproven, never rewarded"]
    lines += [f"  {test.tier}/{test.name}: {test.message}" for test in row.tests if not test.passed]
    for each in (row.call, row.graph, *row.baselines):
        if each is not None:
            lines.append(f"  {each.name:<22} {median_us(each):>10.2f} us   {each.detail}".rstrip())
    if (fastest := row.over_fastest()) is not None:
        lines.append(f"  over the fastest, {fastest.baseline}: {_interval(fastest)}")
    if (eager := row.over_eager()) is not None:
        lines.append(f"  calls over eager's calls: {_interval(eager)}")
    if row.status == "judged":
        lines.append("  not timed: inputs of timed calls are read-only")
    return [*lines, f"  weights: {row.weights}", *_told(row)]


def _interval(speedup: Speedup) -> str:
    return f"{speedup.ratio:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]"


def _told(row: PublishedRow) -> list[str]:
    return [*(f"  suspicious: {each}" for each in row.findings), *(f"  note: {each}" for each in row.notes)]
