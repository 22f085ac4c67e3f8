"""Formulas that a kernel may compute in place of its task's: which of them wrong outputs of activations agree with."""

from collections.abc import Callable, Iterator
from typing import Any

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.activations import OF_RESULT, OF_SUM, activated
from cudal2_agent.sandbox.verification.elements import FORMATS, Array, decode_wide, encode
from cudal2_agent.sandbox.verification.reference import Block

Formulas = dict[str, Callable[[Block], Array]]


def mistaken_formulas(xp: Any, task: GemmTask) -> Formulas:
    """Values before rounding, by what the formula says in words. The likeliest first: of two that agree equally it is told."""
    name = task.activation
    if not task.gated:
        return {f"the sums themselves: {name} is not computed there": lambda block: block.product}

    def f(sums: Array) -> Array:
        return activated(xp, name, sums)

    def beside(by: int) -> Callable[[Block], Array]:
        return lambda block: f(block.product) * xp.roll(block.up, by, axis=1)

    return {
        f"(A·B) · (A·up): {name} is not computed there": lambda block: block.product * block.up,
        f"{name}(A·up) · (A·B): B and up are exchanged, or {name} is of the wrong factor": lambda block: (
            f(block.up) * block.product
        ),
        f"{name}(A·B) · (A·B): B is read in place of up": lambda block: f(block.product) * block.product,
        f"{name}(A·up) · (A·up): up is read in place of B": lambda block: f(block.up) * block.up,
        f"{name}((A·B) · (A·up)): {name} is of the product of both": lambda block: f(block.product * block.up),
        f"{name}(A·B): the factor A·up is left out": lambda block: f(block.product),
        f"{name}(A·up): the factor A·B is left out": lambda block: f(block.up),
        "A·up: the factor of A·B is left out": lambda block: block.up,
        f"{name}(A·B) + (A·up): the factors are added": lambda block: f(block.product) + block.up,
        f"{name}(A·B) times A·up of the next column": beside(-1),
        f"{name}(A·B) times A·up of the column before": beside(1),
    }


def agreement(
    xp: Any, task: GemmTask, blocks: Iterator[Block], got: Array, wrong: Array, formulas: Formulas
) -> dict[str, float]:
    """The share of the wrong outputs that each formula gives. Shape: got, wrong (M, N); one of `wrong` at least is true."""
    found = dict.fromkeys(formulas, 0)
    for block in blocks:
        rows = slice(block.start, block.start + len(block.product))
        for words, formula in formulas.items():
            found[words] += int((_equal(xp, task, got[rows], formula(block)) & wrong[rows]).sum())
    return {words: count / int(wrong.sum()) for words, count in found.items()}


def _equal(xp: Any, task: GemmTask, bits: Array, values: Array) -> Array:
    """Bit for bit where values are sums, whose whole numbers are exact; else within a rounding of each factor."""
    if not task.gated:
        return bits == encode(xp, values, task.element)
    form = FORMATS[task.element]
    bound = 2 * form.roundoff * xp.abs(values) + form.tiny + OF_RESULT * xp.abs(values) + OF_SUM
    return xp.abs(decode_wide(xp, bits, task.element) - values) <= bound
