"""A request in flight: the reply so far, and the ways in which a try of it can end."""

import time
from dataclasses import dataclass, field

from cudal2_agent.contract.records.exchange import Prompt, ReplyStatus, Usage
from cudal2_agent.policies.chat.server.api_errors import RequestFailed, Unusable
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit
from cudal2_agent.policies.chat.server.retrying import Again
from cudal2_agent.policies.chat.server.stream import PartialReply


@dataclass(frozen=True)
class Answered:
    """A try that produced the reply, complete or not."""

    status: ReplyStatus
    problem: str


@dataclass(frozen=True)
class EmptyReply:
    """A stream without a reply."""

    problem: str


TryEnd = Answered | RequestFailed | Again | Unusable


@dataclass
class PendingRequest:
    """A request in flight: its limit, the reply so far, and the tokens of tries that were given up."""

    prompt: Prompt
    place: ExchangePlace
    limit: Limit
    partial: PartialReply = field(default_factory=PartialReply)
    wasted: list[Usage] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0
    tries: int = 0
    last_report: float = 0.0

    def start_over(self) -> None:
        if self.partial.begun:
            self.wasted.append(self.partial.usage(self.prompt))
        self.partial = PartialReply()
        self.tries += 1

    @property
    def usage(self) -> Usage:
        """The tokens of all tries; none if the server accepted no try."""
        usages = [*self.wasted, *([self.partial.usage(self.prompt)] if self.partial.begun else [])]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            counted="server" if usages and all(usage.counted == "server" for usage in usages) else "estimate",
        )


def ending_of(partial: PartialReply) -> Answered | Again:
    """The result of a try whose reply has stopped arriving."""
    status, problem = partial.ending()
    return cut_reply(partial, problem) if status == "cut" else Answered(status, problem)


def cut_reply(partial: PartialReply, problem: str) -> Answered | Again:
    """A reply that is cut before its first token is requested again. A later cut keeps the text."""
    return Answered("cut", problem) if partial.characters else Again(problem, "cut")
