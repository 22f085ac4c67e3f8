"""The attribution of a run's improvements as text, for a terminal and for the report.

Text of a model or of an indexed file is shown without control characters. In the report it is code, so that it cannot change
the page's format.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cudal2_agent.agent.report.attribution import Improvement, Sighting, improvements, sightings
from cudal2_agent.agent.report.provenance import ExemplarSeen, Seen
from cudal2_agent.agent.report.replies import Replies, sum_up
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.trajectory import Trajectory

NOTE_CHARS = 300
SIGHTINGS = 10
NO_IMPROVEMENT = "No candidate with a known time led; there is nothing to explain."
SEEN = "what stood in prompts of candidates that improved the time, and of others (not proven to be the cause)"


@dataclass(frozen=True)
class Why:
    """A run's improvements, what stood in prompts, and what was asked of a chat server."""

    better: list[Improvement]
    seen: list[Sighting]
    replies: Replies | None

    def lines(self) -> list[str]:
        return why_lines(self.better, self.seen, self.replies)

    def as_json(self) -> dict[str, Any]:
        return {
            "improvements": [one.model_dump(mode="json") for one in self.better],
            "seen": [one.model_dump(mode="json") for one in self.seen],
            "replies": self.replies.model_dump(mode="json") if self.replies else None,
        }


def explain(trajectory: Trajectory) -> Why:
    run, steps, observations = trajectory.run, trajectory.steps, trajectory.observations
    better = improvements(steps, observations, run.task, run.chip)
    return Why(better, sightings(steps, observations, better), sum_up(trajectory.exchanges, observations))


def why_lines(better: Sequence[Improvement], seen: Sequence[Sighting], replies: Replies | None) -> list[str]:
    """The text for a terminal."""
    lines = [] if better else [NO_IMPROVEMENT]
    for improvement in better:
        lines += ["", _head(improvement), *(f"  {name}: {_plain(text)}" for name, text in _details(improvement))]
    if seen:
        lines += ["", f"{SEEN}:"]
        lines += [f"  {_counts(one)}  {one.kind} {_plain(one.name)}" for one in seen[:SIGHTINGS]]
    return [*lines, *(["", *replies_lines(replies)] if replies else [])]


def why_section(better: Sequence[Improvement], seen: Sequence[Sighting] = ()) -> str:
    """The report's section in Markdown; empty where nothing led."""
    if not better:
        return ""
    lines = ["## Why", ""]
    for improvement in better:
        lines += [f"- {_head(improvement)}", *(f"  - {name}: {_code(text)}" for name, text in _details(improvement))]
    if seen:
        lines += [
            "",
            f"{SEEN[0].upper()}{SEEN[1:]}:",
            "",
            *(f"- {_counts(one)}: {one.kind} {_code(one.name)}" for one in seen[:SIGHTINGS]),
        ]
    return "\n".join(lines)


def replies_lines(replies: Replies) -> list[str]:
    """Requests, tokens and cost of a chat server, and why replies were dropped."""
    estimated = f" (of {replies.estimated} by estimate)" if replies.estimated else ""
    cost = f"; cost {replies.cost:.4g}" if replies.cost else ""
    called = f"; tool calls: {replies.calls}" if replies.calls else ""
    lines = [
        f"requests: {replies.requests} to {', '.join(map(_plain, replies.models))}; candidates: {replies.candidates}{called}",
        f"tokens: {replies.prompt_tokens} in prompts, {replies.reply_tokens} in replies{estimated}{cost}",
    ]
    if replies.shown:
        lines.append(
            f"knowledge: of {replies.shown} pieces shown, {replies.cited} were cited as used, and {replies.used} left a name "
            "or a figure in the reply that stands nowhere else in the prompt"
        )
    return lines + [f"  dropped {count:>3}: {_plain(reason)}" for reason, count in replies.dropped.items()]


def _head(one: Improvement) -> str:
    """Step, round, candidate, time, and the time before it."""
    said = "measured" if one.measured else "predicted"
    before = f"; {one.before_us:.2f} us before, {one.ratio:.3f}x" if one.before_us is not None else "; the first that passed"
    return f"step {one.index}, round {one.round}: {_plain(one.label)}, {one.after_us:.2f} us {said}{before}"


def _details(one: Improvement) -> Iterable[tuple[str, str]]:
    """(kind, text) of everything that the author saw, the most direct influence first."""
    seen = one.seen
    if one.note:
        yield "design", one.note
    for reason in seen.repaired:
        yield "repairs", reason
    if not seen.repaired and one.parents:
        yield "written from", ", ".join(parent[:8] for parent in one.parents)
    if seen.diagnosis and seen.diagnosis.findings:
        yield f"diagnosis{_whose(seen)}", _findings(seen.diagnosis)
    for change in seen.differences:
        yield "profile", f"{change.quantity} {change.before:g} → {change.after:g} {change.unit}, {change.meaning}"
    for exemplar in seen.exemplars:
        yield "exemplar", _exemplar(exemplar)
    if one.prompt_hash is None and seen.chunks:
        yield "chunks found in its round, read by no model", str(len(seen.chunks))
    for chunk in seen.chunks if one.prompt_hash is not None else ():
        yield "chunk", f"{chunk.place} {chunk.symbol}"
    if one.prompt_hash is not None:
        yield "prompt", one.prompt_hash


def _whose(seen: Seen) -> str:
    basis = seen.diagnosis.basis if seen.diagnosis else ""
    return f" of {seen.diagnosed[:8]} ({basis})" if seen.diagnosed else f" ({basis})"


def _findings(diagnosis: Diagnosis) -> str:
    return "; ".join(f"{finding.bottleneck}: {finding.evidence} ({finding.remedy})" for finding in diagnosis.findings)


def _exemplar(exemplar: ExemplarSeen) -> str:
    time = f", {exemplar.time_us:.2f} us" if exemplar.time_us is not None else ""
    speedup = f", {exemplar.speedup:.3f}x cuBLASLt-AutoTuning" if exemplar.speedup is not None else ""
    return f"{exemplar.candidate_id[:8]} {exemplar.label}{time}{speedup}"


def _counts(one: Sighting) -> str:
    return f"improved {one.improved:>2}, others {one.others:>3}"


def _plain(text: str) -> str:
    """One line without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= NOTE_CHARS else line[: NOTE_CHARS - 1] + "…"


def _code(text: str) -> str:
    return f"`{_plain(text).replace('`', chr(39))}`"
