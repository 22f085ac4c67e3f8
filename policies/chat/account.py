"""The account of a run's requests, and its caps on tokens, money and time.

Each request reserves its maximum cost before it is sent and is settled when it ends. Concurrent requests therefore cannot
exceed a cap together. A single reply that ignores its token limit can exceed a cap until it is stopped.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cudal2_agent.contract.records.exchange import Exchange, Prompt, Usage
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit
from cudal2_agent.policies.chat.tokens import chars_of

MIN_REPLY_TOKENS = 512  # a shorter reply cannot hold a kernel, so paying for one is useless
_CAUTIOUS_TOKENS_PER_CHAR = 0.5  # used until a server has counted a prompt of this run
_SLACK = 1.05
_MILLION = 1e6


@dataclass(frozen=True)
class Capped:
    """No request may be sent. `reason`: one line that names the cap that was reached."""

    reason: str


@dataclass(frozen=True)
class Totals:
    """The cost of a run's requests so far. `estimated`: requests without a server's token count. `seconds`: waiting time."""

    requests: int
    prompt_tokens: int
    reply_tokens: int
    estimated: int
    cost: float
    seconds: float

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.reply_tokens


@dataclass(frozen=True)
class _Spent:
    usage: Usage
    cost: float


@dataclass(frozen=True)
class _Reservation:
    """The maximum that a request in flight may cost."""

    tokens: int
    price: float


class Account:
    """Thread-safe. `recorded`: the exchanges of a resumed run. `replayed`: replies are replayed, so nothing is paid."""

    def __init__(
        self,
        options: ChatOptions,
        recorded: Sequence[Exchange] = (),
        *,
        replayed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._replayed, self._clock = options, replayed, clock
        self._spent = {e.place: _Spent(e.usage, e.cost) for e in recorded}
        self._answered = frozenset((e.place, e.prompt.id) for e in recorded if e.status != "failed")
        self._reservations: dict[ExchangePlace, _Reservation] = {}
        self._waited = _union_length(_span(exchange) for exchange in recorded)
        self._busy_since = 0.0
        self._tokens_per_char = 0.0
        for exchange in recorded:
            self._update_density(exchange)
        self._changed = threading.Condition()

    def reserve(self, prompt: Prompt, place: ExchangePlace, seconds: float, reply_tokens: int | None = None) -> Limit | Capped:
        """What the request may spend. Called by the thread that asks, which then calls `settle` or `release`.

        `reply_tokens`: of a full reply; None for the setting's.
        Waits up to `seconds` while requests in flight reserve the tokens that a full reply needs. A request whose reply
        is already in the run's log is not capped.
        """
        wanted = reply_tokens or self._options.reply_tokens
        with self._changed:
            until = self._clock() + seconds
            while True:
                in_flight = [held for held in self._reservations.values() if held.tokens]
                granted = self._grant(prompt, place, until - self._clock(), in_flight, wanted)
                alone = self._grant(prompt, place, until - self._clock(), (), wanted)
                if isinstance(granted, Limit) or isinstance(alone, Capped):
                    break
                if not self._changed.wait(until - self._clock()):
                    break
            if isinstance(granted, Limit):
                self._hold(place, self._need(prompt, place, granted.reply_tokens))
            return granted

    def settle(self, exchange: Exchange) -> None:
        """Replace the reservation of an exchange by its actual tokens and cost."""
        with self._changed:
            self._drop(exchange.place)
            self._spent[exchange.place] = _Spent(exchange.usage, exchange.cost)
            self._update_density(exchange)

    def release(self, place: ExchangePlace) -> None:
        """Cancel the reservation of a request that produced no exchange."""
        with self._changed:
            self._drop(place)

    @contextmanager
    def tools_running(self, place: ExchangePlace) -> Iterator[None]:
        """Count the time of a reply's tools as time spent waiting for replies."""
        with self._changed:
            self._hold(place, _Reservation(0, 0.0))
        try:
            yield
        finally:
            self.release(place)

    def cost(self, usage: Usage) -> float:
        """The cost of an exchange at the configured prices; 0 for a replayed one."""
        return 0.0 if self._replayed else self._price(usage.prompt_tokens, usage.completion_tokens)

    @property
    def totals(self) -> Totals:
        with self._changed:
            spent = list(self._spent.values())
            return Totals(
                requests=len(spent),
                prompt_tokens=sum(one.usage.prompt_tokens for one in spent),
                reply_tokens=sum(one.usage.completion_tokens for one in spent),
                estimated=sum(one.usage.counted == "estimate" for one in spent),
                cost=sum(one.cost for one in spent),
                seconds=self._seconds(),
            )

    def _grant(
        self, prompt: Prompt, place: ExchangePlace, seconds: float, in_flight: Sequence[_Reservation], wanted: int
    ) -> Limit | Capped:
        """A full reply. If no request in flight can return tokens, the remainder of the caps."""
        options = self._options
        seconds = min(seconds, options.reply_s)
        if (place, prompt.id) in self._answered:
            return Limit(wanted, seconds)
        if options.minutes is not None:
            seconds = min(seconds, 60 * options.minutes - self._seconds())
            if seconds <= 0:
                return Capped(f"the cap of {options.minutes:g} min of waiting for replies is reached")
        room, cap = min(self._room_of_tokens(prompt, in_flight), self._room_of_money(prompt, in_flight))
        if room >= wanted or (not in_flight and room >= MIN_REPLY_TOKENS):
            return Limit(math.floor(min(room, wanted)), seconds)
        return Capped(cap)

    def _room_of_tokens(self, prompt: Prompt, in_flight: Sequence[_Reservation]) -> tuple[float, str]:
        """Tokens that the token cap leaves for a reply to this prompt, and the reason to give if they are too few."""
        cap = self._options.tokens
        if cap is None:
            return math.inf, ""
        spent = sum(one.usage.tokens for one in self._spent.values())
        room = cap - spent - sum(held.tokens for held in in_flight) - self._prompt_tokens(prompt)
        return room, f"the cap of {cap} tokens is reached: {spent} are spent, which leaves no room for another reply"

    def _room_of_money(self, prompt: Prompt, in_flight: Sequence[_Reservation]) -> tuple[float, str]:
        cap = self._options.money
        if cap is None:
            return math.inf, ""
        spent = sum(self._price(one.usage.prompt_tokens, one.usage.completion_tokens) for one in self._spent.values())
        left = cap - spent - sum(held.price for held in in_flight) - self._price(self._prompt_tokens(prompt), 0)
        reason = f"the cap of {cap:g} in money is reached: {spent:.4g} is spent, which leaves no room for another reply"
        price = self._options.reply_price
        return (left * _MILLION / price if price else math.copysign(math.inf, left)), reason

    def _need(self, prompt: Prompt, place: ExchangePlace, reply_tokens: int) -> _Reservation:
        if (place, prompt.id) in self._answered:
            return _Reservation(0, 0.0)
        asked = self._prompt_tokens(prompt)
        return _Reservation(asked + reply_tokens, self._price(asked, reply_tokens))

    def _hold(self, place: ExchangePlace, held: _Reservation) -> None:
        if not self._reservations:
            self._busy_since = self._clock()
        self._reservations[place] = held

    def _drop(self, place: ExchangePlace) -> None:
        if self._reservations.pop(place, None) is not None and not self._reservations:
            self._waited += self._clock() - self._busy_since
        self._changed.notify_all()

    def _seconds(self) -> float:
        return self._waited + (self._clock() - self._busy_since if self._reservations else 0.0)

    def _update_density(self, exchange: Exchange) -> None:
        """Estimate later prompts by the highest ratio of tokens to characters that a server has reported."""
        characters = chars_of(exchange.prompt)
        if exchange.usage.counted == "server" and characters:
            self._tokens_per_char = max(self._tokens_per_char, exchange.usage.prompt_tokens / characters)

    def _prompt_tokens(self, prompt: Prompt) -> int:
        measure = self._tokens_per_char * _SLACK or _CAUTIOUS_TOKENS_PER_CHAR
        return math.ceil(chars_of(prompt) * measure)

    def _price(self, prompt_tokens: int, reply_tokens: int) -> float:
        return (prompt_tokens * self._options.prompt_price + reply_tokens * self._options.reply_price) / _MILLION


def _span(exchange: Exchange) -> tuple[float, float]:
    """When the request of an exchange began and when the last tool that it called had run."""
    ended = exchange.created_at.timestamp()
    return ended - exchange.seconds, ended + sum(result.seconds for result in exchange.results)


def _union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of time spans: the waiting time of concurrent requests counts once."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
