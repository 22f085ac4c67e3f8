"""The live table of a campaign on stderr; without a terminal, a line per shape and now and then one of totals."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cudal2_agent.agent.campaign.overview import Overview
from cudal2_agent.agent.cli.render.alignment import aligned
from cudal2_agent.agent.cli.render.campaign_answer import class_lines
from cudal2_agent.contract.records.campaign import ShapeResult

TOTALS_S = 30.0  # between two lines of totals where there is no terminal


class CampaignTable:
    """`agent.campaign.campaign.Display`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
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
