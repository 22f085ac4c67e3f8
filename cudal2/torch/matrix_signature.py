"""What product two matrices are, or why it is none that an entry serves."""

from typing import NamedTuple

import torch

from contract.task import MAX_OPERAND_ELEMENTS, AccumulatorType, ElementType, Layout
from cudal2.dispatch.causes import FallbackCause
from cudal2.dispatch.dispatcher import kind_code

ELEMENT_OF = {torch.float16: ElementType.F16, torch.bfloat16: ElementType.BF16}


class MatrixSignature(NamedTuple):
    """A product in the terms of dispatch. `kind`: from `kind_code`, with accumulation in f32."""

    m: int
    n: int
    k: int
    kind: int


def read_signature(a: torch.Tensor, b: torch.Tensor, device_type: str) -> MatrixSignature | FallbackCause:
    """The product of an M×K and a K×N matrix. A transposed view is the layout that it is in memory."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return FallbackCause.RANK
    element = ELEMENT_OF.get(a.dtype)
    if element is None or b.dtype is not a.dtype or a.device != b.device or a.device.type != device_type:
        return FallbackCause.TYPE
    if element is ElementType.F16 and _accumulates_in_f16():
        return FallbackCause.REDUCED_ACCUMULATION
    (m, k), n = a.shape, b.shape[1]
    if 0 in (m, n, k):
        return FallbackCause.EMPTY
    if max(m * k, k * n, m * n) > MAX_OPERAND_ELEMENTS:
        return FallbackCause.TOO_LARGE
    layout = _layout(a, b)
    return layout if isinstance(layout, FallbackCause) else MatrixSignature(m, n, k, _kind(layout, element))


def _layout(a: torch.Tensor, b: torch.Tensor) -> Layout | FallbackCause:
    """Row-major is preferred where a matrix is both, as a single row or column is."""
    if a.is_contiguous():
        if b.is_contiguous():
            return Layout.NN
        return Layout.TN if b.t().is_contiguous() else FallbackCause.LAYOUT
    return Layout.NT if b.is_contiguous() and a.t().is_contiguous() else FallbackCause.LAYOUT


def _kind(layout: Layout, element: ElementType) -> int:
    return kind_code(layout, element, AccumulatorType.F32)


def _accumulates_in_f16() -> bool:
    """Whether the program lets cuBLAS accumulate in f16. Entries were not compared to that. PyTorch before 2.7 cannot."""
    return bool(getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False))
