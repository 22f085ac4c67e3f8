"""`cudal2-agent trajectories stats`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.trajectories.selecting import filtered, opened

if TYPE_CHECKING:
    from cudal2_agent.store.filters import StepFilter
    from cudal2_agent.store.statistics import Speedups, StoreStatistics

EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories stats --arch sm_90a --by environment"


class Grouping(StrEnum):
    """What `--by` groups by."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    SHAPE = "shape"
    DAY = "day"


@filtered
def stats(
    selected: "StepFilter",
    by: Annotated[
        Grouping | None, typer.Option("--by", help="Also a row for each; the day is that on which a run started, in UTC.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Counts of the selected steps, their speedups over AutoTuning, withheld rewards, and the size of the store."""
    from cudal2_agent.store.statistics import store_statistics

    with opened(selected) as (store, wanted):
        found = store_statistics(store, wanted, by.value if by else None)
    print(found.model_dump_json() if as_json else "\n".join(_lines(found)))


def _lines(found: "StoreStatistics") -> list[str]:
    size = f", {found.bytes_per_step:,.0f} B per step" if found.bytes_per_step is not None else ""
    counted = {
        "outcomes": found.outcomes,
        "policies": found.policies,
        "archs": found.archs,
        "chips": found.chips,
        "environments": found.environments,
    }
    lines = [f"{found.steps:,} steps of {found.runs:,} runs, {found.shapes:,} shapes"]
    lines += [line for name, counts in counted.items() for line in _counts(name, counts)]
    lines += [
        f"{'rewards':<14}withheld from {found.withheld:,} measured steps",
        f"{'speedups':<14}{_speedups(found.speedups)}",
        f"{'store':<14}{found.store_bytes / 1e6:,.1f} MB{size}",
    ]
    return [*lines, *_groups(found)]


def _counts(name: str, counts: dict[str, int]) -> list[str]:
    return [f"{name if place == 0 else '':<14}{count:>9,}  {value}" for place, (value, count) in enumerate(counts.items())]


def _speedups(found: "Speedups | None") -> str:
    if found is None:
        return "nothing was measured"
    spread = f"{found.minimum:.3f} – {found.maximum:.3f}, median {found.median:.3f}"
    return (
        f"best per shape, over AutoTuning: geometric mean {found.geometric_mean:.3f}x ({spread})\n"
        f"{'':<14}{found.above_1:.1%} of {found.shapes:,} shapes are above 1"
    )


def _groups(found: "StoreStatistics") -> list[str]:
    from cudal2_agent.agent.cli.render.alignment import aligned

    if found.by is None:
        return []
    head = (found.by, "runs", "steps", "measured", "geo. mean", "above 1")
    rows: list[tuple[str, ...]] = [head]
    for group in found.groups:
        own = group.speedups
        best = (f"{own.geometric_mean:.3f}x", f"{own.above_1:.1%}") if own else ("–", "–")
        rows.append((group.name, f"{group.runs:,}", f"{group.steps:,}", f"{group.measured:,}", *best))
    return ["", *aligned(rows, right=frozenset(range(1, len(head))))]
