"""Boosted trees in numpy: learners of another kind, which err on other schedules than the network does.

Trees split the columns of `features`, and each leaf adds to an estimate. `policies.training.tree_training` grows them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cudal2_agent.policies.schedule.learned.network import Floats32
from cudal2_agent.policies.schedule.prior import Floats

PREFIX = "trees."  # of their names in a file of weights
SPLIT, BOUND, LOWER, HIGHER, VALUE, FIRST = "split", "bound", "lower", "higher", "value", "first"

Integers = npt.NDArray[np.int32]


class BoostedTrees:
    """All trees in one array of nodes.

    `tensors`, each of shape (nodes,) but the last: `split`, the column that a node splits, -1 for a leaf; `bound`, up to which
    a value goes to the node `lower`, beyond it to `higher`; `value` of a leaf; `first`, the root of each tree. A child comes
    behind its parent.
    Raises: KeyError, ValueError where tensors are missing or do not fit each other.
    """

    def __init__(self, tensors: Mapping[str, npt.NDArray[np.generic]], inputs: int) -> None:
        self.tensors = {name: tensors[name] for name in (SPLIT, BOUND, LOWER, HIGHER, VALUE, FIRST)}
        self._split, self._lower, self._higher, self._first = (
            tensors[name].astype(np.int32) for name in (SPLIT, LOWER, HIGHER, FIRST)
        )
        self._bound, self._value = tensors[BOUND].astype(np.float32), tensors[VALUE].astype(np.float32)
        if any(tensor.ndim != 1 for tensor in self.tensors.values()):
            raise ValueError("an array of the trees has more or fewer than one axis")
        _check(self._split, self._lower, self._higher, self._first, inputs)
        if not len(self._split) == len(self._bound) == len(self._value):
            raise ValueError("the trees have nodes without a bound or a value")

    def __call__(self, features: Floats | Floats32) -> Floats:
        """The sum of the leaves that each row ends in. Shape: (entries, columns) to (entries,)."""
        columns = np.ascontiguousarray(features, np.float32)
        entry = np.arange(len(columns))[:, None]
        place = np.broadcast_to(self._first, (len(columns), len(self._first)))
        while (split := self._split[place]).max(initial=-1) >= 0:
            lower = columns[entry, np.maximum(split, 0)] <= self._bound[place]
            place = np.where(split < 0, place, np.where(lower, self._lower[place], self._higher[place]))
        total: Floats = self._value[place].sum(axis=1, dtype=np.float64)
        return total


class ScheduleTrees(NamedTuple):
    """The trees of one policy.

    `behind`: ln of a schedule's time over that of the best of its task. `good`: ln of the odds that it is among the fastest
    quarter of those that a run measures.
    """

    behind: BoostedTrees
    good: BoostedTrees

    @property
    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Those of both, under names such as `trees.behind.split`."""
        both = self._asdict()
        return {f"{PREFIX}{what}.{name}": value for what, trees in both.items() for name, value in trees.tensors.items()}


def schedule_trees(tensors: Mapping[str, npt.NDArray[np.generic]], inputs: int) -> ScheduleTrees | None:
    """The trees among the tensors of a policy; None where there are none. Raises: KeyError, ValueError as `BoostedTrees`."""
    found: dict[str, dict[str, npt.NDArray[np.generic]]] = {}
    for name, value in tensors.items():
        if name.startswith(PREFIX):
            what, _, kind = name.removeprefix(PREFIX).rpartition(".")
            found.setdefault(what, {})[kind] = value
    if not found:
        return None
    if found.keys() != set(ScheduleTrees._fields):
        raise ValueError("its trees are of another version of this product; train it anew with `cudal2-agent train schedule`")
    return ScheduleTrees(**{what: BoostedTrees(part, inputs) for what, part in found.items()})


def _check(split: Integers, lower: Integers, higher: Integers, first: Integers, inputs: int) -> None:
    count, inner = len(split), split >= 0
    if not len(lower) == len(higher) == count or not len(first) or not (first.min() >= 0 and first.max() < count):
        raise ValueError("the trees have no root, or nodes without children")
    if split.max(initial=-1) >= inputs:
        raise ValueError("the trees split other features")
    for children in (lower, higher):
        if (children[inner] <= np.arange(count)[inner]).any() or (children[inner] >= count).any():
            raise ValueError("a node of the trees does not come behind its parent")
