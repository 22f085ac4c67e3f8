"""Rounds that version 0.1.0 recorded replay with the same candidates, and what a replay recorded is never asked again.

`stored_rounds_v1.json.gz` has two rounds: first kernels, replies in the wrong form, a repair and improvements.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Exemplar, Failure, Observation
from cudal2_agent.policies.chat.account import Account
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.policy import ChatPolicy
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.server.chat_server import ChatServer, ExchangePlace
from cudal2_agent.policies.chat.server.replay import RecordedFirst, ReplayServer
from tests.policies.chat.conversing import AnsweringServer, MemoryLog, options

STORED_ROUNDS = json.loads(gzip.decompress((Path(__file__).parent / "stored_rounds_v1.json.gz").read_bytes()))
EXCHANGES = [Exchange.model_validate(exchange) for exchange in STORED_ROUNDS["exchanges"]]
ROUNDS = list(zip(map(Observation.model_validate, STORED_ROUNDS["observations"]), STORED_ROUNDS["candidates"], strict=True))


def propose(server: ChatServer, log: MemoryLog) -> None:
    policy = ChatPolicy(options(), server, log, Account(options()), lambda _: None, 0)
    for observation, ids in ROUNDS:
        assert [candidate.id for candidate in policy.propose(observation, 3)] == ids


def replayed() -> list[Exchange]:
    """The rounds as a replay by this version records them: the prompts are of this version."""
    log = MemoryLog()
    propose(ReplayServer(EXCHANGES), log)
    return log.recorded()


def test_a_replay_finds_every_reply_by_its_prompt_or_its_place() -> None:
    server, log = ReplayServer(EXCHANGES), MemoryLog()
    propose(server, log)
    assert server.missing == 0
    recorded = log.recorded()
    assert [(each.place, each.candidate_ids, each.problem) for each in recorded] == [
        (each.place, each.candidate_ids, each.problem) for each in EXCHANGES
    ]
    again = ReplayServer(recorded)
    propose(again, MemoryLog())
    assert (again.differed, again.missing) == (0, 0)


def test_a_resumed_run_asks_for_nothing_that_is_recorded() -> None:
    def unreachable(*_: object) -> str:
        pytest.fail("a recorded reply was requested again")

    known = replayed()
    log = MemoryLog(known)
    propose(RecordedFirst(AnsweringServer(unreachable), log), log)
    assert {each.place: each.candidate_ids for each in log.recorded()} == {each.place: each.candidate_ids for each in known}


def test_only_missing_replies_are_requested() -> None:
    asked: list[ExchangePlace] = []
    *recorded, missing = replayed()

    def answer(_: object, place: ExchangePlace) -> str:
        asked.append(place)
        return missing.reply

    log = MemoryLog(recorded)
    propose(RecordedFirst(AnsweringServer(answer), log), log)
    assert asked == [missing.place]


# Observations of stored runs still make prompts, and the same ones each time.
#
# `stored_prompts_v1.jsonl` has observations of version 0.1.0. The words of its prompts have changed since.
STORED = [json.loads(line) for line in (Path(__file__).parent / "stored_prompts_v1.jsonl").read_text("utf-8").splitlines()]
HEADER = """// Copies for sm_80 and up.
#pragma once
#include <cstdint>
namespace cudal2 {
// Waits for all copies.
__device__ __forceinline__ void wait() { asm volatile(""); }
}  // namespace cudal2
"""


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored["name"])
def test_a_stored_observation_makes_the_same_prompt_each_time(stored: dict[str, Any]) -> None:
    failure = Failure.model_validate(stored["failure"]) if stored["failure"] else None
    exemplars = tuple(Exemplar.model_validate(exemplar) for exemplar in stored["exemplars"])
    observation = Observation.model_validate(stored["observation"])
    asked, again = (
        Prompts(stored["tokens"], [("cudal2/sample.cuh", HEADER)]).first(observation, Assignment(0, failure, exemplars))
        for _ in range(2)
    )
    assert asked == again
    shown = failure.candidate if failure else observation.best
    for attempt in observation.attempts if stored["tokens"] >= 24_000 else ():
        assert attempt.candidate_id[:8] in asked.prompt.messages[1].content
    assert asked.parents == ((shown.id,) if shown else ())
