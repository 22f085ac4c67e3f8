"""What proposals are worth: a model's, random valid schedules, and those of the analytic prior, on the same shapes.

Every proposer gives the same number of proposals per task. The value of one that is not a schedule is the floor.
"""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.score import Scored, TaskCandidates
from cudal2_agent.policies.lm.compact_prompt import messages_of, replies_of
from cudal2_agent.policies.lm.replies.reply_readers import read_schedule, schedules_of
from cudal2_agent.policies.lm.replies.reply_reward import ScoredCandidates
from cudal2_agent.policies.schedule.named_schedules import PredictedSchedule, TaskSchedules

if TYPE_CHECKING:  # it imports torch, which processes that are started from a benchmark do not need
    from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler, SampledReply

PROPOSALS = 8
_VALUED = ("measured", "predicted")


@dataclass(frozen=True)
class ProposedSchedule:
    """`candidate`: None for what is not a schedule, with the reason in `problem`. `reply`: what a model wrote."""

    candidate: Candidate | None
    reply: str | None = None
    problem: str = ""


class Proposer(Protocol):
    """`propose` gives `count` proposals per task."""

    name: str

    def propose(self, tasks: Sequence[TaskSchedules], count: int, seed: int) -> list[list[ProposedSchedule]]: ...


class TaskProposals(Record):
    """One proposer's proposals for one task, in order. `values`: None where nothing is known. `bases`: see `Scored.basis`.

    `replies`: what a model wrote; `problems`: why a reply names no schedule, empty where it does. Both are empty for others.
    """

    proposer: str
    shape: str
    values: tuple[float | None, ...]
    bases: tuple[str | None, ...]
    valid: int
    distinct: int
    replies: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class ProposerFigures(Record):
    """One proposer over all tasks. Unit of values: that of `Scored.value`.

    `valid`, `verified`, `distinct`: shares of all proposals. `first`: mean value of each task's first proposal, which is a
    model's most likely one; `mean`: of all; `best`: of each task's best. `measured`: whether the values rest on
    measured times alone. `seconds`: to propose.
    """

    proposer: str
    tasks: int
    proposals: int
    valid: float
    verified: float
    distinct: float
    first: float | None
    mean: float | None
    best: float | None
    measured: bool
    seconds: float


class ProposalComparison(Record):
    """The figures of each proposer, and what they were made from."""

    chip: str
    seed: int
    figures: tuple[ProposerFigures, ...]
    proposals: tuple[TaskProposals, ...]


class ModelProposer:
    """Replies of a language model: to each task first the most likely one, token by token, and then samples.

    `constrained`: every token leads to a schedule of the task, so that all replies are valid.
    """

    def __init__(self, name: str, sampler: "ReplySampler", *, constrained: bool = False) -> None:
        self.name, self._sampler, self._constrained = name, sampler, constrained

    def propose(self, tasks: Sequence[TaskSchedules], count: int, seed: int) -> list[list[ProposedSchedule]]:
        prompts = [messages_of(schedules) for schedules in tasks]
        trees = [self._sampler.tree_of(replies_of(schedules)) for schedules in tasks] if self._constrained else None
        replies = self._sampler.sample(prompts, count, seed, greedy_first=True, trees=trees)
        return [[_read(reply, schedules) for reply in of_task] for schedules, of_task in zip(tasks, replies, strict=True)]


class RandomProposer:
    """Schedules drawn evenly from the spaces of a task's families."""

    name = "random valid"

    def propose(self, tasks: Sequence[TaskSchedules], count: int, seed: int) -> list[list[ProposedSchedule]]:
        drawn: list[list[ProposedSchedule]] = []
        for schedules in tasks:
            space = [one for family in schedules.families.values() for one in family.ranked]
            chosen = random.Random(f"{seed}/{schedules.task.id}").sample(space, min(count, len(space)))
            drawn.append([_written(one, schedules) for one in chosen])
        return drawn


class PriorProposer:
    """The best schedules of the analytic prior: one of each family, then one of each tile and number of CTAs."""

    name = "analytic prior"

    def propose(self, tasks: Sequence[TaskSchedules], count: int, seed: int) -> list[list[ProposedSchedule]]:  # noqa: ARG002
        return [[_written(one, schedules) for one in schedules.best(count)] for schedules in tasks]


def _read(reply: "SampledReply", schedules: TaskSchedules) -> ProposedSchedule:
    read = read_schedule(reply.text, schedules, cut=reply.cut)
    return ProposedSchedule(read.candidate, reply.text, read.problem)


def _written(one: PredictedSchedule, schedules: TaskSchedules) -> ProposedSchedule:
    return ProposedSchedule(schedules.families[one.schedule.family].family.write(one.schedule, schedules.task))


def compare(
    proposers: Sequence[Proposer],
    tasks: Sequence[GemmTask],
    chip: Chip,
    scores: ScoredCandidates,
    emit: Emit,
    count: int = PROPOSALS,
    seed: int = 0,
) -> ProposalComparison:
    """Raises: WorkerError, MachineError where the score fails."""
    spaces = [schedules_of(task, chip) for task in tasks]
    figures, proposals = [], []
    for proposer in proposers:
        began_s = time.monotonic()
        proposed = proposer.propose(spaces, count, seed)
        seconds = time.monotonic() - began_s
        rows = _valued(proposer.name, tasks, proposed, scores)
        proposals += rows
        figures.append(_figures(proposer.name, rows, seconds))
        emit(Notice(message=f"{proposer.name}: {figures[-1].valid:.0%} valid, {figures[-1].verified:.0%} verified"))
    return ProposalComparison(chip=chip.name, seed=seed, figures=tuple(figures), proposals=tuple(proposals))


def _valued(
    proposer: str, tasks: Sequence[GemmTask], proposed: Sequence[Sequence[ProposedSchedule]], scores: ScoredCandidates
) -> list[TaskProposals]:
    """The candidates of all tasks are built together."""
    written = [tuple(one.candidate for one in of_task if one.candidate is not None) for of_task in proposed]
    groups = [TaskCandidates(task=task, candidates=candidates) for task, candidates in zip(tasks, written, strict=True)]
    found = zip(tasks, proposed, scores.of_groups(groups), strict=True)
    return [_row(proposer, task, proposals, scored) for task, proposals, scored in found]


def _row(proposer: str, task: GemmTask, proposals: Sequence[ProposedSchedule], scored: Mapping[str, Scored]) -> TaskProposals:
    ones = [proposal.candidate for proposal in proposals]
    written = [one for one in ones if one is not None]
    replied = [proposal for proposal in proposals if proposal.reply is not None]
    return TaskProposals(
        proposer=proposer,
        shape=task.shape,
        values=tuple(scored[one.id].value if one is not None else FLOOR for one in ones),
        bases=tuple(scored[one.id].basis if one is not None else "failed" for one in ones),
        valid=len(written),
        distinct=len({one.id for one in written}),
        replies=tuple(proposal.reply or "" for proposal in replied),
        problems=tuple(proposal.problem for proposal in replied),
    )


def _figures(proposer: str, rows: Sequence[TaskProposals], seconds: float) -> ProposerFigures:
    values = [value for row in rows for value in row.values]
    bases = [basis for row in rows for basis in row.bases]
    total = max(len(values), 1)
    return ProposerFigures(
        proposer=proposer,
        tasks=len(rows),
        proposals=len(values),
        valid=sum(row.valid for row in rows) / total,
        verified=sum(basis in _VALUED for basis in bases) / total,
        distinct=sum(row.distinct for row in rows) / total,
        first=_mean([row.values[0] for row in rows if row.values]),
        mean=_mean(values),
        best=_mean([max(known) for row in rows if (known := [value for value in row.values if value is not None])]),
        measured="predicted" not in bases,
        seconds=seconds,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
