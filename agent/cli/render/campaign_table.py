"""A campaign: its answer on stdout, and its live table on stderr.

Without a terminal, the table is a line per shape and now and then one of totals.
"""

import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cudal2_agent.agent.campaign.watching import CampaignCost, ClassFigures, Overview, class_figures, cost_of
from cudal2_agent.agent.cli.render.alignment import aligned, cell
from cudal2_agent.agent.cli.render.plain_console import PlainConsole
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.store.campaign_queue import FailedItem, QueueCounts

TOTALS_S = 30.0  # between two lines of totals where there is no terminal
_SHOWN_FAILURES = 10


class CampaignTable:
    """`agent.campaign.campaign.Display`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PlainConsole()
        self._live: Live | None = None
        self._totals_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finished(self, result: ShapeResult) -> None:
        self._console.print(result_line(result), markup=False)

    def show(self, overview: Overview) -> None:
        if self._live is not None:
            lines = ["", *totals(overview), "", *class_lines(overview.classes), "", *workers(overview)]
            self._live.update(Group(*(Text(line) for line in lines)), refresh=True)
        elif time.monotonic() - self._totals_s > TOTALS_S:
            self._totals_s = time.monotonic()
            self._console.print("; ".join(totals(overview)), markup=False)

    def note(self, message: str) -> None:
        self._console.print(f"note: {' '.join(message.split())}", markup=False)


def result_line(result: ShapeResult) -> str:
    """One shape in one line."""
    task = result.task
    cost = f"{result.candidates} candidates, {result.seconds:.1f} s"
    if result.best is None:
        return f"{task.shape} {task.layout}: {result.reason}; {cost}"
    best, plain = result.best, result.best_without
    without = f", {plain.speedup.ratio:.3f}x without programmatic launch" if plain and best.programmatic else ""
    return f"{task.shape} {task.layout}: {best.time_us:.2f} us, {best.speedup.ratio:.3f}x{without}; {cost}"


def totals(overview: Overview) -> list[str]:
    left = f"{_clock(overview.left_s)} left" if overview.left_s is not None else "time left unknown"
    busy = f"GPUs busy {overview.busy:.0%}" if overview.busy is not None else "GPUs busy –"
    failed = f", {overview.failed} failed" if overview.failed else ""
    proofs = f", {overview.unproved} to prove" if overview.unproved else ""
    return [
        f"campaign {overview.name}: {overview.done} of {overview.total} shapes{failed}{proofs}; {left}",
        f"{overview.candidates_per_s:.2f} candidates/s, {busy}, {_clock(overview.spent_s)} so far",
    ]


def workers(overview: Overview) -> list[str]:
    now_s = time.monotonic()
    rows = [(one.device, f"{one.candidates}", _clock(now_s - one.since_s), one.doing or "–") for one in overview.workers]
    return aligned([("worker", "candidates", "for", "doing"), *rows], right=frozenset((1, 2)), flexible=3)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
