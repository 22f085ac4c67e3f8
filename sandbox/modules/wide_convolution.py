"""Convolutions in float64 on a GPU, tap by tap: each tap of the weight is a matrix product of what it reads.

cuDNN's kernels for float64 reach a hundredth of what cuBLAS does with the same numbers.
"""

import itertools
import math
from collections.abc import Sequence

import torch

OPERATOR = "aten.convolution.default"


def suits(args: Sequence[object]) -> bool:
    """Whether the arguments of `aten.convolution` are float64 on a GPU."""
    value = args[0]
    return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is torch.float64


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """As `aten.convolution`.

    Shapes: x (n, channels, ...), weight (out, channels / groups, ...); of a transposed one (channels, out / groups, ...).
    """
    taps, rank = weight.shape[2:], weight.dim() - 2
    stride, padding, dilation, more = (
        _each(value, rank) for value in (stride, padding, dilation, output_padding if transposed else [0])
    )
    reach = [far * (tap - 1) + 1 for tap, far in zip(taps, dilation, strict=True)]
    if transposed:
        # Every tap adds to every `stride`-th place of the padded result.
        walked = list(x.shape[2:])
        sizes = [(size - 1) * by + tap + extra for size, by, tap, extra in zip(walked, stride, reach, more, strict=True)]
        result = x.new_zeros((x.shape[0], weight.shape[1] * groups, *sizes))
        source = x
    else:
        # Every tap reads every `stride`-th place of the padded input.
        source = torch.nn.functional.pad(x, [side for pad in reversed(padding) for side in (pad, pad)])
        walked = [(size - tap) // by + 1 for size, tap, by in zip(source.shape[2:], reach, stride, strict=True)]
        result = x.new_zeros((x.shape[0], weight.shape[0], *walked))
    for place in itertools.product(*map(range, taps)):
        first = [each * far for each, far in zip(place, dilation, strict=True)]
        window = (
            ...,
            *(slice(start, start + (size - 1) * by + 1, by) for start, size, by in zip(first, walked, stride, strict=True)),
        )
        factor = weight[(slice(None), slice(None), *place)]
        if transposed:
            result[window] += _products(source, factor.reshape(groups, -1, factor.shape[1]).transpose(1, 2))
        else:
            result += _products(source[window], factor.reshape(groups, -1, factor.shape[1]))
    if transposed:
        kept = (slice(pad, size - pad) for pad, size in zip(padding, result.shape[2:], strict=True))
        result = result[(..., *kept)]
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * rank)
    return result.contiguous()


def _products(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Shapes: x (n, groups * k, ...), factor (groups, m, k); (n, groups * m, ...)."""
    groups, outer, inner = factor.shape
    count, places = x.shape[0], math.prod(x.shape[2:])
    values = x.reshape(count, groups, inner, places)
    found = factor[None, ..., None, 0] * values if inner == 1 else factor.expand(count, -1, -1, -1) @ values
    return found.reshape(count, groups * outer, *x.shape[2:])


def _each(value: Sequence[int], rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)
