"""The chat policy: a language model behind any OpenAI-compatible server writes and repairs candidates."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from contract.candidate import Candidate
from contract.events import Emit, Notice
from contract.exchange import Exchange
from contract.options import ChatOptions
from contract.protocols import ExchangeLog
from contract.trajectory import Observation
from policies.chat.account import Account
from policies.chat.assignment import POLICY, assign
from policies.chat.conversation import Conversations, Outcome, Round, Topic
from policies.chat.prompts.composition import Prompts
from policies.chat.prompts.primitives import Header
from policies.chat.server.protocol import ChatServer


class ChatPolicy:
    """Asks for several replies a round, in parallel. Deterministic in (seed, observation) up to what the server replies.

    `primitives`: name and text of the headers that candidates may include. One `propose` a round: replies are known by
    (round, sample, turn).
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
    ) -> None:
        self._options, self._server, self._emit, self._seed = options, server, emit, seed
        self._prompts = Prompts(options.prompt_tokens, primitives)
        self._conversations = Conversations(options, server, log, account, emit, self._prompts)
        self._told: set[str] = set()
        self.exhausted = ""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count` where replies hold no candidate, repeat what is known, or a cap or the time is reached.

        Raises: EndpointError where the server cannot be used, UsageError where a replayed run holds nothing; neither once
        something is written in the round. StoreError where an exchange cannot be kept.
        """
        round = Round(observation.seconds_left)
        topics = list(self._topics(observation, count)) if round.seconds_left and not self.exhausted else []
        outcomes = self._hold(topics, round)
        candidates = self._distinct(outcomes)
        exchanges = [outcome.exchange for outcome in outcomes if outcome.exchange]
        self.exhausted = self.exhausted or round.capped or ("" if exchanges else round.unanswered)
        if round.error and not candidates:
            raise round.error
        if round.error:
            self._emit(Notice(message=f"{round.error}; the round goes on with the {len(candidates)} candidates written before"))
        if not candidates:
            self._tell_why(exchanges)
        return candidates

    def _tell_why(self, exchanges: Sequence[Exchange]) -> None:
        """Say why nothing came of a round where one reason says it, each reason once."""
        problems = {_kind_of(exchange.problem): exchange.problem for exchange in exchanges}
        unanswered = bool(exchanges) and all(exchange.status == "failed" for exchange in exchanges)
        if not exchanges or (len(problems) > 1 and not unanswered) or self._told & problems.keys():
            return
        self._told.update(problems)
        nothing = "no request of the round was answered" if unanswered else "no reply of the round holds a new kernel"
        self._emit(Notice(message=f"{nothing}: {exchanges[0].problem}"))

    def _topics(self, observation: Observation, count: int) -> Iterator[Topic]:
        """A topic for each reply to ask for. Without temperature equal prompts have equal replies: each is asked once."""
        observation_id = observation.id
        known = frozenset(attempt.candidate_id for attempt in observation.attempts)
        asked: set[str] = set()
        for assignment in assign(observation, self._options, count, self._seed):
            request = self._prompts.first(observation, assignment)
            if self._options.temperature != 0 or request.prompt.id not in asked:
                asked.add(request.prompt.id)
                yield Topic(request, observation.round, assignment.sample, observation_id, known)

    def _hold(self, topics: Sequence[Topic], round: Round) -> list[Outcome]:
        """All conversations, in the order of the topics; what is under way is ended where the caller is interrupted."""
        with ThreadPoolExecutor(self._options.parallel, thread_name_prefix="chat") as pool:
            held = [pool.submit(self._conversations.hold, topic, round) for topic in topics]
            try:
                return [conversation.result() for conversation in held]
            except BaseException:
                round.abandon()
                self._server.close()
                raise

    def _distinct(self, outcomes: Sequence[Outcome]) -> list[Candidate]:
        """The candidates, each once, by the first sample that wrote it."""
        candidates: dict[str, Candidate] = {}
        for outcome in outcomes:
            if outcome.candidate is None or outcome.exchange is None:
                continue
            if outcome.candidate.id in candidates:
                self._conversations.drop(outcome.exchange, f"candidate {outcome.candidate.id} is another reply's of this round")
            else:
                candidates[outcome.candidate.id] = outcome.candidate
        return list(candidates.values())


def _kind_of(problem: str) -> str:
    """A problem without its figures and names that hold some: those differ where the reason is the same."""
    return re.sub(r"\w*\d\w*", "", problem)
