"""The `ChatServer` protocol: what a request may cost, and how it ends."""

from dataclasses import dataclass
from typing import Protocol

from cudal2_agent.contract.records.exchange import Prompt, ReplyStatus, ToolCall, ToolResult, Usage

ExchangePlace = tuple[int, int, int]  # (round, sample, turn)


@dataclass(frozen=True)
class Limit:
    """The maximum cost of one request. `seconds` includes retries and the waits between them.

    `calls`: how many tools the reply may call; 0 offers none.
    """

    reply_tokens: int
    seconds: float
    calls: int = 0


@dataclass(frozen=True)
class Reply:
    """How one request ended; `status` as in `contract.records.exchange.Exchange`. `problem`: one line, empty if complete.

    `reasoning`: the model's reasoning, kept apart from `text`. `seconds`: wall-clock time with the waits for retries.
    `calls`: the tools that a complete reply calls. `results`: those that a recorded reply has already; they are not run again.
    `prompt_tokens`: of a request that failed because its prompt is too long: the estimated tokens of one that fits.
    """

    status: ReplyStatus
    text: str
    reasoning: str
    usage: Usage
    seconds: float
    problem: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    prompt_tokens: int | None = None


class NoReply(Exception):
    """A replayed run has no reply to this prompt. The message names the run's record."""


class ChatServer(Protocol):
    """Answers prompts, from several threads at once."""

    def ask(self, prompt: Prompt, place: ExchangePlace, limit: Limit) -> Reply:
        """The reply to a prompt. An error that concerns this request alone is a `Reply` as well.

        `Replying` events name the place, at most four times per second and request.
        Raises: EndpointError if the server is unusable: key refused, no such model, unreachable, out of retries.
        UsageError if a replayed run has no reply at all, NoReply if it has none to this prompt.
        """
        ...

    def close(self) -> None:
        """End the requests in flight: each `ask` returns a `stopped` reply soon, and each later one at once."""
        ...
