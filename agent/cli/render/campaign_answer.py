"""A campaign on stdout: counts, and speedups by class of shape."""

import json
from collections.abc import Sequence

from agent.campaign.overview import ClassFigures
from agent.cli.render.alignment import aligned
from policies.trajectories.campaigns.queue import FailedItem, QueueCounts

_SHOWN_FAILURES = 10


def print_campaign(
    name: str, counts: QueueCounts, classes: Sequence[ClassFigures], failed: Sequence[FailedItem] = (), *, as_json: bool
) -> None:
    if as_json:
        found = {"campaign": name, **counts.model_dump(), "classes": [one.model_dump() for one in classes]}
        print(json.dumps({**found, "failures": [{"shape": one.task.shape, "reason": one.reason} for one in failed]}))
        return
    print(f"campaign {name}: {counts.done} of {counts.total} shapes done, {counts.left} left, {counts.failed} failed")
    print("\n".join(class_lines(classes)))
    for one in failed[:_SHOWN_FAILURES]:
        print(f"failed: {one.task.shape} after {one.attempts} attempts: {' '.join(one.reason.split())}")
    if len(failed) > _SHOWN_FAILURES:
        print(f"… and {len(failed) - _SHOWN_FAILURES} more; --json has all")


def class_lines(classes: Sequence[ClassFigures]) -> list[str]:
    """One line per class of shapes by the time of AutoTuning."""
    head = ("AutoTuning takes", "shapes", "speedup", "without programmatic launch", "faster")
    rows = [
        (one.name, str(one.shapes), _times(one.geomean), _times(one.geomean_without), _share(one.faster)) for one in classes
    ]
    return aligned([head, *rows], right=frozenset(range(1, len(head))))


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3f}x"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
