"""Doubles for tests of the chat policy: kernels as replies, a server that answers by a function, a log in memory."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from cudal2_agent.contract.events import Event
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.exchange import Exchange, Prompt
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.account import Account
from cudal2_agent.policies.chat.policy import ChatPolicy
from cudal2_agent.policies.chat.server.chat_server import ChatServer, ExchangePlace, Limit, Reply
from cudal2_agent.policies.chat.tokens import estimate_usage
from tests.doubles import CHIP, TASK

PLAN = (
    '/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1], '
    '"args": [{"tensor": "D", "access": "write"}]}]} */'
)


def source(number: int, body: str = "") -> str:
    return f'{PLAN}\n// kernel {number}\n{body}extern "C" __global__ void gemm(unsigned short* d) {{}}\n'


def written(number: int, body: str = "") -> str:
    """A reply in the required form."""
    return f"## Analysis\nSlow.\n\n## Design\nIdea {number}. More.\n\n## Code\n```cuda\n{source(number, body)}```\n"


def candidate(number: int, policy: str = "chat", body: str = "") -> Candidate:
    return Candidate.from_source(source(number, body), Origin(policy=policy))


def observe(**changes: Any) -> Observation:
    return Observation(**{"task": TASK, "chip": CHIP, "round": 1, "seed": 0, **changes})


def options(**changes: Any) -> ChatOptions:
    return ChatOptions(**{"model": "test", "samples": 3, "parallel": 1, "tokens": None, **changes})


class MemoryLog:
    """An exchange log with the latest record of each place."""

    def __init__(self, exchanges: Sequence[Exchange] = ()) -> None:
        self.kept = {exchange.place: exchange for exchange in exchanges}

    def record(self, exchange: Exchange) -> None:
        self.kept[exchange.place] = Exchange.model_validate_json(exchange.model_dump_json())

    def recorded(self) -> list[Exchange]:
        return [self.kept[place] for place in sorted(self.kept)]


Answer = Callable[[Prompt, ExchangePlace], str | Reply]


class AnsweringServer:
    """Answers by a function of prompt and place, and records its requests. A string is a complete reply."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lock = Lock()
        self.asked: list[tuple[ExchangePlace, Prompt, Limit]] = []
        self.closed = False

    def ask(self, prompt: Prompt, place: ExchangePlace, limit: Limit) -> Reply:
        with self._lock:
            self.asked.append((place, prompt, limit))
        answer = self._answer(prompt, place)
        return answer if isinstance(answer, Reply) else ended("complete", answer, prompt)

    def close(self) -> None:
        self.closed = True


def ended(status: Any, text: str, prompt: Prompt | None = None, problem: str = "") -> Reply:
    return Reply(status, text, "", estimate_usage(prompt or Prompt(messages=()), text), 0.1, problem)


class Table:
    """A chat policy with access to its server, log and events."""

    def __init__(
        self,
        server: Answer | ChatServer,
        log: MemoryLog | None = None,
        primitives: Any = (),
        seed: int = 0,
        workbench: Any = None,
        **changes: Any,
    ) -> None:
        self.options = options(**changes)
        self.log = log or MemoryLog()
        self.events: list[Event] = []
        self.account = Account(self.options, self.log.recorded())
        self.server: Any = AnsweringServer(server) if callable(server) else server
        parts = (self.options, self.server, self.log, self.account, self.events.append, seed, primitives, workbench)
        self.policy = ChatPolicy(*parts)

    def propose(self, count: int = 8, **changes: Any) -> list[Candidate]:
        return self.policy.propose(observe(**changes), count)

    def told(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.event == kind]
