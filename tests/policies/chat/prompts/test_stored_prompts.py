"""Observations of stored runs still make prompts, and the same ones each time.

`stored_prompts_v1.jsonl` has observations of version 0.1.0. The words of its prompts have changed since.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.records.trajectory import Exemplar, Failure, Observation
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts

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
