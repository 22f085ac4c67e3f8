"""What product two matrices are, read from sizes and strides alone."""

from __future__ import annotations

import itertools

import pytest
import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.dispatch.dispatcher import kind_code
from cudal2.torch.matrix_signature import MatrixForm, MatrixSignature, form_of, read_signature
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, Layout

MEMORY = torch.zeros(64).half()
SIZES, STRIDES = (1, 2, 3), (0, 1, 2, 3, 4)


def by_torch(a: torch.Tensor, b: torch.Tensor) -> Layout | FallbackCause:
    """The layout in PyTorch's own words."""
    if a.is_contiguous():
        if b.is_contiguous():
            return Layout.NN
        return Layout.TN if b.t().is_contiguous() else FallbackCause.LAYOUT
    return Layout.NT if b.is_contiguous() and a.t().is_contiguous() else FallbackCause.LAYOUT


def test_the_layout_is_as_torch_sees_it() -> None:
    found = set()
    for m, n, k in itertools.product(SIZES, repeat=3):
        for a_strides, b_strides in itertools.product(itertools.product(STRIDES, repeat=2), repeat=2):
            a, b = MEMORY.as_strided((m, k), a_strides), MEMORY.as_strided((k, n), b_strides)
            layout = by_torch(a, b)
            signature = read_signature(form_of(a, "cpu"), form_of(b, "cpu"))
            if isinstance(layout, Layout):
                kind = kind_code(layout, ElementType.F16, AccumulatorType.F32)
                assert signature == MatrixSignature(m, n, k, kind), (a.shape, a_strides, b.shape, b_strides)
            else:
                assert signature is layout, (a.shape, a_strides, b.shape, b_strides)
            found.add(layout)
    assert found == {*Layout, FallbackCause.LAYOUT}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((ElementType.F16, 0), (ElementType.BF16, 0)),
        ((None, 0), (None, 0)),
        ((ElementType.F16, 0), (ElementType.F16, 1)),
        ((ElementType.F16, None), (ElementType.F16, None)),
        ((ElementType.F16, 0), (ElementType.F16, None)),
    ],
    ids=["types", "another type", "devices", "another kind of device", "one on another kind of device"],
)
def test_operands_that_do_not_belong_together(a: tuple[ElementType | None, int | None], b: tuple[ElementType, int]) -> None:
    assert read_signature(MatrixForm((2, 2), (2, 1), *a), MatrixForm((2, 2), (2, 1), *b)) is FallbackCause.TYPE


def test_the_form_of_a_tensor_of_another_device_type_has_no_device() -> None:
    assert form_of(torch.zeros(2, 3, device="meta"), "cpu") == MatrixForm((2, 3), (3, 1), None, None)
