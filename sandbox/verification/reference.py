"""The float64 product of half-precision inputs, in row blocks, so that a large task fits beside its operands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.elements import Array, decode_wide
from cudal2_agent.sandbox.verification.inputs import Inputs

BLOCK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Block:
    """Rows `start` onwards of the product. Shape: product (rows, N), row_norms (rows, 1), column_norms (1, N), float64.

    `up`, `up_norms`: of a gated task, the product with `up`, and its column norms. Shape: as those of B.
    """

    start: int
    product: Array
    row_norms: Array
    column_norms: Array
    up: Array | None = None
    up_norms: Array | None = None


class Reference:
    """The product of one set of inputs; `keep` holds the blocks for the next candidate.

    A bias is one more row of B, which a column of ones in A multiplies, in norms too.
    """

    def __init__(self, xp: Any, task: GemmTask, inputs: Inputs, *, keep: bool) -> None:
        self._xp, self._task, self._inputs, self._keep = xp, task, inputs, keep
        self._kept: list[Block] | None = None

    def compute(self) -> None:
        """Compute the blocks now, where they are kept."""
        if self._keep and self._kept is None:
            self._kept = list(self._compute())

    def blocks(self) -> Iterator[Block]:
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        for block in self._compute():
            if self._keep:
                kept.append(block)
            yield block
        if self._keep:
            self._kept = kept

    def whole(self) -> Block:
        """All rows as one block, for a task that is small but for its K."""
        blocks, together = list(self.blocks()), self._xp.concatenate
        product, row_norms = (together([getattr(block, name) for block in blocks]) for name in ("product", "row_norms"))
        up = None if blocks[0].up is None else together([block.up for block in blocks])
        return Block(0, product, row_norms, blocks[0].column_norms, up, blocks[0].up_norms)

    def _compute(self) -> Iterator[Block]:
        xp, task = self._xp, self._task
        b, bias = decode_wide(xp, self._inputs.b, task.element), self._inputs.bias
        if bias is not None:
            b = xp.concatenate([b, decode_wide(xp, bias, task.element)[None]])
        column_norms = xp.sqrt((b * b).sum(axis=0, keepdims=True))
        second = None if self._inputs.up is None else decode_wide(xp, self._inputs.up, task.element)
        up_norms = None if second is None else xp.sqrt((second * second).sum(axis=0, keepdims=True))
        rows = max(1, min(task.m, BLOCK_ELEMENTS // max(task.n, task.k)))
        for start in range(0, task.m, rows):
            a = decode_wide(xp, self._inputs.a[start : start + rows], task.element)
            if bias is not None:
                a = xp.concatenate([a, xp.ones((len(a), 1))], axis=1)
            with np.errstate(invalid="ignore", over="ignore"):
                product = a @ b
                up = None if second is None else a @ second
                row_norms = xp.sqrt((a * a).sum(axis=1, keepdims=True))
            yield Block(start, product, row_norms, column_norms, up, up_norms)


def kept_bytes(task: GemmTask) -> int:
    """Device memory that one kept reference and its inputs take."""
    weights = task.products * task.n
    return 8 * task.m * weights + 2 * task.k * (task.m + weights)
