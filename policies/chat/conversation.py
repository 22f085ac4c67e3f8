"""Conversations with a model: from a prompt to candidates, or to the reason why there is none.

Every exchange is recorded as soon as it ends.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cudal2_agent.contract.errors import EndpointError, UsageError
from cudal2_agent.contract.events import Emit, Notice, Replied, ToolUsed
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import ExchangeLog
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.exchange import Exchange, Prompt, ToolCall, ToolResult
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.account import Account, Capped
from cudal2_agent.policies.chat.assignment import POLICY
from cudal2_agent.policies.chat.prompts.composition import ComposedPrompt, Prompts
from cudal2_agent.policies.chat.prompts.quoting import cited_chunks, inline
from cudal2_agent.policies.chat.replies.candidates import GivenCandidates, ReplyContext, candidates_of
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.server.chat_server import ChatServer, ExchangePlace, Limit, NoReply, Reply
from cudal2_agent.policies.chat.tokens import chars_of
from cudal2_agent.policies.chat.tool_talk import ToolTalk
from cudal2_agent.policies.chat.toolbox import Toolbox

MIN_SECONDS = 5.0  # of search time; a useful reply takes longer
_CUT_SHORT = frozenset({"truncated", "stopped", "cut"})
# A stopped reply would run on again and a refusal would be repeated, so neither is requested again.
_ASK_AGAIN = frozenset({"complete", "truncated", "cut"})
_ENDLESS_SECONDS = 1e6
ALL_REASONING = "the reply is all reasoning and no answer"
_MORE = 4  # times the setting, at most, where reasoning takes the whole limit


class Round:
    """State that the conversations of a round share: the time left, and whether and why requests have stopped.

    `error`: the first error that ended the round. `capped`: the cap that ended it. `unanswered`: why a prompt has no
    reply, while other conversations go on. `abandon`: the caller no longer waits for the round.
    """

    def __init__(self, seconds_left: float | None) -> None:
        self._until = time.monotonic() + (_ENDLESS_SECONDS if seconds_left is None else seconds_left)
        self._over = threading.Event()
        self.error: EndpointError | UsageError | None = None
        self.capped = ""
        self.unanswered = ""
        self.abandoned = False

    @property
    def seconds_left(self) -> float:
        """Time for the next request; 0 if too little is left or the round is over."""
        left = self._until - time.monotonic()
        return left if left >= MIN_SECONDS and not self._over.is_set() else 0.0

    def fail(self, error: EndpointError | UsageError) -> None:
        self.error = self.error or error
        self._over.set()

    def cap(self, reason: str) -> None:
        self.capped = self.capped or reason
        self._over.set()

    def abandon(self) -> None:
        self.abandoned = True
        self._over.set()


@dataclass(frozen=True)
class ConversationEnd:
    """The end of a conversation: its last exchange, None if no request was sent, and the candidates in it."""

    exchange: Exchange | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Topic:
    """The subject of a conversation: its first prompt, its place, and the candidates that were tried before.

    `bases`: the kernels that a patch may change, by name; the first one by default. `compose`: makes the first prompt anew,
    after the prompts were shortened.
    """

    opening: ComposedPrompt
    task: Task
    chip: Chip
    round: int
    sample: int
    observation_id: str
    known: frozenset[str]
    bases: Mapping[str, Candidate] = field(default_factory=dict)
    compose: Callable[[], ComposedPrompt] | None = None


class Conversations:
    """Holds conversations, from several threads at once. `toolbox`: the tools that are offered; None for none."""

    def __init__(
        self,
        options: ChatOptions,
        server: ChatServer,
        log: ExchangeLog,
        account: Account,
        emit: Emit,
        prompts: Prompts,
        toolbox: Toolbox | None = None,
    ) -> None:
        self._options, self._server, self._log = options, server, log
        self._account, self._emit, self._prompts = account, emit, prompts
        self._dates = {(exchange.place, exchange.prompt.id): exchange.created_at for exchange in log.recorded()}
        self._toolbox = toolbox
        self._reply_tokens = options.reply_tokens  # raised where reasoning alone took that many
        self._recording = threading.Lock()

    def hold(self, topic: Topic, round: Round) -> ConversationEnd:
        """Request a reply, and again after tool calls, and while its form is wrong and turns are left. Raises: StoreError."""
        if topic.compose is not None and self._prompts.tokens < self._options.prompt_tokens:  # shortened since it was made
            topic = replace(topic, opening=topic.compose())
        prompt, end, sent_back = topic.opening.prompt, ConversationEnd(), 0
        talk = ToolTalk(self._toolbox, self._options.tool_calls, self._prompts.tokens)
        for turn in itertools.count():
            place = (topic.round, topic.sample, turn)
            asked = self._ask(prompt, place, round, talk.offered(prompt))
            while turn == 0 and asked is not None and (shorter := self._shortened(topic, asked[0])):
                self._account.release(place)
                topic, prompt = shorter, shorter.opening.prompt
                asked = self._ask(prompt, place, round, talk.offered(prompt))
            if asked is None:
                return end
            reply, limit = asked
            if reply.calls and limit.calls:
                called = f"tools were called: {', '.join(inline(call.name, 40) for call in reply.calls)}"
                exchange = self._exchange(reply, limit, prompt, turn, topic, GivenCandidates(problem=called), calling=True)
                self._record(exchange)
                end = ConversationEnd(exchange)
                results = self._run_tools(exchange, talk, round)
                if len(results) < len(reply.calls):
                    return end
                prompt = talk.continued(prompt, reply.text, reply.calls, results)
                continue
            try:
                given = self._given(reply, talk.handed_in(_answer_of(reply)), prompt, topic)
            except Exception as exc:  # an error of ours must not cost a reply: a resumed run reads it again
                unread = GivenCandidates(problem=f"the reply could not be read: {type(exc).__name__}")
                self._record(self._exchange(reply, limit, prompt, turn, topic, unread))
                raise
            exchange = self._exchange(reply, limit, prompt, turn, topic, given)
            self._record(exchange)
            end = ConversationEnd(exchange, given.candidates)
            if not given.malformed or reply.status not in _ASK_AGAIN or sent_back == self._options.turns:
                return end
            sent_back += 1
            if _all_reasoning(reply) and reply.status == "truncated":  # the same prompt: there is no answer to send back
                self._reply_tokens = max(self._reply_tokens, min(2 * limit.reply_tokens, _MORE * self._options.reply_tokens))
            else:
                prompt = self._prompts.again(prompt, reply.text, given.problem, cut=reply.status in _CUT_SHORT)
        return end

    def _shortened(self, topic: Topic, reply: Reply) -> Topic | None:
        """The topic with a shorter first prompt, where a server has said that this one is too long; None if none is shorter."""
        if reply.prompt_tokens is None or topic.compose is None:
            return None
        before = self._prompts.tokens
        self._prompts.shorten(reply.prompt_tokens)
        opening = topic.compose()
        if chars_of(opening.prompt) >= chars_of(topic.opening.prompt):
            return None
        if self._prompts.tokens < before:
            said = f"the prompt is too long for the server's context; prompts are limited to {self._prompts.tokens} tokens"
            self._emit(Notice(message=f"{said} in this run: a longer context shows the model more"))
        return replace(topic, opening=opening)

    def _run_tools(self, exchange: Exchange, talk: ToolTalk, round: Round) -> tuple[ToolResult, ...]:
        """The results of an exchange's calls, each durable before the next tool runs; fewer where the round ends."""
        results: tuple[ToolResult, ...] = ()
        with self._account.tools_running(exchange.place):
            for call in exchange.calls:
                known = exchange.results[len(results) :][:1]
                if not known and not round.seconds_left:
                    break
                result = talk.run(call, known[0] if known else None, round.seconds_left)
                results = (*results, result)
                if not known:
                    self._record_results(exchange, call, results)
        return results

    def _record_results(self, exchange: Exchange, call: ToolCall, results: tuple[ToolResult, ...]) -> None:
        with self._recording:
            self._log.record(exchange.model_copy(update={"results": results}))
            said = inline(results[-1].text.partition("\n")[0])
            tool, seconds = inline(call.name, 40), results[-1].seconds
            self._emit(ToolUsed(round=exchange.round, sample=exchange.sample, tool=tool, said=said, seconds=seconds))

    def keep(self, exchange: Exchange, candidates: Sequence[Candidate], problem: str) -> None:
        """Record that an exchange produced only these candidates after all, and why."""
        ids = tuple(candidate.id for candidate in candidates)
        problems = "; ".join(part for part in (exchange.problem, problem) if part)
        with self._recording:
            self._log.record(exchange.model_copy(update={"candidate_ids": ids, "problem": problems}))

    def _given(self, reply: Reply, text: str, prompt: Prompt, topic: Topic) -> GivenCandidates:
        """The candidates in the text of a reply, or the reason why there is none."""
        if reply.status in ("refused", "failed"):
            return GivenCandidates(problem=reply.problem or f"the request was {reply.status}")
        origin = Origin(
            policy=POLICY,
            parents=topic.opening.parents,
            chunk_ids=topic.opening.chunk_ids,
            exemplar_ids=topic.opening.exemplar_ids,
            prompt_hash=prompt.id,
        )
        context = ReplyContext(
            task=topic.task,
            chip=topic.chip,
            replies=self._options.replies,
            max_schedules=self._options.schedules,
            bases=topic.bases,
            origin=origin,
            known=topic.known,
        )
        given = candidates_of(read_reply(text, cut=reply.status in _CUT_SHORT), context)
        if _all_reasoning(reply):
            taken = f"{ALL_REASONING}; the kernel in the reasoning was taken"
            return replace(given, problem=ALL_REASONING if given.malformed else given.problem or taken)
        return given

    def _ask(self, prompt: Prompt, place: ExchangePlace, round: Round, calls: int) -> tuple[Reply, Limit] | None:
        """The reply and its limit; None if the request was not sent or the round was abandoned."""
        if not round.seconds_left:
            return None
        granted = self._account.reserve(prompt, place, round.seconds_left, self._reply_tokens)
        if isinstance(granted, Capped):
            if round.seconds_left:  # otherwise time ran out first, and requests in flight may still return tokens
                round.cap(granted.reason)
            return None
        granted = replace(granted, calls=calls)
        try:
            reply = self._server.ask(prompt, place, granted) if round.seconds_left else None
        except (EndpointError, UsageError) as exc:
            round.fail(exc)
            reply = None
        except NoReply as exc:
            round.unanswered = str(exc)
            reply = None
        except BaseException:
            self._account.release(place)
            raise
        if reply is None or round.abandoned:
            self._account.release(place)
            return None
        return replace(reply, text=_without_surrogates(reply.text), reasoning=_without_surrogates(reply.reasoning)), granted

    def _exchange(
        self,
        reply: Reply,
        limit: Limit,
        prompt: Prompt,
        turn: int,
        topic: Topic,
        given: GivenCandidates,
        *,
        calling: bool = False,
    ) -> Exchange:
        """The exchange of a request and its reply. A replaced exchange keeps its date."""
        place = (topic.round, topic.sample, turn)
        return Exchange(
            round=topic.round,
            sample=topic.sample,
            turn=turn,
            observation_id=topic.observation_id,
            prompt=prompt,
            model=self._options.model,
            parameters=self._parameters(limit),
            status=reply.status,
            reply=reply.text,
            reasoning=reply.reasoning,
            calls=reply.calls if calling else (),
            results=reply.results if calling else (),
            problem=given.problem if given.candidates else _problem(reply, given.problem),
            candidate_ids=tuple(candidate.id for candidate in given.candidates),
            shown=topic.opening.chunk_ids,
            cited=cited_chunks(reply.text, topic.opening.chunk_ids),
            usage=reply.usage,
            cost=self._account.cost(reply.usage),
            seconds=reply.seconds,
            created_at=self._dates.get((place, prompt.id)) or datetime.now(UTC),
        )

    def _record(self, exchange: Exchange) -> None:
        """Store the exchange, settle the account and emit an event. Serialized, so that reported totals are in order."""
        with self._recording:
            try:
                self._log.record(exchange)
            finally:
                self._account.settle(exchange)
            totals = self._account.totals
            self._emit(
                Replied(
                    round=exchange.round,
                    sample=exchange.sample,
                    turn=exchange.turn,
                    status=exchange.status,
                    candidates=len(exchange.candidate_ids),
                    problem=exchange.problem,
                    usage=exchange.usage,
                    seconds=exchange.seconds,
                    total_tokens=totals.tokens,
                    total_cost=totals.cost,
                )
            )

    def _parameters(self, limit: Limit) -> dict[str, str | int | float | bool]:
        parameters: dict[str, str | int | float | bool] = {"reply_tokens": limit.reply_tokens}
        if self._options.temperature is not None:
            parameters["temperature"] = self._options.temperature
        if limit.calls:
            parameters["tool_calls"] = limit.calls
        return parameters


def _all_reasoning(reply: Reply) -> bool:
    return bool(reply.reasoning.strip()) and not (reply.text.strip() or reply.calls)


def _answer_of(reply: Reply) -> str:
    """The answer in a reply. Where a server takes a whole complete reply for reasoning, it is that, or what follows its end."""
    if reply.status == "complete" and _all_reasoning(reply):
        return reply.reasoning.rpartition("</think>")[2]
    return reply.text


def _problem(reply: Reply, problem: str) -> str:
    """The problem of a reply and how the reply ended. The problem of a recorded reply already contains both."""
    if not reply.problem or reply.problem.startswith(problem):
        return reply.problem or problem
    return f"{problem} ({reply.problem})"


def _without_surrogates(text: str) -> str:
    """The text without lone surrogates. A server's escapes can contain them, and no store accepts them."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
