"""The border to a chat server: what a request may spend and what comes of it."""

from dataclasses import dataclass
from typing import Literal, Protocol

from contract.exchange import Prompt, Usage

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Limit:
    """What one request may spend at most; retries and the waits between them included in `seconds`."""

    reply_tokens: int
    seconds: float


@dataclass(frozen=True)
class Reply:
    """How one request ended, as `contract.exchange.Exchange` says it. `problem`: one line, empty when complete.

    `reasoning`: what the model thought aloud, kept apart from `text`. `seconds`: wall-clock, waits for retries included.
    """

    status: Literal["complete", "truncated", "stopped", "cut", "refused", "failed"]
    text: str
    reasoning: str
    usage: Usage
    seconds: float
    problem: str = ""


class NoReply(Exception):
    """There is no reply to this prompt, nor will there be: a record, not a server, was asked. The message says which."""


class ChatServer(Protocol):
    """Answers prompts, from several threads at once."""

    def ask(self, prompt: Prompt, place: Place, limit: Limit) -> Reply:
        """The reply to a prompt; what a server does to one request is a `Reply`, whatever it is.

        `place` is (round, sample, turn); `Replying` events name it, at most four a second for each request.
        Raises: EndpointError for what no retry mends: key refused, no such model, unreachable, out of retries;
        UsageError where a replayed run holds no reply at all; NoReply where it holds none to this prompt.
        """
        ...

    def close(self) -> None:
        """End what is under way; each such `ask` returns a `stopped` reply soon. Later ones do so at once."""
        ...
