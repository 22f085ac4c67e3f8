"""The chat policy: a language model behind any OpenAI-compatible server writes and repairs candidates."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from contract.candidate import Candidate
from contract.events import Emit, Notice
from contract.options import ChatOptions
from contract.protocols import ExchangeLog
from contract.trajectory import Observation
from policies.chat.account import Account
from policies.chat.conversation import Conversations, Outcome, Round, Topic
from policies.chat.primitives import Header
from policies.chat.prompting import Prompts
from policies.chat.sampling import POLICY, assign
from policies.chat.server import ChatServer


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
        self._capped = False

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count` where replies hold no candidate, repeat what is known, or a cap or the time is reached.

        Raises: EndpointError where the server cannot be used, UsageError where a replay ends; neither once something is
        written in the round. StoreError where an exchange cannot be kept.
        """
        round = Round(observation.seconds_left)
        topics = list(self._topics(observation, count)) if round.seconds_left else []
        candidates = self._distinct(self._hold(topics, round))
        if round.capped and not self._capped:
            self._capped = True
            self._emit(Notice(message=f"{round.capped}; the chat policy asks no more"))
        if round.error and not candidates:
            raise round.error
        if round.error:
            self._emit(Notice(message=f"{round.error}; the round goes on with the {len(candidates)} candidates written before"))
        return candidates

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
