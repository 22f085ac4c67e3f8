"""The account: the cost of a run is summed, and concurrent requests cannot exceed a cap together."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.account import MIN_REPLY_TOKENS, Account, Capped, Totals
from cudal2_agent.policies.chat.server.chat_server import Limit
from tests.policies.chat.exchanges import exchange, prompt, usage


def options(**changes: object) -> ChatOptions:
    return ChatOptions.model_validate({"model": "test", "tokens": None, "reply_tokens": 1000, "reply_s": 60.0, **changes})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_recorded_is_summed() -> None:
    recorded = [
        exchange((1, 0, 0), usage=usage(100, 50), cost=0.5),
        exchange((1, 1, 0), usage=usage(10, 5, counted=False), cost=0.25),
    ]
    assert Account(options(), recorded).totals == Totals(2, 110, 55, 1, 0.75, seconds=4.0)


def test_requests_that_ran_at_once_are_waited_for_once() -> None:
    at_once = [exchange((1, n, 0), created_at=exchange().created_at, seconds=float(n + 1)) for n in range(3)]
    assert Account(options(), at_once).totals.seconds == pytest.approx(3.0)


def test_time_is_counted_while_a_request_is_under_way() -> None:
    clock = Clock()
    account = Account(options(minutes=1.0), clock=clock)
    account.reserve(prompt(), (1, 0, 0), 60)
    account.reserve(prompt(), (1, 1, 0), 60)
    clock.now += 20
    account.settle(exchange((1, 0, 0)))
    clock.now += 10
    assert account.totals.seconds == pytest.approx(30)
    account.release((1, 1, 0))
    clock.now += 1000
    assert account.totals.seconds == pytest.approx(30)
    assert account.reserve(prompt(), (2, 0, 0), 60) == Limit(1000, 30.0)
    clock.now += 30
    account.settle(exchange((2, 0, 0)))
    assert account.reserve(prompt(), (3, 0, 0), 60) == Capped("the cap of 1 min of waiting for replies is reached")


def test_without_caps_a_request_has_the_options_limits() -> None:
    assert Account(options()).reserve(prompt(), (1, 0, 0), 600.0) == Limit(1000, 60.0)
    assert Account(options()).reserve(prompt(), (1, 0, 0), 7.0).seconds <= 7.0


def test_a_cap_on_tokens_is_named_when_it_is_reached() -> None:
    account = Account(options(tokens=20_000), [exchange(usage=usage(15_000, 4_900))])
    granted = account.reserve(prompt(), (2, 0, 0), 60)
    assert isinstance(granted, Capped)
    assert "the cap of 20000 tokens is reached: 19900 are spent" in granted.reason


def test_a_cap_on_money_is_named_when_it_is_reached() -> None:
    account = Account(options(money=2.0, prompt_price=10.0, reply_price=1000.0), [exchange(usage=usage(0, 1999))])
    granted = account.reserve(prompt(), (2, 0, 0), 60)
    assert isinstance(granted, Capped)
    assert "the cap of 2 in money is reached: 1.999 is spent" in granted.reason


def test_money_counts_prompts_where_replies_are_free() -> None:
    account = Account(options(money=1.0, prompt_price=1.0), [exchange(usage=usage(2_000_000, 0))])
    assert isinstance(account.reserve(prompt(), (2, 0, 0), 60), Capped)
    assert isinstance(Account(options(money=1.0, prompt_price=1.0)).reserve(prompt(), (2, 0, 0), 60), Limit)


def test_the_last_reply_gets_what_is_left() -> None:
    account = Account(options(tokens=20_000), [exchange(usage=usage(100, 19_100))])
    granted = account.reserve(prompt(), (2, 0, 0), 60)
    assert isinstance(granted, Limit)
    assert MIN_REPLY_TOKENS <= granted.reply_tokens < 800


def test_a_failed_request_gives_back_what_it_held() -> None:
    account = Account(options(tokens=1500))
    for _ in range(50):
        assert isinstance(account.reserve(prompt(), (1, 0, 0), 60), Limit)
        account.release((1, 0, 0))
    assert account.totals.requests == 0


def test_a_reply_that_the_log_holds_is_free_of_the_caps() -> None:
    account = Account(options(tokens=1000), [exchange((1, 0, 0), usage=usage(900, 100))])
    assert account.reserve(prompt(), (1, 0, 0), 60) == Limit(1000, pytest.approx(60, abs=5))
    assert isinstance(account.reserve(prompt("another"), (1, 0, 0), 60), Capped)
    account.settle(exchange((1, 0, 0), usage=usage(900, 100)))
    assert account.totals.requests == 1
    assert account.totals.tokens == 1000


def test_a_failed_exchange_in_the_log_is_not_free() -> None:
    failed = exchange((1, 0, 0), status="failed", usage=usage(1000, 0))
    assert isinstance(Account(options(tokens=1000), [failed]).reserve(prompt(), (1, 0, 0), 60), Capped)


def test_a_replay_costs_nothing_and_keeps_the_caps() -> None:
    account = Account(options(money=1.0, reply_price=1.0), replayed=True)
    assert account.cost(usage(0, 999_900)) == 0.0
    account.settle(exchange(usage=usage(0, 999_900), cost=account.cost(usage(0, 999_900))))
    assert account.totals.cost == 0.0
    assert isinstance(account.reserve(prompt(), (2, 0, 0), 60), Capped)


def test_prices_are_per_million_tokens() -> None:
    account = Account(options(prompt_price=3.0, reply_price=15.0))
    assert account.cost(usage(2_000_000, 1_000_000)) == pytest.approx(21.0)


def test_a_request_waits_for_what_others_hold_and_gets_it() -> None:
    account = Account(options(tokens=1500))
    assert isinstance(account.reserve(prompt(), (1, 0, 0), 60), Limit)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(account.reserve, prompt(), (1, 1, 0), 60.0)
        time.sleep(0.05)
        assert not waiting.done()
        account.settle(exchange((1, 0, 0), usage=usage(20, 30)))
        assert waiting.result(5) == Limit(1000, pytest.approx(60, abs=5))


def test_a_request_waits_no_longer_than_its_time() -> None:
    account = Account(options(tokens=1500))
    account.reserve(prompt(), (1, 0, 0), 60)
    begun = time.monotonic()
    assert isinstance(account.reserve(prompt(), (1, 1, 0), 0.1), Capped)
    assert 0.05 < time.monotonic() - begun < 5


@given(
    st.integers(600, 20_000),
    st.integers(2, 8),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=24),
)
def test_parallel_requests_stay_within_a_cap(cap: int, parallel: int, takes: list[tuple[float, float]]) -> None:
    """For any size of the replies within their limits, and any order in which they end."""
    account = Account(options(tokens=cap))
    most, lock = 0, threading.Lock()

    def ask(sample: int) -> None:
        nonlocal most
        granted = account.reserve(prompt(), (1, sample, 0), 10.0)
        if isinstance(granted, Capped):
            return
        asked, written = takes[sample]
        taken = usage(int(asked * 11), int(written * granted.reply_tokens))
        account.settle(exchange((1, sample, 0), usage=taken))
        with lock:
            most = max(most, account.totals.tokens)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(ask, range(len(takes))))
    assert most <= cap
    assert account.totals.tokens <= cap


def test_the_densest_prompt_that_a_server_counted_is_the_measure() -> None:
    """A prompt with many tokens per character reserves enough."""
    counted: Exchange = exchange(text="x" * 1000, usage=usage(1000, 0))
    account = Account(options(tokens=4000), [counted])
    granted = account.reserve(prompt("y" * 2300), (2, 0, 0), 60)
    assert isinstance(granted, Limit)
    assert granted.reply_tokens + 2300 + 1000 <= 4000


def test_nobody_waits_for_what_cannot_come() -> None:
    account = Account(options(tokens=2000), [exchange((1, 0, 0), usage=usage(1000, 900))], clock=time.monotonic)
    account.reserve(prompt(), (1, 0, 0), 60)
    begun = time.monotonic()
    assert isinstance(account.reserve(prompt("another"), (2, 0, 0), 60), Capped)
    assert time.monotonic() - begun < 5
