"""A score with outcomes fixed by the schedule of a candidate, and a stand-in for the generation of a trainer. Not a test."""

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from cudal2_agent.agent.learning.environment.scored_outcome import scored
from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.score import Scored
from tests.doubles import CHIP, measured, unmeasured

SMALL = GemmTask(m=64, n=64, k=64, arch=Arch.SM_80)
WIDE = GemmTask(m=64, n=128, k=64, arch=Arch.SM_80)


class FixedScore:
    """A candidate takes 1 µs for each 8 columns of a tile; a source of a model does not compile.

    `slow_s`: how long a task takes to score. `speed`: divides the times. `error`: raised instead, while it is set.
    """

    def __init__(self, slow_s: dict[GemmTask, float] | None = None, *, emulates: bool = False, speed: float = 1.0) -> None:
        self._slow_s = {task.id: seconds for task, seconds in (slow_s or {}).items()}
        self._emulates, self._speed = emulates, speed
        self.calls: list[tuple[Task, list[str]]] = []
        self.error: MachineError | None = None
        self._lock = threading.Lock()

    @property
    def chip(self) -> Chip:
        return CHIP

    def score(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored]:
        if self.error is not None:
            raise self.error
        with self._lock:
            self.calls.append((task, [one.id for one in candidates]))
        time.sleep(self._slow_s.get(task.id, 0.0))
        return [scored(one, self._evaluation(one), task, CHIP, seconds=0.5) for one in candidates]

    def _evaluation(self, candidate: AnyCandidate) -> Evaluation:
        schedule = candidate.origin.schedule
        if schedule is None:
            return CompileFailed(message="line 3: expected a ';'", log="")
        time_us = int(schedule["block_n"]) / 8 / self._speed
        return unmeasured(time_us, "emulator") if self._emulates else measured(time_us)


class RememberingScore(FixedScore):
    """It knows what it was asked before, even where the answer is still under way."""

    def known(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored | None]:
        return [
            scored(one, self._evaluation(one), task, CHIP, cached=True) if place == 0 else None
            for place, one in enumerate(candidates)
        ]


class ScriptedGeneration:
    """Tool calls first, one for each rollout, then a word. `prompts`: what it was given, as text."""

    def __init__(self, tokenizer: Any, calls: Sequence[dict[str, Any]]) -> None:
        self._tokenizer, self._calls, self.prompts = tokenizer, calls, list[str]()

    def __call__(self, prompt_ids: Sequence[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        first = not self.prompts
        self.prompts += self._tokenizer.batch_decode(prompt_ids)
        said = [f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>" for call in self._calls] if first else []
        texts = said or ["Done.<|im_end|>"] * len(prompt_ids)
        return [self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], None


def call(axes: dict[str, Any]) -> dict[str, Any]:
    """A tool call that submits a schedule."""
    return {"name": "submit_schedule", "arguments": {"axes": axes}}
