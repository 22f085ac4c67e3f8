"""What rounding may do to the operations of a graph, as random numbers: Monte Carlo arithmetic.

A right kernel differs from the reference by roundings that depend on the order of its sums and on its formulas. Each operation
is therefore run with its result moved at random by as much as its rounding may move it:

    u_result |r|             of every operation that rounds; an f32 result gets two, for approximate functions
    0.3 u_f32 sqrt(K) |r|    of sums of K terms: a serial sum of one sign
    0.35 u_f32 sqrt(K) |x|   of the terms of such a sum: a serial sum of random signs, and what norms subtract
    0.05 u_f32 K |r|         of sums that are no products: terms that are alike are rounded alike; K of at most SERIAL there,
                             since no thread adds more one after another
    u_f32 |log sum exp|      of log-softmax: some round the maximum plus the logarithm before they subtract it
    0.5 u_f32 |x|            of GELU, for x down to GELU_TAIL: PyTorch adds 1 to an erf or tanh near -1, rounded to f32

Attention runs as the product, softmax and product that it is, each with its own noise: the scores may be much larger than what
is left of them. An infinity stays one.

The differences to the reference are samples of what right kernels may show, with the conditioning of each element in them.
Source: Parker, Monte Carlo Arithmetic (UCLA CSD-970002, 1997). Growth by the square root: Higham and Mary, SISC 41 (2019).
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from cudal2_agent.contract.records.module_graph import Graph, GraphNode
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.sandbox.modules.operators import operation

ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-23, torch.float64: 2.0**-52}
SERIAL = 4096
GELU_TAIL = 6.0  # beyond which its formula gives 0
_ATTENTION = "scaled_dot_product_attention"
U_SUM, U_SUM_F64, U_TF32 = 2.0**-24, 2.0**-53, 2.0**-11
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_PRODUCTS = _RECURRENT | {
    *("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "mv", "dot", "addmv", "convolution", _ATTENTION)
}
_NORMS = frozenset(
    (
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "var", "std"),
    )
)
_SUMS = frozenset({"sum", "mean", "prod", "linalg_vector_norm", "norm", "logsumexp", "mse_loss"})
_SCANS = frozenset({"cumsum", "cumprod", "_softmax", "_log_softmax", "softmax", "log_softmax", "logcumsumexp"})
_LOG_SOFTMAX = frozenset({"_log_softmax", "log_softmax"})
_LOGARITHMS = _LOG_SOFTMAX | {"logsumexp", "logcumsumexp"}
# Operations whose results are their operands, one of them, or whole numbers.
_EXACT = frozenset(
    (
        *(
            "abs",
            "neg",
            "relu",
            "relu6",
            "hardtanh",
            "threshold",
            "clamp",
            "clamp_min",
            "clamp_max",
            "maximum",
            "minimum",
            "max",
        ),
        *("min", "amax", "amin", "argmax", "argmin", "topk", "sort", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("max_pool1d", "adaptive_max_pool2d", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_and"),
        *("logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "sign", "sgn", "floor", "ceil", "round"),
        *("trunc", "isnan", "isinf", "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "expand_as"),
        *(
            "squeeze",
            "unsqueeze",
            "flatten",
            "cat",
            "stack",
            "select",
            "slice",
            "split",
            "split_with_sizes",
            "unbind",
            "unfold",
        ),
        *("index", "index_select", "gather", "scatter", "flip", "roll", "repeat", "constant_pad_nd", "reflection_pad2d"),
        *("replication_pad2d", "triu", "tril", "diagonal", "diag_embed", "clone", "copy", "alias", "detach", "_to_copy", "to"),
        *("contiguous", "lift_fresh_copy", "dropout", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "empty"),
        *("empty_like", "arange", "scalar_tensor", "embedding", "one_hot", "getitem", "upsample_nearest2d", "pixel_shuffle"),
        *("select_scatter", "slice_scatter", "as_strided", "view_copy", "any", "all"),
    )
)


def is_exact(node: GraphNode) -> bool:
    """Whether an operation rounds nothing."""
    return operation(node) in _EXACT


def is_moved(node: GraphNode) -> bool:
    """Whether an operation sums what it reads, so that noise moves its operands."""
    return _is_moved(operation(node))


def _is_moved(name: str) -> bool:
    return name in _PRODUCTS or name in _NORMS or name in _SUMS or "cum" in name or "avg_pool" in name


def rounds(graph: Graph) -> bool:
    """Whether any operation of a graph rounds."""
    return any(is_moved(node) or not is_exact(node) for node in graph.nodes)


class Noise:
    """Runs operations in place of an interpreter's plain calls (`Interpreter.run(values, around=...)`)."""

    def __init__(self, seed: int, device: torch.device, arithmetic: Arithmetic) -> None:
        self._source = torch.Generator(device).manual_seed(seed)
        self._product_roundoff = U_TF32 if arithmetic is Arithmetic.TF32 else 0.0

    def __call__(self, node: GraphNode, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        name, terms = operation(node), summed(node, args)
        if name == _ATTENTION and not kwargs.get("enable_gqa"):
            return self._attention(*args, **kwargs)
        result = self._run(name, function, args, kwargs, terms)
        if name in _LOG_SOFTMAX:
            result = self._moved_by(result, (args[0] - result).abs_().mul_(U_SUM * _finer(result)))
        if name == "gelu":
            result = self._moved_by(result, args[0].abs().clamp_(max=GELU_TAIL).mul_(0.5 * U_SUM * _finer(result)))
        return result

    def _run(self, name: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], terms: int) -> Any:
        return self.rounded(name, function(*self.moved(name, args, terms), **kwargs), terms)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002 (of a module that is evaluated)
        is_causal: bool = False,
        *,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Scores and shares are summed in f32 at least; shares are multiplied in the type of the values."""
        wide = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in (query, key.transpose(-2, -1))]
        scores = self._run("matmul", torch.matmul, wide, {}, query.shape[-1]).mul_(scale or query.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril_()
        if attn_mask is not None:
            masked = attn_mask.dtype is torch.bool
            scores = scores.masked_fill_(~attn_mask, -math.inf) if masked else scores.add_(attn_mask)
        shares = self._run("softmax", torch.ops.aten._safe_softmax, [scores, -1], {}, key.shape[-2])
        if shares.dtype != value.dtype:
            shares = self._rounded(shares.to(value.dtype), 0.0)
        return self._run("matmul", torch.matmul, [shares, value], {}, key.shape[-2])

    def moved(self, name: str, args: list[Any], terms: int) -> list[Any]:
        """The arguments of an operation, moved where it sums so many terms of them."""
        if _is_moved(name):
            roundoff = 0.35 * U_SUM * math.sqrt(terms) if terms > 1 and name not in _LOGARITHMS else 0.0
            if name in _PRODUCTS:
                roundoff += self._product_roundoff
            args = [self._moved(arg, roundoff) for arg in args] if roundoff else args
        return args

    def rounded(self, name: str, result: Any, terms: int) -> Any:
        """An operation's result or results, rounded."""
        if name in _EXACT:
            return result
        alike = 0.0 if name in _PRODUCTS else 0.05 * min(terms, SERIAL)
        growth = U_SUM * (0.3 * math.sqrt(terms) + alike) if terms > 1 else 0.0
        if isinstance(result, torch.Tensor):
            return self._rounded(result, growth, absolute=name in _LOGARITHMS)
        return tuple(self._rounded(each, growth) for each in result)

    def _moved(self, value: Any, roundoff: float) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [self._moved(each, roundoff) for each in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            return value
        return self._moved_by(value, value, roundoff * _finer(value))

    def _rounded(self, value: Any, growth: float, *, absolute: bool = False) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            return value
        growth *= _finer(value)
        moved = self._moved_by(value, value, ROUNDOFF[value.dtype] + (0 if absolute else growth))
        return moved + self._signs(value, growth) if absolute else moved

    def _moved_by(self, value: torch.Tensor, size: torch.Tensor, roundoff: float = 1.0) -> torch.Tensor:
        """`size`: of the type of the value."""
        moved = torch.addcmul(value, size, self._signs(value, roundoff))
        return torch.where(moved.isnan(), value, moved)  # an infinity stays one

    def _signs(self, like: torch.Tensor, size: float) -> torch.Tensor:
        """Random numbers of both signs, whose mean magnitude is three quarters of `size`."""
        drawn = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        return drawn.uniform_(-1.5 * size, 1.5 * size, generator=self._source).to(like.dtype)


def _finer(value: torch.Tensor) -> float:
    """How many times less a sum of this type rounds than one in f32."""
    return U_SUM_F64 / U_SUM if value.dtype is torch.float64 else 1.0


def summed(node: GraphNode, args: list[Any]) -> int:
    """How many terms each sum of an operation has; 1 where it sums nothing."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return max(int(_terms(operation(node), node, args, tensors)), 1) if tensors else 1


def _terms(name: str, node: GraphNode, args: list[Any], tensors: list[torch.Tensor]) -> Any:
    first, shares = tensors[0], tensors[0].numel() / max(math.prod(node.results[0].shape), 1)
    if name in ("mm", "bmm", "linear", "matmul", "mv", "dot") or name in _RECURRENT:
        return first.shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return tensors[1].shape[-1]
    if name == "convolution":
        weight, transposed, groups = args[1], args[6], args[8]
        return weight.numel() / (weight.shape[1] * groups if transposed else weight.shape[0])
    if name == "native_group_norm":
        return args[4] * args[5] / args[6]
    if name == "native_layer_norm":
        return math.prod(args[1])
    if "batch_norm" in name:
        return 1 if name.endswith("no_training") else first.numel() / max(first.shape[1], 1)
    if name in _SCANS:
        return first.shape[args[1]] if first.dim() else 1
    if name in _SUMS or name in ("var", "std", "var_mean") or "adaptive_avg_pool" in name:
        return shares
    if "scaled_dot_product" in name:
        return max(first.shape[-1], tensors[1].shape[-2])
    return math.prod(args[1]) if "avg_pool" in name else 1
