"""Inputs that make each output say which elements of A and B it was made of.

A one-hot B has one 1 in each column n, at k(n): D[m,n] is then the element of A that the kernel multiplied with it, which is
A[m,k(n)] where the kernel is right. If A holds the digits of a code of its elements, the element is known after a few runs. A
one-hot A does the same for B. With ones in the other operand, D counts how often an element, or a block of K, was added.
All sums are small whole numbers, exact in any order and in every accumulator, and exact as outputs.
"""

import math
from typing import Any, Literal

import numpy as np

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, encode
from cudal2_agent.sandbox.verification.inputs import Inputs, sum_scale, with_bias

Operand = Literal["a", "b"]
K_BLOCK = 16  # a step of every half-precision tensor-core instruction
BASE = {ElementType.F16: 1024, ElementType.BF16: 128}  # digits plus one are exact
_MEAN_SQUARE = 2.5  # of 1 and 2
_COVERED = 64  # lines in which the one-hot positions come close to every k


def spread(source: Draws, task: GemmTask) -> Inputs:
    """Small whole numbers of both signs, such that few outputs of another place, or of a part of K, are equal.

    B and `up` of a gated task are scaled, so that its activation bends and outputs do not overflow.
    """
    third: tuple[tuple[int, ...], ...] = ((task.n,),) if task.bias else ((task.k, task.n),) if task.gated else ()
    shapes = (task.m, task.k), (task.k, task.n), *third
    a, b, *more = (source.signs(shape) * (1 + source.hits(shape, 0.5)) for shape in shapes)
    if task.gated:
        small = sum_scale(task, math.sqrt(_MEAN_SQUARE**2 * task.k))
        bits = [encode(source.xp, each, task.element) for each in (a, b * small, more[0] * small)]
        return Inputs(bits[0], bits[1], up=bits[2])
    inputs = Inputs(encode(source.xp, a, task.element), encode(source.xp, b, task.element))
    return with_bias(source.xp, task, inputs, *more)


def positions(lines: int, k: int) -> Array:
    """The k of each line of a one-hot operand: all of K over K lines, and near every k within 64. Shape: (lines,)."""
    step = max(1, k // _COVERED) | 1
    while math.gcd(step, k) > 1:
        step += 2
    return np.arange(lines, dtype=np.int64) * step % k


def blocks_of(lines: int, k: int) -> Array:
    """The block of K of each line of a counting operand. Shape: (lines,)."""
    count = -(-k // K_BLOCK)
    index = np.arange(lines, dtype=np.int64)
    return index % count if lines >= count else index * count // lines


class ProbeInputs:
    """The operands of the probes of one task on the device of `xp`."""

    def __init__(self, xp: Any, task: GemmTask) -> None:
        self._xp, self._task = xp, task
        self.base = BASE[task.element]

    def ones_times_hot(self, operand: Operand) -> Inputs:
        """Ones in `operand`, the other one-hot: how often the element was added."""
        task, xp = self._task, self._xp
        ones = xp.ones((task.m, task.k) if operand == "a" else (task.k, task.n), dtype=xp.float32)
        return self._with_hot(operand, ones)

    def blocks(self, operand: Operand) -> Inputs:
        """`operand` has ones in one block of K of each of its lines, the other has ones: how much of the block was added."""
        task, xp = self._task, self._xp
        k = xp.arange(task.k) // K_BLOCK
        if operand == "a":
            return self._encoded(k[None, :] == xp.asarray(blocks_of(task.m, task.k))[:, None], xp.ones((task.k, task.n)))
        return self._encoded(xp.ones((task.m, task.k)), k[:, None] == xp.asarray(blocks_of(task.n, task.k))[None, :])

    def digits(self, operand: Operand, axis: int) -> list[Inputs]:
        """Runs in which `operand` holds the digits of its elements' index along an axis, plus one; the other is one-hot."""
        task, xp = self._task, self._xp
        shape = (task.m, task.k) if operand == "a" else (task.k, task.n)
        index = xp.arange(shape[axis])
        along = index[:, None] if axis == 0 else index[None, :]
        made = []
        for place in range(self.count(shape[axis])):
            digit = along // self.base**place % self.base + 1
            made.append(self._with_hot(operand, xp.broadcast_to(digit, shape).astype(xp.float32)))
        return made

    def count(self, size: int) -> int:
        """Digits of an index below `size`."""
        places = 1
        while self.base**places < size:
            places += 1
        return places

    def _with_hot(self, operand: Operand, coded: Array) -> Inputs:
        task, xp = self._task, self._xp
        k = xp.arange(task.k)
        if operand == "a":
            return self._encoded(coded, k[:, None] == xp.asarray(positions(task.n, task.k))[None, :])
        return self._encoded(k[None, :] == xp.asarray(positions(task.m, task.k))[:, None], coded)

    def _encoded(self, a: Array, b: Array) -> Inputs:
        xp, element = self._xp, self._task.element
        return with_bias(xp, self._task, Inputs(*(encode(xp, each.astype(xp.float32), element) for each in (a, b))))
