"""Replies come from a record in place of a server, and nothing is paid twice."""

import asyncio
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.exchange import Exchange, Prompt
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit, NoReply, Reply
from cudal2_agent.policies.chat.server.replay import RecordedFirst, ReplayServer
from cudal2_agent.policies.chat.server.retrying import Again, retrying, wait_asked_for
from tests.policies.chat.exchanges import exchange, prompt, usage

LIMIT = Limit(1000, 60.0)


class Log:
    def __init__(self, *exchanges: Exchange) -> None:
        self.exchanges = list(exchanges)

    def record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def recorded(self) -> list[Exchange]:
        return list(self.exchanges)


class Counting:
    """A server that counts its requests."""

    def __init__(self) -> None:
        self.asked: list[ExchangePlace] = []
        self.closed = False

    def ask(self, _: Prompt, place: ExchangePlace, __: Limit) -> Reply:
        self.asked.append(place)
        return Reply("complete", "fresh", "", usage(), 0.1)

    def close(self) -> None:
        self.closed = True


def test_a_reply_is_replayed_as_it_was() -> None:
    recorded = exchange(status="cut", problem="the connection broke", reasoning="hm", usage=usage(7, 8), seconds=3.0)
    server = ReplayServer([recorded])
    assert server.ask(prompt(), (1, 0, 0), LIMIT) == Reply(
        "cut", recorded.reply, "hm", usage(7, 8), 3.0, "the connection broke"
    )
    assert server.differed == 0


def test_what_the_reader_found_wrong_is_left_to_the_reader() -> None:
    assert ReplayServer([exchange(problem="no code")]).ask(prompt(), (1, 0, 0), LIMIT).problem == ""


def test_samples_of_one_prompt_each_get_their_own_in_whatever_order_they_ask() -> None:
    server = ReplayServer([exchange((1, sample, 0)) for sample in range(3)])
    assert [server.ask(prompt(), (1, sample, 0), LIMIT).text for sample in (2, 0, 1)] == [
        "reply at (1, 2, 0)",
        "reply at (1, 0, 0)",
        "reply at (1, 1, 0)",
    ]


def test_a_known_prompt_at_another_place_gets_one_of_its_replies() -> None:
    server = ReplayServer([exchange((1, 0, 0), "a"), exchange((1, 1, 0), "a"), exchange((2, 0, 0), "b")])
    texts = [server.ask(prompt("a"), (2, sample, 0), LIMIT).text for sample in range(2)]
    assert texts == ["reply at (1, 0, 0)", "reply at (1, 1, 0)"]
    assert server.differed == 0
    with pytest.raises(NoReply):  # a model would write another one
        server.ask(prompt("a"), (2, 2, 0), LIMIT)


def test_another_prompt_at_a_known_place_is_answered_and_counted() -> None:
    server = ReplayServer([exchange((1, 0, 0), "a"), exchange((2, 0, 0), "b")])
    assert server.ask(prompt("changed"), (2, 0, 0), LIMIT).text == "reply at (2, 0, 0)"
    assert server.differed == 1


def test_past_the_record_is_one_line() -> None:
    server = ReplayServer([exchange(), exchange((1, 1, 0))])
    with pytest.raises(NoReply, match="the 2 replies of the replayed run are used up") as caught:
        server.ask(prompt("new"), (2, 0, 1), LIMIT)
    assert "\n" not in str(caught.value)
    assert server.missing == 0
    with pytest.raises(NoReply):
        server.ask(prompt("new"), (1, 0, 1), LIMIT)
    assert server.missing == 1


def test_a_run_without_replies_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="has no reply"):
        ReplayServer([]).ask(prompt(), (1, 0, 0), LIMIT)


def test_a_run_taken_up_again_asks_only_for_what_it_does_not_hold() -> None:
    behind = Counting()
    server = RecordedFirst(behind, Log(exchange((1, 0, 0)), exchange((1, 1, 0))))
    texts = [server.ask(prompt(), (1, sample, 0), LIMIT).text for sample in range(3)]
    assert texts == ["reply at (1, 0, 0)", "reply at (1, 1, 0)", "fresh"]
    assert behind.asked == [(1, 2, 0)]


def test_another_prompt_or_a_failed_request_is_asked_anew() -> None:
    behind = Counting()
    server = RecordedFirst(behind, Log(exchange((1, 0, 0), "old"), exchange((1, 1, 0), status="failed", problem="HTTP 500")))
    assert [server.ask(prompt(), (1, sample, 0), LIMIT).text for sample in range(2)] == ["fresh", "fresh"]
    server.close()
    assert behind.closed


# The wait before a request is sent again.
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60.0),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"retry-after": "inf"}, float("inf")),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "next week"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_what_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_asked_for(headers, NOW) == seconds


@given(st.text(max_size=40))
def test_no_header_breaks_it(text: str) -> None:
    assert wait_asked_for({"retry-after": text}, NOW) is None or wait_asked_for({"retry-after": text}, NOW) >= 0


def waits(again: Again, retries: int, seconds: float) -> list[float]:
    told: list[float] = []

    async def attempt() -> Again:
        return again

    async def no_sleep(_: float) -> None:
        pass

    trying = retrying(retries, seconds, lambda _, wait: told.append(wait))
    trying.sleep = no_sleep
    assert asyncio.run(trying(attempt)) is again
    return told


def test_waits_double_up_to_a_bound_with_some_jitter() -> None:
    told = waits(Again("busy", "unusable"), 9, 1e6)
    assert len(told) == 9
    for wait, least in zip(told, [0.5, 1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert least <= wait <= least + 0.25
    assert len(set(told)) > 3


def test_what_was_asked_for_is_waited_for_and_a_little_more() -> None:
    for wait in waits(Again("busy", "unusable", after_s=3.0), 4, 1e6):
        assert 3.0 <= wait <= 3.25


@pytest.mark.parametrize("asked", [61.0, float("inf")])
def test_no_wait_passes_the_time(asked: float) -> None:
    assert waits(Again("busy", "unusable", after_s=asked), 9, 60.0) == []
