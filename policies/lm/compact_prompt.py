"""The prompt for a small language model: the task, the chip, the axes of the families worth trying, and scored schedules.

The reply is one schedule as one line of JSON, which `policies.chat.replies` reads. A prompt takes 400 to 560 of SmolLM2's
tokens, and 50 to 90 more for each schedule shown; so does a reply. A model that
learned other axes names schedules that no longer exist: `axes_fingerprint`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.exchange import Message
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.contract.reward.roofline import arithmetic_us, memory_us
from cudal2_agent.policies.chat.prompts.schedules import SLOWER
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.named_schedules import FamilySchedules, TaskSchedules

SYSTEM = (
    "You choose a GPU kernel's schedule for one matrix product. Reply with one JSON object on one line: the family, and axes "
    "with values from its list. Axes left out are filled in by a cost model."
)
SHOWN = 2  # scored schedules of a prompt
_TILE = 128
_SWITCH = (False, True)
_MIN_RUN = 4  # numbers in equal steps that are written as a range


@dataclass(frozen=True)
class ShownSchedule:
    """A schedule with its score in words, such as `1.08x`."""

    score: str
    values: dict[str, ScheduleValue]


def messages_of(schedules: TaskSchedules, shown: Sequence[ShownSchedule] = ()) -> tuple[Message, ...]:
    """The prompt for a task. `shown`: schedules that were tried; those that the families cannot write are left out."""
    lines = [
        _task_line(schedules.task),
        _chip_line(schedules.task, schedules.chip),
        *map(_family_line, _worth_trying(schedules)),
    ]
    lines += [f"{one.score}: {written}" for one in shown if (written := reply_of(schedules, one.values)) is not None]
    lines.append("Name a faster schedule." if shown else "Name the fastest schedule.")
    return Message(role="system", content=SYSTEM), Message(role="user", content="\n".join(lines))


def reply_of(schedules: TaskSchedules, values: dict[str, ScheduleValue]) -> str | None:
    """The reply that names a schedule, with the fewest axes; None where the task's families cannot write it."""
    brief = schedules.brief(values)
    return None if brief is None else _reply(brief)


def replies_of(schedules: TaskSchedules, without: Sequence[Mapping[str, ScheduleValue]] = ()) -> list[str]:
    """The replies that name a ranked schedule of a family that the prompt shows, but for the schedules `without`."""
    left_out = [dict(values) for values in without]
    return [
        _reply(brief)
        for family in _worth_trying(schedules)
        for one, brief in zip(family.ranked, family.briefs(), strict=True)
        if one.values not in left_out
    ]


def _reply(brief: Mapping[str, ScheduleValue]) -> str:
    return json.dumps(brief, separators=(",", ":"))


def score_of(attempt: Attempt) -> str | None:
    """The score of an attempt as prompts show it; None where it has none."""
    if attempt.speedup is not None:
        return speedup_score(attempt.speedup)
    return None if attempt.modelled_us is None else f"{attempt.modelled_us:.2f}us"


def speedup_score(speedup: float) -> str:
    """Speedup over cuBLASLt-AutoTuning in a prompt."""
    return f"{speedup:.2f}x"


def _task_line(task: GemmTask) -> str:
    kinds = f"{task.element} {task.accumulate} {task.layout} {task.mode}{task.epilogue}"
    return f"M={task.m} N={task.n} K={task.k} {kinds}, {ceil(task.m / _TILE) * ceil(task.n / _TILE)} tiles of {_TILE}x{_TILE}"


def _chip_line(task: GemmTask, chip: Chip) -> str:
    smem = LIMITS[chip.arch].max_smem_per_block_bytes // 1024
    times = f"arithmetic {arithmetic_us(task, chip):.2f}us memory {memory_us(task, chip):.2f}us launch {chip.launch_us:.2f}us"
    return f"{chip.name} {task.arch} {chip.sms} SMs {smem} KiB, {times}"


def _worth_trying(schedules: TaskSchedules) -> list[FamilySchedules]:
    """The families that are worth their tokens; none where no family computes the task."""
    fastest_us = min((family.ranked[0].predicted_us for family in schedules.families.values()), default=0.0)
    return [family for family in schedules.families.values() if family.ranked[0].predicted_us <= SLOWER * fastest_us]


def _family_line(family: FamilySchedules) -> str:
    """The axes that have more than one value for the task."""
    axes = [f"{axis} {_listed(values)}" for axis, values in family.choices.items() if values != _SWITCH]
    switches = [axis for axis, values in family.choices.items() if values == _SWITCH]
    return f"{family.name}: " + "; ".join([*axes, *([f"true or false {' '.join(switches)}"] if switches else [])])


def _listed(values: Sequence[ScheduleValue]) -> str:
    """The values in order; numbers in equal steps as `first..last/step`."""
    numbers = [value for value in values if isinstance(value, int)]
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) == len(values) >= _MIN_RUN and len(steps) == 1:
        return f"{numbers[0]}..{numbers[-1]}/{steps.pop()}"
    return " ".join(str(value) for value in values)


@cache
def axes_fingerprint() -> str:
    """A hash of the families of all architectures with the name, type, bounds and default of each axis."""
    known = {family.name: family for arch in Arch for family in families(arch)}
    axes = {
        name: {
            axis: [str(field.annotation), str(field.metadata), str(field.default)]
            for axis, field in family.schedule.model_fields.items()
        }
        for name, family in known.items()
    }
    return digest(axes)
