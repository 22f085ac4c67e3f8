"""The schedules that a reply may name: kernel families with their axes, the prior's best, and what became of those tried.

All of it is made from the families' spaces for the task (`policies.schedule.named_schedules`).
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.contract.settings.options import ReplyKind
from cudal2_agent.policies.chat.prompts.history import time_us
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline
from cudal2_agent.policies.chat.tokens import estimate_tokens, take
from cudal2_agent.policies.schedule.named_schedules import FamilySchedules, TaskSchedules, schedules_for
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, PriorOf
from cudal2_agent.policies.schedule.policy import Precedents

EXAMPLES = 5
FEW_EXAMPLES = 3  # beside other forms of a reply
WINNERS = 4
SPELLED = 3  # numbers that follow one another and are still listed one by one
SLOWER = 3.0  # times the best predicted time, from which on a family is not worth its tokens
SHOWN_ATTEMPTS = 12
SHOWN_FINDINGS = 2
TASK_TOKENS = 250  # of the short prompt's other words
_SWITCH = (False, True)
_DEFINITION = re.compile(r"(?=`[\w*]+`: )")  # of an axis, or of several: `cluster_*`


@dataclass(frozen=True)
class PromptedReplies:
    """The forms of a reply that a prompt teaches; `call`: kernels are handed in by calls of tools, and there is no reply.

    `max_schedules`: how many schedules it may name, at least 1.
    """

    kind: ReplyKind | Literal["call"]
    max_schedules: int


@dataclass(frozen=True)
class ScheduleAdvice:
    """What is known of schedules: the prior of a task and chip, and those that led earlier runs, the nearest first."""

    prior_of: PriorOf = lambda *_: ANALYTIC
    precedents: Precedents = lambda *_: ()


def families_section(observation: Observation, replies: PromptedReplies, advice: ScheduleAdvice) -> str:
    """The section of a prompt whose reply may hold schedules, among other forms; empty where it may not."""
    if replies.kind != "any":
        return ""
    said = (
        f"Instead of a source, a reply may name {_up_to(replies.max_schedules)} of these families as JSON, "
        "with values from the lists below. Axes that are left out take the values of the fastest predicted "
        "schedule that has the others."
    )
    return f"# Kernel families\n\n{said}\n\n{_families(_schedules(observation), advice, explained=False)}"


def _up_to(schedules: int) -> str:
    return "one schedule" if schedules == 1 else f"a list of up to {schedules} schedules"


def schedule_values(observation: Observation, tokens: int, advice: ScheduleAdvice | None = None) -> dict[str, str]:
    """The values of the short prompt's template, for replies that hold schedules only. `advice`: the analytic prior if None."""
    advice = advice or ScheduleAdvice()
    schedules = _schedules(observation)
    families = f"# Kernel families\n\n{_families(schedules, advice, explained=True)}"
    findings = fenced("\n".join(_findings(observation.diagnosis))) if observation.diagnosis else ""
    tried = list(_tried(observation.attempts, schedules))
    taken = take(tried, tokens - TASK_TOKENS - estimate_tokens(families) - estimate_tokens(findings))
    shown = fenced("\n".join(tried[position] for position in taken)) if taken else ""
    return {"families": families, "tried": shown, "findings": findings}


def _schedules(observation: Observation) -> TaskSchedules:
    return schedules_for(gemm(observation.task, "a schedule of a reply"), observation.chip)


def _families(schedules: TaskSchedules, advice: ScheduleAdvice, *, explained: bool) -> str:
    """The families that are worth their tokens, the prior's best schedules, and those that led earlier runs.

    `explained`: with the meaning of each axis.
    """
    prior = advice.prior_of(schedules.task, schedules.chip)
    fastest_us = min(family.ranked[0].predicted_us for family in schedules.families.values())
    shown = [one for one in schedules.families.values() if one.ranked[0].predicted_us <= SLOWER * fastest_us]
    best = [
        f"{one.predicted_us:.2f} us {json.dumps(schedules.families[one.schedule.family].brief(one.values))}"
        for one in schedules.best(EXAMPLES if explained else FEW_EXAMPLES, prior)
        if one.schedule.family in {family.name for family in shown}
    ]
    said = f"Predicted by the {prior.name} prior, and neither measured nor tried yet, unless what was tried has them:"
    told = [*(_family(one, explained=explained) for one in shown), f"{said}\n\n{fenced(chr(10).join(best))}"]
    return "\n\n".join([*told, *_winners(schedules, advice)])


def _winners(schedules: TaskSchedules, advice: ScheduleAdvice) -> Iterator[str]:
    """The schedules of earlier runs that can be written for the task, and what cuBLASLt takes on its very shape."""
    found = list(advice.precedents(schedules.task, schedules.chip))
    named = [(one, brief) for one in found if (brief := schedules.brief(one.schedule)) is not None][:WINNERS]
    if named:
        lines = [f"{one.speedup:.3f} at {one.task.shape} {json.dumps(brief)}" for one, brief in named]
        said = "Measured on this chip, speedup over cuBLASLt-AutoTuning. Name one to have it tried; what leads is shown whole:"
        yield f"{said}\n\n{fenced(chr(10).join(lines))}"
    if own := [one.baseline_us for one in found if one.task.shape == schedules.task.shape and one.baseline_us]:
        yield f"cuBLASLt-AutoTuning, which is to be beaten, took {own[0]:.2f} us on this shape there."


def _family(one: FamilySchedules, *, explained: bool) -> str:
    """A family in a sentence, and the axes that have more than one value for the task."""
    axes = [
        f"{axis}: {', '.join(map(json.dumps, values)) if explained else _listed(values)}"
        for axis, values in one.choices.items()
        if values != _SWITCH
    ]
    switches = [axis for axis, values in one.choices.items() if values == _SWITCH]
    axes += [f"{', '.join(switches)}: false, true"] if switches else []
    about = (inspect.getdoc(type(one.family)) or "").partition("\n")[0]
    listed = "\n".join(f"- {axis}" for axis in axes) if explained else f"- {'; '.join(axes)}"
    return f"`{one.name}`: {about} {_meaning(one, explained=explained)}\n{listed}"


def _listed(values: Sequence[ScheduleValue]) -> str:
    """The values as JSON has them; whole numbers that follow one another by their first and last."""
    whole = all(type(value) is int for value in values)
    if whole and len(values) > SPELLED and list(values) == list(range(int(values[0]), int(values[0]) + len(values))):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(json.dumps, values))


def _meaning(one: FamilySchedules, *, explained: bool) -> str:
    """What the documentation of the schedule says of it, and where explained of the axes that have more than one value."""
    documented = " ".join((inspect.getdoc(one.family.schedule) or "").split())
    general, *definitions = _DEFINITION.split(documented)
    said = [
        text for text in definitions if explained and any(fnmatch(axis, text[1:].partition("`")[0]) for axis in one.choices)
    ]
    return " ".join([general.strip(), *(text.strip() for text in said)]).strip()


def _tried(attempts: Sequence[Attempt], schedules: TaskSchedules) -> Iterator[str]:
    """The fastest attempts, then the latest without a time, each on a line."""
    timed = sorted((one for one in attempts if time_us(one) is not None), key=lambda one: (one.time_us is None, time_us(one)))
    rest = [one for one in reversed(attempts) if time_us(one) is None]
    latest = {one.candidate_id: one for one in [*timed, *rest]}
    for attempt in list(latest.values())[:SHOWN_ATTEMPTS]:
        yield f"{_outcome(attempt)}: {_named(attempt.schedule, schedules)}"


def _named(values: dict[str, ScheduleValue] | None, schedules: TaskSchedules) -> str:
    """A schedule in the form of a reply, with the fewest axes; a kernel without one by that."""
    if values is None:
        return "a kernel without a schedule"
    return json.dumps(schedules.brief(values) or values)


def _outcome(attempt: Attempt) -> str:
    if attempt.time_us is not None:
        return f"{attempt.time_us:.2f} us measured"
    if attempt.modelled_us is not None:
        return f"{attempt.modelled_us:.2f} us predicted"
    status = attempt.status.replace("_", " ")
    return f"{status} ({inline(attempt.message, 80)})" if attempt.message else status


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    for finding in diagnosis.findings[:SHOWN_FINDINGS]:
        yield f"{finding.bottleneck}, up to {finding.weight:.0%} of the time: {inline(finding.evidence)}"
        yield f"what usually helps: {inline(finding.remedy)}"
