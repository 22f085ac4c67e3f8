"""Runs the library calls of a resolved plan on torch tensors: in float64 on the emulator, in the task's arithmetic on a GPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.nn import functional

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.library_call import CONVOLUTIONS, LibraryCall, View
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import Buffer
from cudal2_agent.sandbox.modules.convolutions import convolve, searched, sizes_of
from cudal2_agent.sandbox.modules.executor import STORED, Values

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)


def check_call(call: LibraryCall, buffers: Mapping[str, Buffer]) -> None:
    """Whether the library takes these operands, and gives what `out` holds. Raises: PlanError; nothing is computed."""
    shapes = {name: torch.empty(each.shape, dtype=STORED[each.element], device="meta") for name, each in buffers.items()}
    out = _view(call.out, shapes)
    try:
        result = _result(call, [_view(view, shapes) for view in call.inputs])
    except (RuntimeError, ValueError, IndexError, TypeError) as exc:
        raise PlanError("plan-call", f"{call.call}: {str(exc).splitlines()[0]}") from exc
    if result.shape != out.shape or result.dtype != out.dtype:
        made, held = (f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (result, out))
        raise PlanError("plan-call", f"{call.call} makes {made}, but {call.out.tensor} is {held} here")


def run_wide(call: LibraryCall, tensors: Values) -> None:
    """Run a call in float64, its result rounded once to the element of `out`. `tensors`: of buffers and scratch, by name."""
    operands = [_view(view, tensors).double() for view in call.inputs]
    _view(call.out, tensors).copy_(_result(call, operands))


def run_native(call: LibraryCall, tensors: Values) -> None:
    """Run a call in the arithmetic of its tensors, on their device and torch's current stream. Inside `arithmetic_of`."""
    operands, out = _operands(call, tensors)
    if call.call in ("mm", "bmm"):
        (torch.mm if call.call == "mm" else torch.bmm)(*operands, out=out)
    elif call.call not in CONVOLUTIONS or not convolve(call, operands, out):
        out.copy_(_result(call, operands))


def prepare(call: LibraryCall, tensors: Values) -> None:
    """Search the algorithm of a call that asks for it, unless it is known, so that no capture meets the search.

    It writes `out`. Inside `arithmetic_of`.
    """
    if call.search and not searched(call, *_operands(call, tensors)):
        run_native(call, tensors)


@contextmanager
def arithmetic_of(arithmetic: Arithmetic) -> Iterator[None]:
    """torch's switches for a task: TF32 on only for tf32, sums of f16 and bf16 products in f32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before, convolution = {name: getattr(matmul, name) for name in names}, cudnn.allow_tf32
    tf32 = arithmetic is Arithmetic.TF32
    try:
        for name in names:
            setattr(matmul, name, tf32 and name == "allow_tf32")
        cudnn.allow_tf32 = tf32
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)
        cudnn.allow_tf32 = convolution


def _operands(call: LibraryCall, tensors: Values) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What a call reads, and where its result goes."""
    return [_view(view, tensors) for view in call.inputs], _view(call.out, tensors)


def _view(view: View, tensors: Values) -> torch.Tensor:
    """A buffer as an operation sees it; shares its memory."""
    tensor = tensors[view.tensor]
    tensor = tensor if view.shape is None else tensor.view([int(size) for size in view.shape])
    return tensor if view.permute is None else tensor.permute(view.permute)


def _result(call: LibraryCall, operands: list[torch.Tensor]) -> torch.Tensor:
    match call.call:
        case "mm":
            return torch.mm(*operands)
        case "bmm":
            return torch.bmm(*operands)
        case "sdpa":
            q, k, v, *masks = operands
            mask = masks[0] if masks else None
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=call.causal, scale=call.scale)
    spatial = operands[0].dim() - 2
    x, weight, bias = operands[0], operands[1], operands[2] if len(operands) > 2 else None
    stride, padding, dilation, more = sizes_of(call, spatial)
    if call.call == "conv":
        return _CONVOLUTIONS[spatial - 1](x, weight, bias, stride, padding, dilation, call.groups)
    return _TRANSPOSED[spatial - 1](x, weight, bias, stride, padding, more, call.groups, dilation)
