"""One inverted element between two runs, which a kernel that keeps a result of the first does not see."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, decode, encode
from cudal2_agent.sandbox.verification.inputs import Inputs

FlippedOperand = Literal["a", "b", "bias", "up"]


@dataclass(frozen=True)
class Flip:
    """Zero-one inputs with one element inverted, and the sums that follow from those before. Shape: d (M, N).

    `d`: of a gated task the outputs before, from which the new ones do not follow.
    """

    inputs: Inputs
    d: Array


def flip_one(source: Draws, task: GemmTask, inputs: Inputs, d: Array, operand: FlippedOperand) -> Flip:
    """Invert one element of A, B or `up`, where possible where the other operand uses it; add 1 to one of a bias.

    A kernel that keeps a result and compares a sample of the inputs does not see the difference. `d`: of the inputs, right
    bit for bit. All its sums are whole numbers that its type holds, so that the sums after the change are known exactly. Of a
    gated task it is D itself, and an output that is not zero changes.
    """
    xp = source.xp
    if operand == "bias":
        return _flip_bias(source, task, inputs, d)
    weights: Any = inputs.up if operand == "up" else inputs.b
    changed, other = (inputs.a, weights.T) if operand == "a" else (weights.T, inputs.a)
    k, line = _place(source, len(changed), other, d if task.gated and operand != "a" else None)
    one = int(encode(xp, xp.ones(1, dtype=xp.float32), task.element)[0])
    changed, d = changed.copy(), d.copy()
    before = float(decode(xp, changed[line, k : k + 1], task.element)[0])
    changed[line, k] = 0 if before else one
    after = changed if operand == "a" else xp.ascontiguousarray(changed.T)
    flipped = replace(inputs, **{operand: after})
    if task.gated:
        return Flip(flipped, d)
    sums = d if operand == "a" else d.T
    step = decode(xp, other[:, k], task.element) * ((0 if before else 1) - before)
    sums[line] = encode(xp, decode(xp, sums[line], task.element) + step, task.element)
    return Flip(flipped, d)


def _place(source: Draws, lines: int, other: Array, d: Array | None) -> tuple[int, int]:
    """A position in K that the other operand uses, and a line. `d`: a column of it is the line, and has an output that is not
    zero and uses that position; None for any line. Shape: other (lines of it, K), d (M, N).
    """
    xp, line = source.xp, None
    if d is not None:
        shown = (d & 0x7FFF) != 0
        columns = xp.flatnonzero(shown.any(axis=0))
        if len(columns):
            line = int(columns[int(source.host.integers(len(columns)))])
            other = other[shown[:, line]]
    used = xp.flatnonzero(other.any(axis=0))
    k = int(used[int(source.host.integers(len(used)))]) if len(used) else 0
    return k, int(source.host.integers(lines)) if line is None else line


def _flip_bias(source: Draws, task: GemmTask, inputs: Inputs, d: Array) -> Flip:
    xp, column = source.xp, int(source.host.integers(task.n))
    assert inputs.bias is not None
    bias, d = inputs.bias.copy(), d.copy()
    for numbers in (bias[column : column + 1], d[:, column]):
        numbers[...] = encode(xp, decode(xp, numbers, task.element) + 1, task.element)
    return Flip(replace(inputs, bias=bias), d)
