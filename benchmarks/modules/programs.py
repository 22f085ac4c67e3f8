"""Programs that compute a graph in another way: right ones as kernels may, wrong ones as kernels must not.

Each runs a node in place of an interpreter's plain call, and returns NotImplemented for a node that it leaves alone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from cudal2_agent.contract.records.module_graph import GraphNode
from cudal2_agent.sandbox.modules.operators import operation

Call = Callable[..., Any]
Program = Callable[[str, Call, list[Any], dict[str, Any]], Any]
LOG2E, ULP2 = 1.4426950408889634, 2.0**-22
MOST_STEPS = 8192


def around(program: Program, used: list[str]) -> Callable[[GraphNode, Call, list[Any], dict[str, Any]], Any]:
    """`used`: gets the names of nodes that the program computed in its own way."""

    def run(node: GraphNode, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = program(operation(node), call, args, kwargs)
        if result is NotImplemented:
            return call(*args, **kwargs)
        used.append(node.name)
        return result

    return run


def _products(name: str, args: list[Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The operands of a matrix product."""
    if name in ("mm", "bmm"):
        return args[0], args[1]
    return (args[1], args[2]) if name in ("addmm", "baddbmm") else None


def _added(name: str, args: list[Any], product: torch.Tensor) -> torch.Tensor:
    return args[0] + product if name in ("addmm", "baddbmm") else product


def _reduced(name: str, args: list[Any]) -> tuple[torch.Tensor, list[int], bool] | None:
    """(operand, dimensions, keepdim) of a sum or mean of f32."""
    if name not in ("sum", "mean") or not args[0].is_floating_point():
        return None
    dims = args[1] if len(args) > 1 and args[1] else list(range(args[0].dim()))
    return args[0], [dim % max(args[0].dim(), 1) for dim in dims], bool(args[2]) if len(args) > 2 else False


def serial(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Every sum one term after another, in f32."""
    if (operands := _products(name, args)) is not None:
        left, right = operands
        total = left[..., :1] * right[..., :1, :]
        for k in range(1, left.shape[-1]):
            total = total + left[..., k : k + 1] * right[..., k : k + 1, :]
        return _added(name, args, total)
    if name == "convolution" and not args[6] and args[8] == 1:
        total = None
        for channel in range(args[1].shape[1]):
            part = call(args[0][:, channel : channel + 1], args[1][:, channel : channel + 1], None, *args[3:], **kwargs)
            total = part if total is None else total + part
        return total if args[2] is None else total + args[2].reshape(-1, *[1] * (total.dim() - 2))
    if (found := _reduced(name, args)) is not None:
        x, dims, keep = found
        kept = [dim for dim in range(x.dim()) if dim not in dims]
        rows = x.permute(*kept, *dims).reshape(*[x.shape[dim] for dim in kept], -1)
        if rows.shape[-1] > MOST_STEPS or not rows.shape[-1]:
            return NotImplemented
        total = rows[..., 0].clone()
        for index in range(1, rows.shape[-1]):
            total = total + rows[..., index]
        total = total / rows.shape[-1] if name == "mean" else total
        return total.reshape([1 if dim in dims else x.shape[dim] for dim in range(x.dim())]) if keep else total
    return NotImplemented


def reversed_sums(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Sums from their end."""
    if (operands := _products(name, args)) is not None:
        return _added(name, args, operands[0].flip(-1) @ operands[1].flip(-2))
    if (found := _reduced(name, args)) is not None:
        return call(found[0].flip(found[1]), *args[1:], **kwargs)
    if name == "convolution" and not args[6] and args[8] == 1:
        return call(args[0].flip(1), args[1].flip(1), *args[2:], **kwargs)
    return NotImplemented


def _exp(x: torch.Tensor) -> torch.Tensor:
    """ex2.approx of a rounded product: up to two ulp off."""
    return torch.exp2(x * LOG2E) * (1 + ULP2 * torch.cos(1e4 * x) * (x != 0))


def fast(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """Formulas over ex2.approx, rcp.approx and rsqrt.approx, as kernels write them."""
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return NotImplemented
    match name:
        case "exp":
            return _exp(x)
        case "sigmoid":
            return (1 - ULP2 / 2) / (1 + _exp(-x))
        case "silu":
            return x * ((1 - ULP2 / 2) / (1 + _exp(-x)))
        case "mish":
            e = _exp(x.clamp(max=20))
            top = e * (e + 2)
            return torch.where(x > 20, x, x * (top * ((1 + ULP2 / 2) / (top + 2))))
        case "_softmax":
            e = _exp(x - x.amax(args[1], keepdim=True))
            return e * ((1 + ULP2 / 2) / e.sum(args[1], keepdim=True))
        case "logsumexp":
            most = x.amax(args[1], keepdim=True)
            found = torch.log2(_exp(x - most).sum(args[1], keepdim=True)) * math.log(2) + most
            return found if len(args) > 2 and args[2] else found.squeeze(args[1])
        case "rsqrt":
            return torch.rsqrt(x) * (1 + ULP2)
        case "div" if not kwargs:
            return x * ((1 + ULP2 / 2) / args[1])
        case "native_layer_norm" if args[2] is not None and args[3] is not None:
            dims = list(range(-len(args[1]), 0))
            mean = x.mean(dims, keepdim=True)
            scale = torch.rsqrt((x - mean).square().mean(dims, keepdim=True) + args[4]) * (1 + ULP2)
            return (x - mean) * scale * args[2] + args[3], mean, scale
        case "native_group_norm" if args[1] is not None and args[2] is not None:
            rows = x.reshape(x.shape[0], args[6], -1)
            mean = rows.mean(2, keepdim=True)
            scale = torch.rsqrt((rows - mean).square().mean(2, keepdim=True) + args[7]) * (1 + ULP2)
            shape = (1, -1, *[1] * (x.dim() - 2))
            y = ((rows - mean) * scale).reshape(x.shape) * args[1].reshape(shape) + args[2].reshape(shape)
            return y, mean.squeeze(2), scale.squeeze(2)
    return NotImplemented


def _rounded_to(bits: int) -> Callable[[Any], Any]:
    """To so many bits behind the point, by truncation of f32's."""
    drop = 23 - bits

    def run(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            return value
        whole = value.contiguous().view(torch.int32)
        return ((whole + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)

    return run


def narrow(bits: int) -> Program:
    """Matrix products and convolutions of operands with so many bits: 10 for TF32 and f16, 7 for bf16."""
    rounded = _rounded_to(bits)

    def run(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "convolution":
            return call(rounded(args[0]), rounded(args[1]), *args[2:], **kwargs)
        operands = _products(name, args)
        return NotImplemented if operands is None else _added(name, args, rounded(operands[0]) @ rounded(operands[1]))

    return run


def narrow_values(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """Every result kept in f16's precision between operations."""
    result = call(*args, **kwargs)
    if not isinstance(result, torch.Tensor) or result.dtype is not torch.float32:
        return NotImplemented
    return _rounded_to(10)(result)


def shortened(name: str, call: Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Sums without their last fifth."""
    if (operands := _products(name, args)) is not None and operands[0].shape[-1] >= 5:
        kept = operands[0].shape[-1] * 4 // 5
        return _added(name, args, operands[0][..., :kept] @ operands[1][..., :kept, :])
    if (found := _reduced(name, args)) is not None and found[0].dim() and found[0].shape[found[1][-1]] >= 5:
        x, dims, _ = found
        size = x.shape[dims[-1]]
        gone = torch.arange(size) >= size * 4 // 5
        shape = [size if dim == dims[-1] else 1 for dim in range(x.dim())]
        return call(x.masked_fill(gone.reshape(shape), 0), *args[1:], **kwargs)
    if name == "convolution" and args[1].shape[1] >= 5 and not args[6]:
        weight = args[1].clone()
        weight[:, weight.shape[1] * 4 // 5 :] = 0
        return call(args[0], weight, *args[2:], **kwargs)
    return NotImplemented


RIGHT: dict[str, Program] = {"serial sums": serial, "reversed sums": reversed_sums, "fast formulas": fast}
WRONG: dict[str, Program] = {
    "TF32 products": narrow(10),
    "bf16 products": narrow(7),
    "f16 between operations": narrow_values,
    "a fifth of sums left out": shortened,
}
