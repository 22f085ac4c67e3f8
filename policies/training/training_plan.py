"""The stages of training, in order, how long each takes, and the size of the network. It needs no torch, as commands do not."""

from typing import Literal

from pydantic import Field

from cudal2_agent.contract.base import Record

Stage = Literal["supervised", "contrastive", "group-relative"]
STAGES: tuple[Stage, ...] = ("supervised", "contrastive", "group-relative")
TREES = "trees"  # grown after the stages, which train the network


class NetworkSize(Record):
    """`members` of an ensemble, each with `depth` layers of `width` units and an embedding of `dimensions`."""

    members: int = Field(3, ge=1)
    width: int = Field(512, ge=1)
    depth: int = Field(3, ge=1)
    dimensions: int = Field(8, ge=1)
    dropout: float = Field(0.05, ge=0, lt=1)


class StagePlan(Record):
    """`epochs` over all groups with a peak `rate` of learning."""

    stage: Stage
    epochs: int = Field(ge=1)
    rate: float = Field(gt=0)


class TrainingPlan(Record):
    """What a training run does; equal plans and data give equal weights on one machine.

    `trees`: whether the trees of second opinions are grown. `rivals`: schedules beside the measured ones of a group, drawn
    anew in each epoch. `batch`: groups of a step.
    """

    stages: tuple[StagePlan, ...] = (
        StagePlan(stage="supervised", epochs=100, rate=2e-3),
        StagePlan(stage="contrastive", epochs=16, rate=2e-4),
        StagePlan(stage="group-relative", epochs=16, rate=2e-4),
    )
    trees: bool = False
    size: NetworkSize = NetworkSize()
    seed: int = 0
    batch: int = Field(16, ge=1)
    rivals: int = Field(48, ge=0)
    decay: float = Field(0.01, ge=0)


def stages_of(plan: TrainingPlan, *, trees: bool) -> tuple[str, ...]:
    """What a card says of a training. `trees`: whether the policy has them, grown now or kept from the one it began with."""
    return (*(stage.stage for stage in plan.stages), *([TREES] if trees else []))


# For a policy that is trained on with a few dozen runs: short stages at low rates correct it, and replace little.
ADAPTING = TrainingPlan(
    stages=(
        StagePlan(stage="supervised", epochs=30, rate=5e-4),
        StagePlan(stage="group-relative", epochs=10, rate=1e-4),
    ),
    batch=4,
)
# Where there is no policy to begin with: a smaller network, for longer.
ANEW = TrainingPlan(
    stages=(
        StagePlan(stage="supervised", epochs=60, rate=2e-3),
        StagePlan(stage="group-relative", epochs=10, rate=1e-4),
    ),
    size=NetworkSize(members=3, width=128),
    batch=4,
)
