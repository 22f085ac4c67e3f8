"""Progress on stderr. Without a terminal it prints plain lines."""

import textwrap
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from cudal2_agent.agent.cli.render.meter import Meter
from cudal2_agent.agent.cli.render.plain_console import PlainConsole
from cudal2_agent.agent.report.one_line import predicted_of, result_of
from cudal2_agent.contract.events import (
    CandidateBuilt,
    Event,
    IndexProgress,
    Notice,
    Profiled,
    Proposed,
    RaceStarted,
    Replied,
    Replying,
    RunFinished,
    RunStarted,
    StageStarted,
    StepFinished,
    StoreProgress,
    ToolUsed,
    Witnessed,
    WorkerRestarted,
)
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured, Witness

LINE_CHARS = 100
_INDENT = "  "


@dataclass(frozen=True)
class StatusLine:
    """The current stage with its time, the best result, and the time left. Every frame draws it anew."""

    doing: str
    best: str
    deadline_s: float | None
    since_s: float

    def __rich__(self) -> Text:
        now_s = time.monotonic()
        took_s = now_s - self.since_s
        doing = f"{self.doing}, {took_s:.0f} s" if took_s >= 1.0 else self.doing
        left = f"{max(self.deadline_s - now_s, 0.0):.0f} s left" if self.deadline_s else ""
        return Text("  ".join(part for part in (doing, self.best, left) if part))


class Progress:
    """Draws events: one line per step, and on a terminal a status line with the stage, the best result and the time left.

    A row holds at most LINE_CHARS characters; `trajectories show` prints all axes of a schedule. Indexing and commands
    over the store are a status line with rate and time left, and without a terminal an occasional line.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PlainConsole()
        self._status: Status | None = None
        self._deadline_s: float | None = None
        self._best = ""
        self._written: dict[int, int] = {}  # characters so far, by reply in progress
        self._meter = Meter()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def emit(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case Proposed():
                dropped = f", {event.dropped} dropped" if event.dropped else ""
                self._written.clear()
                self._line(f"round {event.round}: {event.count} candidates from {event.policy}{dropped}")
                self._now("building")
            case CandidateBuilt():
                self._now(f"built {event.candidate_id[:8]}")
            case StageStarted():
                self._now(f"{event.stage} {event.candidate_id[:8]}")
            case RaceStarted():
                self._now(f"final: {event.count} candidates")
            case StepFinished():
                self._step(event)
            case Profiled():
                said = event.bottleneck or "no bottleneck"
                self._line(f"profiled {event.candidate_id[:8]} in {event.seconds:.1f} s: {said}")
            case Witnessed():
                self._witnessed(event)
            case Replying():
                self._written[event.sample] = event.characters
                self._now(self._writing())
            case Replied():
                self._replied(event)
            case ToolUsed():
                self._line(
                    _fitted(f"tool {event.round}.{event.sample + 1}: {event.tool} in {event.seconds:.1f} s: {event.said}")
                )
            case WorkerRestarted():
                self._line(f"worker restarted: {event.reason}")
            case Notice():
                self._line(f"note: {event.message}")
            case IndexProgress() | StoreProgress():
                self._counted(event)
            case RunFinished():
                self._line(f"run {event.run_id}: {event.reason}, after {event.steps} steps")

    def _start(self, event: RunStarted) -> None:
        self._deadline_s = time.monotonic() + 60 * event.minutes
        resumed = f", resumed at step {event.resumed_at_step}" if event.resumed_at_step else ""
        self._line(f"run {event.run_id} on {event.device}: up to {event.budget} candidates, {event.minutes:.3g} min{resumed}")
        self._now("waiting for candidates")

    def _step(self, event: StepFinished) -> None:
        self._line(_fitted(f"step {event.index:>3}  {event.label}  {result_of(event.evaluation)}"))
        self._note_best(event)
        self._now("next")

    def _witnessed(self, event: Witnessed) -> None:
        """One line. The report has a long reason in full."""
        match event.evaluation:
            case Measured(witness=Witness() as witness):
                said = {"agreed": "agrees", "in-part": "agrees, run in part"}.get(witness.status, f"none: {witness.reason}")
            case _:
                said = f"refused: {event.evaluation.fault}"
        self._line(_fitted(f"second witness {event.candidate_id[:8]} in {event.seconds:.1f} s: {' '.join(said.split())}"))
        self._note_best(event)
        self._now("next")

    def _note_best(self, event: StepFinished | Witnessed) -> None:
        """Keeps the time of the best candidate for the status line."""
        if event.candidate_id != event.best_candidate_id:
            return
        if event.evaluation.time_us is not None:
            self._best = f"best {event.evaluation.time_us:.2f} us"
        elif isinstance(event.evaluation, Unmeasured):
            self._best = f"best {predicted_of(event.evaluation.prediction)}"

    def _replied(self, event: Replied) -> None:
        count = f"{event.candidates} candidates" if event.candidates > 1 else "a candidate" if event.candidates else ""
        said = ", ".join(part for part in (count, event.problem) if part)
        turn = f", turn {event.turn + 1}" if event.turn else ""
        total = f"{event.total_tokens:,} tokens" + (f", {event.total_cost:.4g} in money" if event.total_cost else "")
        took = f"{event.usage.completion_tokens:,} tokens in {event.seconds:.0f} s"
        self._line(f"reply {event.round}.{event.sample + 1}{turn}: {took}, {said}; {total} so far")
        self._written.pop(event.sample, None)
        self._now(self._writing())

    def _writing(self) -> str:
        """One text for all replies in progress, because they share one status line."""
        if not self._written:
            return "waiting for replies"
        replies = "1 reply" if len(self._written) == 1 else f"{len(self._written)} replies"
        return f"{replies} in progress, {sum(self._written.values()):,} characters"

    def _counted(self, event: IndexProgress | StoreProgress) -> None:
        line = self._meter.line(event)
        if self._status is not None:
            self._status.update(escape(line))
        elif self._meter.is_due(event):
            self._line(line)

    def _now(self, doing: str) -> None:
        if self._status is not None:
            self._status.update(StatusLine(doing, self._best, self._deadline_s, time.monotonic()))

    def _line(self, text: str) -> None:
        """Prints a line, in several rows where it is longer than LINE_CHARS; no word is split."""
        rows = textwrap.wrap(text, LINE_CHARS, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
        self._console.print("\n".join(rows), markup=False)


def _fitted(line: str) -> str:
    """A line that is cut where it is longer than LINE_CHARS; the store has the whole of it."""
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
