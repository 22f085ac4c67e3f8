"""Stands in for the generation of a trainer, whose random model cannot call a tool by itself. Not a test."""

import json
from collections.abc import Sequence
from typing import Any


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
