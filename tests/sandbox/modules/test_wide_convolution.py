"""Convolutions by taps are the operator's, in every form of it."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="modules run with PyTorch")

from cudal2_agent.sandbox.modules.wide_convolution import convolution  # noqa: E402

FORMS = [
    (rank, groups, inner, transposed, stride, padding, dilation)
    for rank, (groups, inner), transposed, (stride, padding, dilation) in itertools.product(
        (1, 2, 3), ((1, 3), (2, 2), (4, 1)), (False, True), ((1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2))
    )
]


@pytest.mark.parametrize(("rank", "groups", "inner", "transposed", "stride", "padding", "dilation"), FORMS)
def test_every_form_is_the_operators(
    rank: int, groups: int, inner: int, transposed: bool, stride: int, padding: int, dilation: int
) -> None:
    torch.manual_seed(1)
    taps, outer = (3, 2, 1)[:rank], 2
    x = torch.randn(2, groups * inner, *(7, 8, 6)[:rank], dtype=torch.float64)
    weight = torch.randn(groups * inner if transposed else groups * outer, outer if transposed else inner, *taps, dtype=x.dtype)
    bias = torch.randn(groups * outer, dtype=x.dtype) if stride == 2 else None
    more = [stride - 1] * rank if transposed else [0]
    arguments = (x, weight, bias, [stride] * rank, [padding] * (1 if rank == 2 else rank), [dilation] * rank, transposed, more)
    expected = torch.ops.aten.convolution.default(*arguments, groups)
    found = convolution(*arguments, groups)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_what_is_not_finite_stays_where_it_is_read() -> None:
    x = torch.ones(1, 1, 8, dtype=torch.float64)
    x[0, 0, 6] = torch.nan
    arguments = (x, torch.ones(1, 1, 2, dtype=x.dtype), None, [2], [0], [1], False, [0], 1)
    assert convolution(*arguments).isnan().tolist() == [[[False, False, False, True]]]
