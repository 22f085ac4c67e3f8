"""Small convolutions, and what they compute by their definition."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cudal2_agent.contract.records.module_task import ModuleTask
from tests.policies.fusion.emulated import Array
from tests.policies.fusion.graphs import node, task

IMAGES, INNER, OUTER = 2, 3, 5


class Geometry(NamedTuple):
    """A convolution of 3 by 3 taps. `size`, `made`: height and width of its input and of its output; `inner`: its channels."""

    transposed: bool
    stride: int
    pad: int
    dilation: int
    size: tuple[int, int]
    made: tuple[int, int]
    inner: int = INNER

    def task(self) -> ModuleTask:
        both = ([each] * 2 for each in (self.stride, self.pad, self.dilation))
        args: list[Any] = ["x", "w", None, *both, self.transposed, [0, 0], 1]
        nodes = [node("conv", "aten.convolution.default", *args, results=[(IMAGES, OUTER, *self.made)])]
        weight = (self.inner, OUTER, 3, 3) if self.transposed else (OUTER, self.inner, 3, 3)
        return task({"x": (IMAGES, self.inner, *self.size), "w": weight}, nodes, "conv")

    def convolved(self, inputs: Mapping[str, Array]) -> Array:
        """In f64, one tap and one place at a time."""
        x, w = (inputs[name].astype(np.float64) for name in "xw")
        result = np.zeros((IMAGES, OUTER, *self.made))
        for image, place in itertools.product(range(IMAGES), itertools.product(*map(range, self.made))):
            for tap in itertools.product(range(3), repeat=2):
                if self.transposed:
                    away = [p + self.pad - t * self.dilation for p, t in zip(place, tap, strict=True)]
                    if any(each % self.stride for each in away):
                        continue
                    source = [each // self.stride for each in away]
                else:
                    source = [p * self.stride - self.pad + t * self.dilation for p, t in zip(place, tap, strict=True)]
                if all(0 <= each < size for each, size in zip(source, self.size, strict=True)):
                    taken, row = w[(slice(None), slice(None), *tap)], x[(image, slice(None), *source)]
                    result[(image, slice(None), *place)] += row @ taken if self.transposed else taken @ row
        return result


GEOMETRIES = [
    Geometry(False, stride=1, pad=1, dilation=1, size=(6, 5), made=(6, 5)),
    Geometry(False, stride=2, pad=0, dilation=2, size=(9, 8), made=(3, 2)),
    Geometry(True, stride=1, pad=1, dilation=2, size=(4, 5), made=(6, 7)),
    Geometry(True, stride=2, pad=1, dilation=1, size=(4, 3), made=(7, 5)),
    Geometry(True, stride=3, pad=0, dilation=2, size=(3, 2), made=(11, 8)),
    Geometry(True, stride=2, pad=1, dilation=2, size=(3, 4), made=(7, 9), inner=8),
    Geometry(True, stride=5, pad=1, dilation=2, size=(3, 2), made=(13, 8), inner=16),
    Geometry(True, stride=6, pad=2, dilation=4, size=(2, 3), made=(11, 17), inner=8),
]
