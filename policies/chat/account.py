"""The running account of a run's requests, and its caps on tokens, money and time.

A request is granted against the caps before it is sent, with all that it may take, and settled when it has ended: requests
under way at once cannot pass a cap together. A reply that ignores its limit can, by itself, until it is stopped.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from contract.exchange import Exchange, Prompt, Usage
from contract.options import ChatOptions
from policies.chat.server.protocol import Limit, Place
from policies.chat.tokens import characters_of

LEAST_REPLY_TOKENS = 512  # a kernel does not fit in less; a grant of less would be paid for nothing
_WARY_TOKENS_A_CHARACTER = 0.5  # until a server has counted a prompt of this run
_SLACK = 1.05
_MILLION = 1e6


@dataclass(frozen=True)
class Capped:
    """No request may be sent. `reason`: one line that names the cap."""

    reason: str


@dataclass(frozen=True)
class Totals:
    """What a run's requests took so far. `estimated`: those whose tokens no server counted. `seconds`: spent waiting."""

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
    prompt_id: str
    usage: Usage
    cost: float


@dataclass(frozen=True)
class _Held:
    """What a request under way may take at most."""

    tokens: int
    price: float


class Account:
    """Thread-safe. `recorded`: what the run's log holds when it is taken up again. `replayed`: nothing is paid."""

    def __init__(
        self,
        options: ChatOptions,
        recorded: Sequence[Exchange] = (),
        *,
        replayed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._replayed, self._clock = options, replayed, clock
        self._spent = {e.place: _Spent(e.prompt.id, e.usage, e.cost) for e in recorded}
        self._answered = frozenset((e.place, e.prompt.id) for e in recorded if e.status != "failed")
        self._held: dict[Place, _Held] = {}
        self._waited = _covered((e.created_at.timestamp() - e.seconds, e.created_at.timestamp()) for e in recorded)
        self._busy_since = 0.0
        self._tokens_a_character = 0.0
        for exchange in recorded:
            self._learn(exchange)
        self._changed = threading.Condition()

    def reserve(self, prompt: Prompt, place: Place, seconds: float) -> Limit | Capped:
        """What the request may spend; call it from the thread that asks, then `settle` or `release` the place.

        Waits, `seconds` at most, while requests under way hold what a full reply needs. Free of the caps where the run's
        log already holds the reply.
        """
        with self._changed:
            until = self._clock() + seconds
            while True:
                under_way = [held for held in self._held.values() if held.tokens]
                granted = self._grant(prompt, place, until - self._clock(), under_way)
                alone = self._grant(prompt, place, until - self._clock(), ())
                if isinstance(granted, Limit) or isinstance(alone, Capped):
                    break
                if not self._changed.wait(until - self._clock()):
                    break
            if isinstance(granted, Limit):
                self._hold(place, self._need(prompt, place, granted.reply_tokens))
            return granted

    def settle(self, exchange: Exchange) -> None:
        """Put an exchange's tokens and cost in place of what was held for it."""
        with self._changed:
            self._drop(exchange.place)
            self._spent[exchange.place] = _Spent(exchange.prompt.id, exchange.usage, exchange.cost)
            self._learn(exchange)

    def release(self, place: Place) -> None:
        """Give back what was held for a request that came to nothing."""
        with self._changed:
            self._drop(place)

    def cost(self, usage: Usage) -> float:
        """What an exchange costs by the prices set; nothing where it is replayed."""
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

    def _grant(self, prompt: Prompt, place: Place, seconds: float, under_way: Sequence[_Held]) -> Limit | Capped:
        """A full reply, or, where nothing is under way that may give something back, what is left of the caps."""
        options = self._options
        seconds = min(seconds, options.reply_s)
        if (place, prompt.id) in self._answered:
            return Limit(options.reply_tokens, seconds)
        if options.minutes is not None:
            seconds = min(seconds, 60 * options.minutes - self._seconds())
            if seconds <= 0:
                return Capped(f"the cap of {options.minutes:g} min of waiting for replies is reached")
        room, cap = min(self._room_of_tokens(prompt, under_way), self._room_of_money(prompt, under_way))
        if room >= options.reply_tokens or (not under_way and room >= LEAST_REPLY_TOKENS):
            return Limit(math.floor(min(room, options.reply_tokens)), seconds)
        return Capped(cap)

    def _room_of_tokens(self, prompt: Prompt, under_way: Sequence[_Held]) -> tuple[float, str]:
        """Tokens that the cap on tokens leaves a reply to this prompt, and what to say where they are too few."""
        cap = self._options.tokens
        if cap is None:
            return math.inf, ""
        spent = sum(one.usage.tokens for one in self._spent.values())
        room = cap - spent - sum(held.tokens for held in under_way) - self._prompt_tokens(prompt)
        return room, f"the cap of {cap} tokens is reached: {spent} are spent, which leaves no room for another reply"

    def _room_of_money(self, prompt: Prompt, under_way: Sequence[_Held]) -> tuple[float, str]:
        cap = self._options.money
        if cap is None:
            return math.inf, ""
        spent = sum(self._price(one.usage.prompt_tokens, one.usage.completion_tokens) for one in self._spent.values())
        left = cap - spent - sum(held.price for held in under_way) - self._price(self._prompt_tokens(prompt), 0)
        said = f"the cap of {cap:g} in money is reached: {spent:.4g} is spent, which leaves no room for another reply"
        price = self._options.reply_price
        return (left * _MILLION / price if price else math.copysign(math.inf, left)), said

    def _need(self, prompt: Prompt, place: Place, reply_tokens: int) -> _Held:
        if (place, prompt.id) in self._answered:
            return _Held(0, 0.0)
        asked = self._prompt_tokens(prompt)
        return _Held(asked + reply_tokens, self._price(asked, reply_tokens))

    def _hold(self, place: Place, held: _Held) -> None:
        if not self._held:
            self._busy_since = self._clock()
        self._held[place] = held

    def _drop(self, place: Place) -> None:
        if self._held.pop(place, None) is not None and not self._held:
            self._waited += self._clock() - self._busy_since
        self._changed.notify_all()

    def _seconds(self) -> float:
        return self._waited + (self._clock() - self._busy_since if self._held else 0.0)

    def _learn(self, exchange: Exchange) -> None:
        """Take the densest prompt that a server counted as the measure for those to come."""
        characters = characters_of(exchange.prompt)
        if exchange.usage.counted == "server" and characters:
            self._tokens_a_character = max(self._tokens_a_character, exchange.usage.prompt_tokens / characters)

    def _prompt_tokens(self, prompt: Prompt) -> int:
        measure = self._tokens_a_character * _SLACK or _WARY_TOKENS_A_CHARACTER
        return math.ceil(characters_of(prompt) * measure)

    def _price(self, prompt_tokens: int, reply_tokens: int) -> float:
        return (prompt_tokens * self._options.prompt_price + reply_tokens * self._options.reply_price) / _MILLION


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans: requests that ran at once are waited for once."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
