"""The chat policy: a language model behind any OpenAI-compatible server writes and repairs candidates."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest

from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.protocols import ExchangeLog, Workbench
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.account import Account
from cudal2_agent.policies.chat.assignment import POLICY, Assignment, assign
from cudal2_agent.policies.chat.conversation import ConversationEnd, Conversations, Round, Topic
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.prompts.primitives import Header
from cudal2_agent.policies.chat.prompts.schedules import PromptedReplies, ScheduleAdvice
from cudal2_agent.policies.chat.replies.candidates import shown_kernels
from cudal2_agent.policies.chat.server.chat_server import ChatServer
from cudal2_agent.policies.chat.toolbox import Toolbox


class ChatPolicy:
    """Requests several replies per round in parallel. Deterministic in (seed, observation) and the server's replies.

    `primitives`: name and text of the headers that candidates may include. Call `propose` once per round: (round, sample,
    turn) identifies a reply. `workbench`: the tools that a model may use; None for none. `advice`: as for `Prompts`.
    """

    name = POLICY
    reads_code = True

    def __init__(
        self,
        options: ChatOptions,
        server: ChatServer,
        log: ExchangeLog,
        account: Account,
        emit: Emit,
        seed: int,
        primitives: Sequence[Header] = (),
        workbench: Workbench | None = None,
        *,
        advice: ScheduleAdvice | None = None,
    ) -> None:
        self._options, self._server, self._emit, self._seed = options, server, emit, seed
        replies = PromptedReplies(options.replies, options.schedules)
        self._prompts = Prompts(options.prompt_tokens, primitives, replies, advice=advice)
        tools = workbench if options.tools != "off" else None
        toolbox = Toolbox(tools, options.tool_s, options.tool_tokens) if tools is not None else None
        self._conversations = Conversations(options, server, log, account, emit, self._prompts, toolbox)
        self._reported: set[str] = set()
        self.exhausted = ""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """At most `count` candidates: replies may hold none, repeat a known one, or a cap or the time limit is reached.

        Raises: EndpointError if the server is unusable and UsageError if a replayed run has no reply, unless the round
        already has a candidate. StoreError if an exchange cannot be stored.
        """
        round = Round(observation.seconds_left)
        topics = list(self._topics(observation, count)) if round.seconds_left and not self.exhausted else []
        ends = self._hold(topics, round)
        candidates = self._distinct(ends, count)
        exchanges = [end.exchange for end in ends if end.exchange]
        self.exhausted = self.exhausted or round.capped or ("" if exchanges else round.unanswered)
        if round.error and not candidates:
            raise round.error
        if round.error:
            self._emit(Notice(message=f"{round.error}; the round goes on with the {len(candidates)} candidates written before"))
        if not candidates:
            self._report_reason(exchanges)
        return candidates

    def _report_reason(self, exchanges: Sequence[Exchange]) -> None:
        """Emit the reason why a round has no candidate if there is a single reason; each reason once."""
        problems = {_kind_of(exchange.problem): exchange.problem for exchange in exchanges}
        unanswered = bool(exchanges) and all(exchange.status == "failed" for exchange in exchanges)
        if not exchanges or (len(problems) > 1 and not unanswered) or self._reported & problems.keys():
            return
        self._reported.update(problems)
        nothing = "no request of the round was answered" if unanswered else "no reply of the round holds a new kernel"
        self._emit(Notice(message=f"{nothing}: {exchanges[0].problem}"))

    def _topics(self, observation: Observation, count: int) -> Iterator[Topic]:
        """A topic for each reply to request. At temperature 0 equal prompts have equal replies: each is sent once."""
        observation_id = observation.id
        known = frozenset(attempt.candidate_id for attempt in observation.attempts)
        asked: set[str] = set()
        for assignment in assign(observation, self._options, count, self._seed):
            compose = partial(self._prompts.first, observation, assignment, count)
            opening = compose()
            if self._options.temperature != 0 or opening.prompt.id not in asked:
                asked.add(opening.prompt.id)
                yield Topic(
                    opening=opening,
                    task=observation.task,
                    chip=observation.chip,
                    round=observation.round,
                    sample=assignment.sample,
                    observation_id=observation_id,
                    known=known,
                    bases=_bases(observation, assignment),
                    compose=compose,
                )

    def _hold(self, topics: Sequence[Topic], round: Round) -> list[ConversationEnd]:
        """Hold all conversations; their ends are in the order of the topics. An interrupt ends the requests in flight."""
        with ThreadPoolExecutor(self._options.parallel, thread_name_prefix="chat") as pool:
            held = [pool.submit(self._conversations.hold, topic, round) for topic in topics]
            try:
                return [conversation.result() for conversation in held]
            except BaseException:
                round.abandon()
                self._server.close()
                raise

    def _distinct(self, ends: Sequence[ConversationEnd], count: int) -> list[Candidate]:
        """At most `count` distinct candidates, each from the first sample that wrote it: the first of each reply first."""
        kept: dict[str, tuple[int, Candidate]] = {}
        for row in zip_longest(*(end.candidates for end in ends)):
            for sample, candidate in enumerate(row):
                if candidate is not None and len(kept) < count:
                    kept.setdefault(candidate.id, (sample, candidate))
        for sample, end in enumerate(ends):
            self._note_dropped(end, {id_ for id_, (by, _) in kept.items() if by == sample}, frozenset(kept), count)
        return [candidate for _, candidate in kept.values()]

    def _note_dropped(self, end: ConversationEnd, own: set[str], kept: frozenset[str], count: int) -> None:
        """Record which candidates of a reply are not among the round's, and why."""
        left = [one for one in end.candidates if one.id in own]
        if end.exchange is None or len(left) == len(end.candidates):
            return
        dropped = [one.id for one in end.candidates if one.id not in own]
        reasons = [f"candidate {id_} was written by another reply of this round" for id_ in dropped if id_ in kept]
        reasons += [f"candidate {id_} is beyond the {count} of this round" for id_ in dropped if id_ not in kept]
        self._conversations.keep(end.exchange, left, "; ".join(reasons))


def _bases(observation: Observation, assignment: Assignment) -> dict[str, Candidate]:
    """The kernels that a patch may change: the failed one before the best one."""
    failed = assignment.failure.candidate if assignment.failure else None
    kernels = [(name, one) for name, one in (("failed", failed), ("best", observation.best)) if isinstance(one, Candidate)]
    return shown_kernels(kernels)


def _kind_of(problem: str) -> str:
    """A problem without numbers and names that contain digits, which differ between replies with the same reason."""
    return re.sub(r"\w*\d\w*", "", problem)
