"""A candidate that no language model wrote, in the reply form of the chat policy. Every sentence comes from a record."""

import re

from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, axes_in_use
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.chat.replies.forms import KernelFile, read_reply

_TICKS = re.compile(r"`{3,}")
_SENTENCE_CHARS = 400


def write_reply(candidate: AnyCandidate, observation: Observation) -> str | None:
    """The reply (Analysis, Design, Code) from which `read_reply` reads the candidate's source.

    None where no reply gives this candidate: a source without a plan, other flags or another compiler.
    """
    if not isinstance(candidate, Candidate) or candidate.flags or candidate.compiler != "nvrtc":
        return None
    fence = "`" * max((len(run) + 1 for run in _TICKS.findall(candidate.source)), default=3)
    code = f"{fence}cuda\n{candidate.source}{'' if candidate.source.endswith(chr(10)) else chr(10)}{fence}"
    reply = f"## Analysis\n{_analysis(observation)}\n\n## Design\n{_design(candidate, observation)}\n\n## Code\n{code}\n"
    read = read_reply(reply)
    return reply if isinstance(read, KernelFile) and read.source == candidate.source else None


def _analysis(observation: Observation) -> str:
    if observation.best is None and not observation.attempts:
        return "There is no kernel for this task yet."
    lines = [_standing(observation)]
    if observation.diagnosis:
        lines += _found(observation.diagnosis)
    return "\n".join(lines)


def _standing(observation: Observation) -> str:
    """Where the search stands: the best kernel and its time."""
    best, evaluation = observation.best, observation.best_evaluation
    tried = f"{len(observation.attempts)} earlier candidates are known."
    if best is None:
        return f"{tried} None of them is verified."
    time_us = evaluation.time_us if evaluation else None
    return f"{tried} The best kernel is {best.id[:8]}" + (f" with {time_us:.2f} us." if time_us is not None else ".")


def _found(diagnosis: Diagnosis) -> list[str]:
    reached = f", {diagnosis.roofline_fraction:.0%} of the roofline" if diagnosis.roofline_fraction is not None else ""
    lines = [f"The diagnosis ({diagnosis.basis}{reached}):"]
    lines += [
        f"{number}. {finding.bottleneck} (up to {finding.weight:.0%} of the time): {inline(finding.evidence, _SENTENCE_CHARS)}"
        for number, finding in enumerate(diagnosis.findings, 1)
    ]
    return lines if diagnosis.findings else [f"{lines[0]} no bottleneck stands out."]


def _design(candidate: Candidate, observation: Observation) -> str:
    """The axes of the schedule, and those that differ from the best kernel's."""
    schedule = candidate.origin.schedule
    if not schedule:
        return inline(candidate.origin.note, _SENTENCE_CHARS) or f"A kernel by the policy {inline(candidate.origin.policy)}."
    lines = [f"Schedule: {inline(' '.join(axes_in_use(schedule)), 2 * _SENTENCE_CHARS)}."]
    before = observation.best.origin.schedule if observation.best else None
    if before and before.get("family") == schedule.get("family"):
        changed = [f"{axis} {before.get(axis)} to {value}" for axis, value in schedule.items() if before.get(axis) != value]
        lines += [f"Changed from the best kernel: {inline(', '.join(changed), 2 * _SENTENCE_CHARS)}."] if changed else []
    return "\n".join(lines)
