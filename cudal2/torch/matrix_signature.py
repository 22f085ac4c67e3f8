"""What matrix product two tensors are, or why it is none that an entry serves."""

from typing import NamedTuple

import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.dispatch.dispatcher import kind_code
from cudal2_agent.contract.records.task import MAX_OPERAND_ELEMENTS, AccumulatorType, Activation, ElementType, Layout

ELEMENT_OF = {torch.float16: ElementType.F16, torch.bfloat16: ElementType.BF16}
DTYPE_OF = {element: dtype for dtype, element in ELEMENT_OF.items()}


class MatrixForm(NamedTuple):
    """An operand without its numbers. Unit of `strides`: elements.

    `element`: None for a type that no entry has. `device`: its number; None on another type of device than is served.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementType | None
    device: int | None


class MatrixSignature(NamedTuple):
    """A matrix product in the terms of dispatch. `kind`: from `kind_code`, with accumulation in f32."""

    m: int
    n: int
    k: int
    kind: int


def form_of(tensor: torch.Tensor, device_type: str) -> MatrixForm:
    """`device_type`: of the tensors that are served."""
    device = tensor.get_device() if tensor.device.type == device_type else None
    return MatrixForm(tuple(tensor.shape), tensor.stride(), ELEMENT_OF.get(tensor.dtype), device)


def read_signature(
    a: MatrixForm,
    b: MatrixForm,
    bias: MatrixForm | None = None,
    activation: Activation | None = None,
    up: MatrixForm | None = None,
) -> MatrixSignature | FallbackCause:
    """The product of an M×K and a K×N matrix, to which N elements may be added, and the activation of these sums.

    `up`: of a gated product, the second matrix like B. A transposed view is the layout that it is in memory.
    """
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return FallbackCause.RANK
    element = a.element
    if element is None or b.element is not element or a.device is None or a.device != b.device:
        return FallbackCause.TYPE
    if element is ElementType.F16 and _accumulates_in_f16():
        return FallbackCause.REDUCED_ACCUMULATION
    (m, k), n = a.shape, b.shape[1]
    if up is not None and up != b:
        return FallbackCause.TYPE if (up.element, up.device) != (b.element, b.device) else FallbackCause.LAYOUT
    if 0 in (m, n, k):
        return FallbackCause.EMPTY
    if max(m * k, k * n, m * n) > MAX_OPERAND_ELEMENTS:
        return FallbackCause.TOO_LARGE
    if bias is not None and not _adds_to_columns(bias, n, b):
        return FallbackCause.BIAS
    layout = _layout(a, b)
    if isinstance(layout, FallbackCause):
        return layout
    kind = kind_code(layout, element, AccumulatorType.F32, bias=bias is not None, activation=activation, gated=up is not None)
    return MatrixSignature(m, n, k, kind)


def _adds_to_columns(bias: MatrixForm, n: int, like: MatrixForm) -> bool:
    """Whether a bias has an element for each column, one behind the other, of the operands' type and on their device."""
    dense = bias.shape == (n,) and (n == 1 or bias.strides == (1,))
    return dense and (bias.element, bias.device) == (like.element, like.device)


def _layout(a: MatrixForm, b: MatrixForm) -> Layout | FallbackCause:
    """Row-major is preferred where a matrix is both, as a single row or column is."""
    if row_major(a):
        if row_major(b):
            return Layout.NN
        return Layout.TN if column_major(b) else FallbackCause.LAYOUT
    return Layout.NT if row_major(b) and column_major(a) else FallbackCause.LAYOUT


def row_major(matrix: MatrixForm) -> bool:
    """Without gaps, as `Tensor.is_contiguous` says: the stride of a size of one does not matter."""
    (rows, columns), (down, along) = matrix.shape, matrix.strides
    return (columns == 1 or along == 1) and (rows == 1 or down == columns)


def column_major(matrix: MatrixForm) -> bool:
    return row_major(matrix._replace(shape=matrix.shape[::-1], strides=matrix.strides[::-1]))


def _accumulates_in_f16() -> bool:
    """Whether the program lets cuBLAS accumulate in f16. Entries were not compared to that. PyTorch before 2.7 cannot."""
    return bool(getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False))
