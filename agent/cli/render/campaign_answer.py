"""A campaign on stdout: counts, and speedups by class of shape."""

import json
from collections.abc import Sequence

from cudal2_agent.agent.campaign.overview import CampaignCost, ClassFigures, class_figures, cost_of
from cudal2_agent.agent.cli.render.alignment import aligned, cell
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.store.campaign_queue import FailedItem, QueueCounts

_SHOWN_FAILURES = 10


def print_campaign(
    name: str,
    counts: QueueCounts,
    results: Sequence[ShapeResult],
    failed: Sequence[FailedItem] = (),
    *,
    as_json: bool,
) -> None:
    classes, cost = class_figures(results), cost_of(results)
    if as_json:
        found = {"campaign": name, **counts.model_dump(), "classes": [one.model_dump() for one in classes]}
        failures = [{"shape": one.task.shape, "reason": one.reason} for one in failed]
        print(json.dumps({**found, "cost": cost.model_dump(), "failures": failures}))
        return
    print(f"campaign {name}: {counts.done} of {counts.total} shapes done, {counts.left} left, {counts.failed} failed")
    print("\n".join(class_lines(classes)))
    if results:
        print(cost_line(cost))
    for one in failed[:_SHOWN_FAILURES]:
        print(f"failed: {one.task.shape} after {one.attempts} attempts: {' '.join(one.reason.split())}")
    if len(failed) > _SHOWN_FAILURES:
        print(f"… and {len(failed) - _SHOWN_FAILURES} more; --json has all")


def class_lines(classes: Sequence[ClassFigures]) -> list[str]:
    """One line per class of shapes by the time of AutoTuning."""
    head = ("AutoTuning takes", "shapes", "speedup", "without programmatic launch", "faster")
    rows = [
        (
            one.name,
            str(one.shapes),
            cell(one.geomean, ".3f", "x"),
            cell(one.geomean_without, ".3f", "x"),
            cell(one.faster, ".0%"),
        )
        for one in classes
    ]
    return aligned([head, *rows], right=frozenset(range(1, len(head))))


def cost_line(cost: CampaignCost) -> str:
    """What a shape took, and the memory of the campaign; empty before the first shape."""
    per_shape = [
        f"{value:.{digits}f} {unit}"
        for value, digits, unit in (
            (cost.candidates, 0, "candidates"),
            (cost.gpu_s, 1, "GPU s"),
            (cost.host_cpu_s, 1, "host CPU s"),
        )
        if value is not None
    ]
    if cost.search_peak_mib is None or cost.campaign_peak_mib is None:
        memory = ""
    else:
        memory = f"; memory at most {cost.search_peak_mib:,.0f} MiB per search, {cost.campaign_peak_mib:,.0f} MiB in all"
    return f"per shape {', '.join(per_shape)}{memory}" if per_shape else ""
