"""The learned correction of the analytic prior, in numpy, so that a search does not import torch.

An ensemble of multi-layer perceptrons over the columns of `features`. A member has two heads: the logarithm of measured over
predicted time, up to a constant of the task, and an embedding in which schedules that err alike lie close together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cudal2_agent.policies.schedule.prior import Floats

Floats32 = npt.NDArray[np.float32]
Tensors = Mapping[str, Floats32]

MAX_DEVIATION = 6.0  # of a feature from its mean, in standard deviations; farther ones count as so far
MEAN, DEVIATION = "features.mean", "features.deviation"


@dataclass(frozen=True)
class Opinion:
    """What the network says of schedules. `error`: ln(measured / predicted). `spread`: standard deviation of the members.

    Shape: (entries,), (entries,), (entries, dimensions).
    """

    error: Floats
    spread: Floats
    embedding: Floats


class Network:
    """An ensemble with fixed weights.

    `tensors`: `features.mean`, `features.deviation`, and for each member i its layers `i.layers.j.weight` (out, in) and
    `i.layers.j.bias`, and its heads `i.error` and `i.embedding`, each with weight and bias.
    Raises: KeyError, ValueError where tensors are missing or do not fit each other.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self._mean, self._deviation = tensors[MEAN], tensors[DEVIATION]
        if self._mean.ndim != 1 or self._mean.shape != self._deviation.shape:
            raise ValueError("the features have no mean and deviation each")
        self._members = [_Member(tensors, str(number)) for number in range(members_in(tensors))]
        if not self._members or any(member.inputs != len(self._mean) for member in self._members):
            raise ValueError("the weights hold no member, or members of other features")

    @property
    def inputs(self) -> int:
        return len(self._mean)

    def __call__(self, features: Floats | Floats32) -> Opinion:
        scaled = scale(features, self._mean, self._deviation)
        outputs = [member(scaled) for member in self._members]
        errors = np.stack([error for error, _ in outputs]).astype(np.float64)
        embedding = np.concatenate([embedded for _, embedded in outputs], axis=1).astype(np.float64)
        return Opinion(errors.mean(axis=0), errors.std(axis=0), embedding)


def members_in(tensors: Tensors) -> int:
    return len({name.partition(".")[0] for name in tensors if name.partition(".")[0].isdigit()})


def scale(features: Floats | Floats32, mean: Floats32, deviation: Floats32) -> Floats32:
    """Features in standard deviations, within `MAX_DEVIATION`."""
    scaled: Floats32 = np.clip((features - mean) / deviation, -MAX_DEVIATION, MAX_DEVIATION).astype(np.float32)
    return scaled


class _Member:
    def __init__(self, tensors: Tensors, name: str) -> None:
        depth = sum(key.startswith(f"{name}.layers.") and key.endswith(".weight") for key in tensors)
        self._layers = [_affine(tensors, f"{name}.layers.{number}") for number in range(depth)]
        self._error, self._embedding = _affine(tensors, f"{name}.error"), _affine(tensors, f"{name}.embedding")
        self.inputs = self._layers[0][0].shape[1] if self._layers else 0
        _check([*self._layers, self._error], [*self._layers, self._embedding])

    def __call__(self, hidden: Floats32) -> tuple[Floats32, Floats32]:
        for weight, bias in self._layers:
            hidden = _silu(hidden @ weight.T + bias)
        error, embedding = ((hidden @ weight.T + bias) for weight, bias in (self._error, self._embedding))
        return error[:, 0], embedding


def _affine(tensors: Tensors, name: str) -> tuple[Floats32, Floats32]:
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError("a bias does not fit its layer")
    return weight, bias


def _check(*paths: Sequence[tuple[Floats32, Floats32]]) -> None:
    for path in paths:
        for (before, _), (after, _) in pairwise(path):
            if before.shape[0] != after.shape[1]:
                raise ValueError(f"a layer of {before.shape[0]} outputs is followed by one of {after.shape[1]} inputs")


def _silu(x: Floats32) -> Floats32:
    with np.errstate(over="ignore"):  # exp of a large negative x is infinite, and the result is 0, as it should be
        return (x / (1.0 + np.exp(-x))).astype(np.float32, copy=False)
