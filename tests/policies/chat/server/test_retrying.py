"""The wait before a request is sent again."""

import asyncio
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.chat.server.retrying import Again, retrying, wait_asked_for

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
