"""The policy `lm`: a language model in this process names schedules, which the families' writers turn into kernels."""

import json
import math
from collections.abc import Sequence

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.exchange import Message, Prompt
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.contract.reward.contrast import draw_contrast
from cudal2_agent.policies.chat.replies.candidates import GivenCandidates, ReplyContext, candidates_of
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.lm.compact_prompt import SHOWN, ShownSchedule, messages_of, replies_of, score_of
from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler
from cudal2_agent.policies.lm.replies.reply_tree import ReplyTree
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, schedules_for

NAME = "lm"
REPLIES_PER_CANDIDATE = 2  # sampled, since some are no schedules or repeat one
MAX_TRIES = 3  # samplings of a round that give nothing new, until the policy gives up


class LanguageModelPolicy:
    """Half of a round's replies answer the plain prompt, the other half one that shows two scored schedules of the run.

    Every token of a reply leads to a schedule of the task that was not tried. A reply that names one again, which another
    reply of the round named, is dropped and counted. Deterministic in (seed, observation) on one device.
    """

    name = NAME
    reads_code = False

    def __init__(self, sampler: ReplySampler, emit: Emit, seed: int = 0) -> None:
        self._sampler, self._emit, self._seed = sampler, emit, seed
        self.exhausted = ""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """At most `count` candidates; none where no reply names a new schedule."""
        schedules = schedules_for(observation.task, observation.chip)
        if not schedules.families or count < 1:
            return []
        prompts = self._prompts(observation, schedules)
        left = replies_of(schedules, [attempt.schedule for attempt in observation.attempts if attempt.schedule])
        if not left:
            self.exhausted = "every schedule that the model may name was tried"
            return []
        tree = self._sampler.tree_of(left)
        for attempt in range(MAX_TRIES):
            found = self._sampled(observation, prompts, count, attempt, tree)
            if found:
                return list(found.values())[:count]
        self.exhausted = f"the model named no new schedule in {MAX_TRIES} samplings"
        return []

    def _sampled(
        self, observation: Observation, prompts: Sequence[tuple[Message, ...]], count: int, attempt: int, tree: ReplyTree
    ) -> dict[str, Candidate]:
        """The new candidates of one sampling by their ids. What it drops is told."""
        known = {one.candidate_id for one in observation.attempts}
        found: dict[str, Candidate] = {}
        invalid, repeated, problem = 0, 0, ""
        each = -(-count * REPLIES_PER_CANDIDATE // len(prompts))
        replies = self._sampler.sample(prompts, each, self._drawn(observation, attempt), trees=[tree] * len(prompts))
        for messages, of_prompt in zip(prompts, replies, strict=True):
            for reply in of_prompt:
                given = _given(reply.text, reply.cut, observation, messages, frozenset(known | found.keys()))
                found |= {one.id: one for one in given.candidates}
                invalid += given.malformed
                repeated += bool(given.problem) and not given.malformed
                problem = problem or (given.problem if given.malformed else "")
        self._tell(sum(map(len, replies)), invalid, repeated, problem)
        return found

    def _prompts(self, observation: Observation, schedules: TaskSchedules) -> list[tuple[Message, ...]]:
        shown = [
            ShownSchedule(score, attempt.schedule)
            for attempt in _contrast(observation, self._drawn(observation))
            if attempt.schedule and (score := score_of(attempt)) is not None
        ]
        plain = messages_of(schedules)
        return [plain, messages_of(schedules, shown)] if shown else [plain]

    def _drawn(self, observation: Observation, attempt: int = 0) -> int:
        """The seed of a sampling."""
        return int(digest([self._seed, observation.seed, observation.round, attempt], 8), 16) >> 1

    def _tell(self, replies: int, invalid: int, repeated: int, problem: str) -> None:
        if invalid or repeated:
            why = f"; the first: {problem}" if problem else ""
            counts = f"{invalid} named no schedule of the task and {repeated} one that was tried"
            self._emit(Notice(message=f"of {replies} replies of the model, {counts}{why}"))


def _contrast(observation: Observation, seed: int) -> list[Attempt]:
    """Two attempts of different score buckets; none where the run has no such pair. Measured ones count where there are any."""
    written = [attempt for attempt in observation.attempts if attempt.schedule]
    timed = [(math.log(one.speedup), one) for one in written if one.speedup]
    modelled = [(-math.log(one.modelled_us), one) for one in written if one.modelled_us]
    drawn = draw_contrast(timed or modelled, SHOWN, seed, lambda one: json.dumps(one.schedule, indent=0))
    return [attempt for _, attempt in drawn] if len(drawn) == SHOWN else []


def _given(
    text: str, cut: bool, observation: Observation, messages: tuple[Message, ...], known: frozenset[str]
) -> GivenCandidates:
    context = ReplyContext(
        task=gemm(observation.task, "the policy lm"),
        chip=observation.chip,
        replies="schedule",
        max_schedules=1,
        bases={},
        origin=Origin(policy=NAME, prompt_hash=Prompt(messages=messages).id),
        known=known,
    )
    return candidates_of(read_reply(text, cut=cut), context)
