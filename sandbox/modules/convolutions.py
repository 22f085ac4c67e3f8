"""Convolutions of a GPU's library straight into memory of the caller's, by the kernels that PyTorch takes itself.

PyTorch's own functions allocate their result, so that it would have to be copied. That is left for transposed convolutions with
strides and for depthwise ones in three dimensions: PyTorch's functions that take `out` copy there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cudal2_agent.contract.plan.library_call import LibraryCall

_searched: set[tuple[Any, ...]] = set()  # cuDNN keeps what it found as long as the process lives
_ALIGNMENT = 64  # beyond which an address makes no other problem for cuDNN


def convolve(call: LibraryCall, operands: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """False where PyTorch has no function for its kernel that takes `out`; then nothing was done.

    A searched convolution takes the heuristic's algorithm inside a capture that no run with such operands precedes.
    """
    x, weight, *bias = operands
    spatial = x.dim() - 2
    stride, padding, dilation, more = sizes_of(call, spatial)
    transposed = call.call == "conv_transpose"
    own_bias = bias[0] if bias else None
    kinds, aten = torch._C._ConvBackend, torch.ops.aten
    kind = torch._C._select_conv_backend(x, weight, own_bias, stride, padding, dilation, transposed, more, call.groups)
    key = _key(call, x, weight, out)
    search = call.search and (key in _searched or not _capturing(x))
    if search:
        _searched.add(key)  # whatever its kernel is: where there is nothing to search, a second try finds no more
    write: Callable[..., Any] | None = None
    kernel, sizes = weight, tuple[Sequence[int], ...]()
    match kind:
        case kinds.Cudnn:
            write, sizes = getattr(aten.cudnn_convolution, "out", None), (padding, stride, dilation)
        case kinds.CudnnTranspose if set(stride) == {1} and all(
            p <= d * (k - 1) for p, d, k in _taps(weight, padding, dilation)
        ):
            write = getattr(aten.cudnn_convolution, "out", None)
            sizes = (tuple(d * (k - 1) - p for p, d, k in _taps(weight, padding, dilation)), stride, dilation)
            kernel = _turned(weight, call.groups)
        case kinds.CudnnTranspose:
            write, sizes = getattr(aten.cudnn_convolution_transpose, "out", None), (padding, more, stride, dilation)
        case kinds.CudaDepthwise2d | kinds.CudaDepthwise3d:
            depthwise = aten._conv_depthwise2d if kind == kinds.CudaDepthwise2d else aten.conv_depthwise3d
            if (write := getattr(depthwise, "out", None)) is not None:
                write(x, weight, weight.shape[2:], own_bias, stride, padding, dilation, out=out)
            return write is not None
    if write is None:
        return False
    # Among the algorithms of a search some sum in the order of arrival.
    write(x, kernel, *sizes, call.groups, search, True, torch.backends.cudnn.allow_tf32, out=out)
    if own_bias is not None:
        out.add_(own_bias.reshape(1, -1, *[1] * spatial))
    return True


def sizes_of(call: LibraryCall, spatial: int) -> tuple[tuple[int, ...], ...]:
    """Stride, padding, dilation and output padding of a convolution over so many dimensions."""
    ones, zeros = (1,) * spatial, (0,) * spatial
    return call.stride or ones, call.padding or zeros, call.dilation or ones, call.output_padding or zeros


def _taps(weight: torch.Tensor, padding: Sequence[int], dilation: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """By dimension: padding, dilation, taps."""
    return zip(padding, dilation, weight.shape[2:], strict=True)


def _turned(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """The weight with which a plain convolution computes the transposed one without strides."""
    inner, outer, *taps = weight.shape
    parts = weight.view(groups, inner // groups, outer, *taps).transpose(1, 2)
    return parts.flip(tuple(range(3, weight.dim() + 1))).reshape(groups * outer, inner // groups, *taps)


def searched(call: LibraryCall, operands: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """Whether these operands were met outside a capture, so that cuDNN knows the fastest algorithm, if it searches any."""
    return _key(call, *operands[:2], out) in _searched


def _capturing(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _key(call: LibraryCall, *tensors: torch.Tensor) -> tuple[Any, ...]:
    """What cuDNN tells problems by."""
    places = [(each.shape, each.stride(), each.dtype, each.device, each.data_ptr() % _ALIGNMENT) for each in tensors]
    return (call.call, call.stride, call.padding, call.dilation, call.groups, torch.backends.cudnn.allow_tf32, *places)
