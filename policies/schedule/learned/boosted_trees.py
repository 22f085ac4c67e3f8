"""Boosted regression trees in numpy: a second kind of learner, which errs on other schedules than the network does.

Trees split the columns of `features`. A leaf adds to the estimate of how far a schedule is behind the best of its task, as a
difference of logarithms of time. `policies.training.tree_training` grows them.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from policies.schedule.learned.network import Floats32
from policies.schedule.prior import Floats

PREFIX = "trees."  # of the names of its tensors in a file of weights
SPLIT, BOUND, LOWER, HIGHER, VALUE, FIRST = (PREFIX + name for name in ("split", "bound", "lower", "higher", "value", "first"))

Integers = npt.NDArray[np.int32]


class BoostedTrees:
    """All trees in one array of nodes.

    `tensors`, each of shape (nodes,) but the last: `trees.split`, the column that a node splits, -1 for a leaf; `trees.bound`,
    up to which a value goes to the node `trees.lower`, beyond it to `trees.higher`; `trees.value` of a leaf; `trees.first`, the
    root of each tree. A child comes behind its parent.
    Raises: KeyError, ValueError where tensors are missing or do not fit each other.
    """

    def __init__(self, tensors: Mapping[str, npt.NDArray[np.generic]], inputs: int) -> None:
        self.tensors = {name: tensors[name] for name in (SPLIT, BOUND, LOWER, HIGHER, VALUE, FIRST)}
        self._split, self._lower, self._higher, self._first = (
            tensors[name].astype(np.int32) for name in (SPLIT, LOWER, HIGHER, FIRST)
        )
        self._bound, self._value = tensors[BOUND].astype(np.float32), tensors[VALUE].astype(np.float32)
        _check(self._split, self._lower, self._higher, self._first, inputs)
        if not len(self._split) == len(self._bound) == len(self._value):
            raise ValueError("the trees have nodes without a bound or a value")

    def __call__(self, features: Floats | Floats32) -> Floats:
        """ln of the time over that of the best, lower for better schedules. Shape: (entries, columns) to (entries,)."""
        columns = np.ascontiguousarray(features, np.float32)
        entry = np.arange(len(columns))[:, None]
        place = np.broadcast_to(self._first, (len(columns), len(self._first)))
        while (split := self._split[place]).max(initial=-1) >= 0:
            lower = columns[entry, np.maximum(split, 0)] <= self._bound[place]
            place = np.where(split < 0, place, np.where(lower, self._lower[place], self._higher[place]))
        behind: Floats = self._value[place].sum(axis=1, dtype=np.float64)
        return behind


def _check(split: Integers, lower: Integers, higher: Integers, first: Integers, inputs: int) -> None:
    count, inner = len(split), split >= 0
    if not len(lower) == len(higher) == count or not len(first) or not (first.min() >= 0 and first.max() < count):
        raise ValueError("the trees have no root, or nodes without children")
    if split.max(initial=-1) >= inputs:
        raise ValueError("the trees split other features")
    for children in (lower, higher):
        if (children[inner] <= np.arange(count)[inner]).any() or (children[inner] >= count).any():
            raise ValueError("a node of the trees does not come behind its parent")
