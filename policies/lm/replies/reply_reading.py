"""From a reply to a candidate, by the readers of the chat policy, and how much of a failed reply is right."""

from collections.abc import Mapping
from dataclasses import dataclass

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.policies.chat.replies.fenced_blocks import Malformed
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.replies.schedule_json import NamedSchedules
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, Unwritable

# Shares of validity: an object that could be read, a family of the task, its axes. Only a schedule that can be written has 1.
READABLE, FAMILY, AXES = 0.2, 0.2, 0.4


@dataclass(frozen=True)
class ScheduleReply:
    """A reply that was read. `validity`: from 0 to 1, and 1 only with a candidate. `problem`: why there is none."""

    candidate: Candidate | None
    validity: float
    problem: str = ""


def read_schedule(text: str, schedules: TaskSchedules, *, cut: bool = False) -> ScheduleReply:
    """The candidate of a reply that names exactly one schedule."""
    read = read_reply(text, cut=cut)
    if isinstance(read, Malformed):
        return ScheduleReply(None, 0.0, read.problem)
    if not isinstance(read, NamedSchedules) or len(read.values) != 1:
        return ScheduleReply(None, 0.0, "the reply is not one schedule")
    [values] = read.values
    written = schedules.expand(values)
    if isinstance(written, Unwritable):
        return ScheduleReply(None, _validity(values, schedules), "; ".join(written.reasons))
    return ScheduleReply(written, 1.0)


def _validity(values: object, schedules: TaskSchedules) -> float:
    """The share of a schedule that cannot be written which is right by itself."""
    if not isinstance(values, Mapping):
        return 0.0
    family = schedules.families.get(str(values.get("family")))
    given = {str(axis): value for axis, value in values.items() if axis != "family"}
    if family is None:
        return READABLE
    right = sum(not any(family.wrong_axes({axis: value})) for axis, value in given.items())
    return READABLE + FAMILY + AXES * (right / len(given) if given else 1.0)
