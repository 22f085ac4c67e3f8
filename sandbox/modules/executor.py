"""What the proof of a module needs of a backend: run a candidate once under guard, and report what it did besides.

Values are torch tensors on the executor's device, dense and row-major, by the name of their buffer. Their types are those of
`STORED`: a boolean is a byte that holds 0 or 1, so that a byte that holds anything else can be told.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.modules.interpreter import TYPES
from cudal2_agent.sandbox.verification.executor import Fill, Violation

Values = Mapping[str, torch.Tensor]

PIECE = 2**25  # elements that are filled, or compared, at once

STORED = TYPES | {BufferElement.BOOL: torch.uint8}


@dataclass(frozen=True)
class Run:
    """One guarded run. Its tensors are valid until the next run in the same slot.

    `outputs`: every buffer of role output, and every state as the run left it.
    `poison`: the 16-bit pattern that filled every output before the run (`filled`), one of `elements.POISONS` drawn anew for
    each run by `elements.Poisons`; None where outputs held something else.
    `covered`: of a run of some CTAs only, which elements of each output they had to write (boolean, of the output's shape);
    None where the run had to write all.
    """

    outputs: Values
    violations: tuple[Violation, ...] = ()
    poison: int | None = None
    covered: Values | None = None


def filled(shape: tuple[int, ...], element: BufferElement, poison: int, device: torch.device, before: int = 0) -> torch.Tensor:
    """What a buffer holds that is filled with a 16-bit pattern: NaN in f16, bf16 and f32, no boolean, elsewhere a number that
    is unlikely to be right. `before`: elements of the buffer that precede these.
    """
    odd, size = before * element.bytes % 2, math.prod(shape) * element.bytes
    pattern = poison - (1 << 16 if poison >= 1 << 15 else 0)
    whole = torch.full((-(-(size + odd) // 2),), pattern, dtype=torch.int16, device=device).view(torch.uint8)
    found = whole[odd : odd + size]
    return (found.clone() if odd else found).view(STORED[element]).reshape(shape)


def poisoned(target: torch.Tensor, element: BufferElement, poison: int) -> None:
    """Fill a buffer's memory with a 16-bit pattern. Shape: target is dense."""
    flat = target.reshape(-1)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        piece.copy_(filled((piece.numel(),), element, poison, target.device, start))


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers, one for each element. Shape: values is dense."""
    return values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements of dense tensors whose bits differ, compared piece by piece: a count of booleans takes eight bytes of each."""
    pairs = (bits_of(each.contiguous().reshape(-1)).split(PIECE) for each in (one, other))
    counts = [(left != right).sum() for left, right in zip(*pairs, strict=True)]
    return int(torch.stack(counts).sum()) if counts else 0


class ModuleExecutor(Protocol):
    """Runs one contender on one task."""

    @property
    def device(self) -> torch.device:
        """Where values lie."""
        ...

    def run(self, values: Values, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_scratch: bool = True) -> Run:
        """Run once in one of SLOTS sets of buffers.

        `values`: of every input, parameter and state, at its full shape; they are copied. The candidate may change states
        only: a change of anything else is a violation of kind `input`.
        `fill`: of the outputs; a state always starts at its value.
        `fresh_scratch`: poison scratch and workspace first, or zero what the plan asks for. Otherwise they keep what the
        preceding run left, as in back-to-back launches.
        """
        ...

    def run_dependent(self, values: Values, decoy: Values) -> Run:
        """Run behind a producer that triggers early and replaces `decoy` by `values` late; the outputs are what a consumer
        saw.
        """
        ...
