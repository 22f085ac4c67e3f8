"""A group as tensors, in the form in which the losses read it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cudal2_agent.policies.training.groups import ScheduleGroup

CLIPPED_ADVANTAGE = 1.5  # in standard deviations, as in CUDA-L1


@dataclass(frozen=True)
class GroupTensors:
    """`count` measured schedules, then rivals. `features` and `prior` hold both; `costs` and `advantages` the first only.

    `baseline`: ln of AutoTuning's time in microseconds.
    """

    count: int
    features: Tensor
    prior: Tensor
    costs: Tensor
    advantages: Tensor
    baseline: float


def tensors_of(group: ScheduleGroup, rivals: int, rng: np.random.Generator) -> GroupTensors:
    """With at most `rivals` rivals, drawn anew on each call."""
    drawn = rng.permutation(len(group.rival_prior))[:rivals]
    features = np.concatenate([group.features, group.rival_features[drawn]])
    prior = np.concatenate([group.prior, group.rival_prior[drawn]])
    costs = torch.from_numpy(group.costs).float()
    return GroupTensors(
        count=len(costs),
        features=torch.from_numpy(features),
        prior=torch.from_numpy(prior).float(),
        costs=costs,
        advantages=advantages(costs),
        baseline=group.baseline,
    )


def advantages(costs: Tensor) -> Tensor:
    """Of each schedule over the mean of the others, in standard deviations of the group, clipped. Lower costs are better."""
    count = len(costs)
    above = (costs.sum() - costs) / (count - 1) - costs
    return (above / costs.std().clamp(min=1e-3)).clamp(-CLIPPED_ADVANTAGE, CLIPPED_ADVANTAGE)
