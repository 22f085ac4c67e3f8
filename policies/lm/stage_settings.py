"""The settings of one stage of training, kept beside its checkpoints and in the adapter, and where an unfinished one lies."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from cudal2_agent.contract.base import Record
from cudal2_agent.policies.lm.examples import Stage

LEARNING_RATES: dict[Stage, float] = {"sft": 5e-4, "contrastive": 3e-4, "grpo": 3e-5}


class StageSettings(Record):
    """`model`: a folder or name; None is the packaged one. `previous`: the adapter to continue, as a path.

    `batch`: examples, or replies in `grpo`, of one forward pass on one device; `accumulate`: passes per step.
    `group`: replies to one prompt. `kl`: weight of the divergence from the model that the stage begins with.
    `rank`: of a new LoRA adapter. `save_every`: steps between checkpoints.
    """

    stage: Stage
    model: str | None = None
    previous: str | None = None
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    seed: int = 0
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-4
    batch: Annotated[int, Field(ge=1)] = 16
    accumulate: Annotated[int, Field(ge=1)] = 1
    group: Annotated[int, Field(ge=2)] = 8
    kl: Annotated[float, Field(ge=0)] = 0.02
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    rank: Annotated[int, Field(ge=1)] = 32
    save_every: Annotated[int, Field(ge=1)] = 50
    reply_tokens: Annotated[int, Field(ge=8)] = 112  # a schedule takes at most 110 of SmolLM2's, and its end one

    @model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, values: Any) -> Any:
        """Without `vllm_server`, which adapters and interrupted trainings of older versions name."""
        return {name: value for name, value in values.items() if name != "vllm_server"} if isinstance(values, dict) else values


def work_of(out: Path) -> Path:
    """The folder of a training that is not finished."""
    return out.with_name(f"{out.name}.training")
