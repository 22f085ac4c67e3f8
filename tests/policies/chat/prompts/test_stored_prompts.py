"""Prompts equal those of stored runs: a resumed run pays nothing twice, and a replay finds each reply by its prompt.

`stored_prompts_v1.jsonl` has observations and the ids of the prompts that version 0.1.0 made for them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from contract.trajectory import Exemplar, Failure, Observation
from policies.chat.assignment import Assignment
from policies.chat.prompts.composition import Prompts

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
def test_a_stored_observation_gives_the_stored_prompt(stored: dict[str, Any]) -> None:
    prompts = Prompts(stored["tokens"], [("cudal2/sample.cuh", HEADER)])
    failure = Failure.model_validate(stored["failure"]) if stored["failure"] else None
    exemplars = tuple(Exemplar.model_validate(exemplar) for exemplar in stored["exemplars"])
    first = prompts.first(Observation.model_validate(stored["observation"]), Assignment(0, failure, exemplars))
    assert first.prompt.id == stored["prompt"]
    assert prompts.again(first.prompt, "no kernel here", "the reply has no code block", cut=True).id == stored["again"]
