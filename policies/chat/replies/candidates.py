"""From what a reply holds to candidates, or to the reason why it gives none.

A source that a model wrote, whole or by a patch, never has a schedule in its origin, even where it began as the kernel of
one. A schedule that a model names has the source that this project's writers make of it, as in the schedule policy: so it
has the same trust.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.settings.options import ReplyKind
from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.chat.replies.fenced_blocks import NOTE_CHARS, FencedBlock, Malformed
from cudal2_agent.policies.chat.replies.forms import ReadReply, file_problem, has_plan
from cudal2_agent.policies.chat.replies.named_axes import named_for
from cudal2_agent.policies.chat.replies.patch import Patch, apply_patch, choose_base
from cudal2_agent.policies.chat.replies.schedule_json import NamedSchedules
from cudal2_agent.policies.schedule.named_schedules import Unwritable

PROBLEM_CHARS = 1500
PATCH_OF = "; in the kernel whose idea is: "


@dataclass(frozen=True)
class ReplyContext:
    """What a reply may hold and refer to. `bases`: the kernels that a patch may change, the first one by default.

    `origin`: of the candidates, without note and schedule. `known`: ids of candidates that were tried before.
    """

    task: Task
    chip: Chip
    replies: ReplyKind
    max_schedules: int
    bases: Mapping[str, Candidate]
    origin: Origin
    known: frozenset[str]


@dataclass(frozen=True)
class GivenCandidates:
    """The candidates that a reply gives. `problem`: why it gives none, or which part of it gives none.

    `malformed`: the reply goes back to the model. One whose candidates were all tried before has the right form.
    """

    candidates: tuple[Candidate, ...] = ()
    problem: str = ""
    malformed: bool = False


def candidates_of(read: ReadReply, context: ReplyContext) -> GivenCandidates:
    """The candidates of a reply that were not tried before."""
    if isinstance(read, Malformed):
        return _malformed(read.problem)
    if isinstance(read, NamedSchedules):
        return _from_schedules(read, context)
    if context.replies == "schedule":
        return _malformed("this run takes schedules only; give them as JSON, and no source")
    made = _patched(read, context) if isinstance(read, Patch) else _from_source(read.source, context.origin, _idea(read.note))
    if isinstance(made, Malformed):
        return _malformed(made.problem)
    if made.id in context.known:
        return GivenCandidates(problem=f"candidate {made.id} was tried before")
    return GivenCandidates((made,))


def _from_source(source: str, origin: Origin, note: str) -> Candidate | Malformed:
    free = origin.model_copy(update={"note": note, "schedule": None})
    try:
        return Candidate.from_source(source, free)
    except PlanError as exc:
        return Malformed(f"{exc.rule}: {inline(str(exc), 500)}")


def _patched(patch: Patch, context: ReplyContext) -> Candidate | Malformed:
    """The patched kernel. It has the one that it changes as a parent, and keeps the idea that this began with."""
    name = choose_base(patch, {name: base.source for name, base in context.bases.items()})
    if isinstance(name, Malformed):
        return name
    base = context.bases[name]
    source = apply_patch(patch, base.source)
    if isinstance(source, Malformed):
        return source
    planned = [FencedBlock("cuda", source, closed=True)] if has_plan(source) else []
    if problem := file_problem(planned):
        return Malformed(f"the patched kernel is not whole: {problem}")
    parents = tuple(dict.fromkeys((*context.origin.parents, base.id)))
    kept = base.origin.note.rpartition(PATCH_OF)[2]
    note = PATCH_OF.join(part for part in (_idea(patch.note).removesuffix(".") if kept else _idea(patch.note), kept) if part)
    return _from_source(source, context.origin.model_copy(update={"parents": parents}), note)


def _idea(note: str) -> str:
    return inline(note, NOTE_CHARS)


def _from_schedules(named: NamedSchedules, context: ReplyContext) -> GivenCandidates:
    """The kernels of all schedules that can be written. Only where none can, the reply goes back."""
    if context.replies == "source":
        return _malformed("this run takes sources only; give a whole file or a patch, and no schedules")
    count = len(named.values)
    if count > context.max_schedules:
        return _malformed(f"the reply has {count} schedules; give at most {context.max_schedules}")
    made: dict[str, Candidate] = {}
    wrong: list[str] = []
    tried: list[str] = []
    for number, values in enumerate(named.values, 1):
        label = f"schedule {number}: " if count > 1 else ""
        written = named_for(context.task, context.chip).expand(values)
        if isinstance(written, Unwritable):
            wrong.append(label + "; ".join(written.reasons))
        elif written.id in context.known or written.id in made:
            where = "in this reply" if written.id in made else "before"
            tried.append(f"{label}candidate {written.id} was tried {where}")
        else:
            made[written.id] = _signed(written, context.origin, named.note)
    problem = inline("; ".join([*wrong, *tried]), PROBLEM_CHARS)
    return GivenCandidates(tuple(made.values()), problem, malformed=bool(wrong) and not made and not tried)


def _signed(written: Candidate, origin: Origin, note: str) -> Candidate:
    """A candidate of the writers with the reply that named its schedule."""
    signed = origin.model_copy(update={"note": _idea(note), "schedule": written.origin.schedule})
    return written.model_copy(update={"origin": signed})


def _malformed(problem: str) -> GivenCandidates:
    return GivenCandidates(problem=problem, malformed=True)


def shown_kernels(kernels: Sequence[tuple[str, Candidate]]) -> dict[str, Candidate]:
    """The kernels that a patch may change, by the names that it may give them: `best` or `failed`, or the start of the id."""
    return {name: kernel for label, kernel in kernels for name in (label, kernel.id[:8])}
