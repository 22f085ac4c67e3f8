"""From an answer to candidates, or to the reason why there is none.

An answer is a schedule, named by its family and some of its axes, a candidate, or the text of a model's reply in one of the
forms that the chat policy reads.
"""

from collections.abc import Mapping

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.options import ReplyKind
from cudal2_agent.policies.chat.replies.candidates import ReplyContext, candidates_of, shown_kernels
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.replies.named_axes import named_for
from cudal2_agent.policies.schedule.named_schedules import Unwritable

Answer = Mapping[str, object] | AnyCandidate | str
POLICY = "environment"


class AnswerForms(Record):
    """What the text of a reply may hold. `schedules`: how many at most; the best one counts."""

    replies: ReplyKind = "any"
    schedules: int = 4


class ReadAnswer(Record):
    """The candidates that an answer gives. `problem`: why it gives none, or which part of it gives none."""

    candidates: tuple[AnyCandidate, ...] = ()
    problem: str = ""


def read_answer(answer: Answer, observation: Observation, forms: AnswerForms) -> ReadAnswer:
    """A patch in a reply changes the best kernel, or the failed one where it names that."""
    if isinstance(answer, Candidate | HostCandidate):
        return ReadAnswer(candidates=(answer,))
    if not isinstance(answer, str):
        written = named_for(observation.task, observation.chip).expand(answer)
        if isinstance(written, Unwritable):
            return ReadAnswer(problem="; ".join(written.reasons))
        return ReadAnswer(candidates=(written,))
    context = ReplyContext(
        task=observation.task,
        chip=observation.chip,
        replies=forms.replies,
        max_schedules=forms.schedules,
        bases=_bases(observation),
        origin=Origin(policy=POLICY),
        known=frozenset(),
    )
    given = candidates_of(read_reply(answer), context)
    return ReadAnswer(candidates=given.candidates, problem=given.problem)


def _bases(observation: Observation) -> dict[str, Candidate]:
    failed = observation.failures[0].candidate if observation.failures else None
    kernels = [(name, one) for name, one in (("best", observation.best), ("failed", failed)) if isinstance(one, Candidate)]
    return shown_kernels(kernels)
