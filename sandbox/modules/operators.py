"""The ATen operators that a module's graph may have, and which of them stay whole.

A graph is data of a stranger: an operator runs only if it is listed here. All are pure: they read no file, draw no number,
and change none of their inputs.

Operators that stay whole, though ATen could say them by others, are what kernels and libraries are written for: matrix
products, convolutions, pools, norms, softmax, scans, reductions, recurrent layers and activations. Everything else is core
ATen. The 247 of KernelBench's 250 problems that trace (torch 2.13) have 87 operators; in so many problems each:

- products: convolution 126, addmm 65, mm 20, bmm 10, gru 4, lstm 3, scaled_dot_product_attention 3
- pointwise: mul 63, add 49, relu 39, div 23, sigmoid 22, gelu 22, sub 18, tanh 18, clamp 18, hardtanh 11, leaky_relu 9, mish 8,
  hardswish 6, pow 5, eq 4, minimum (min.other) 4, abs 3, masked_fill 3, where 3, log 2, softplus 2, ne 2; once each exp, elu,
  selu, hardsigmoid, neg, sqrt, lt, isnan, _to_copy
- views and copies: getitem 99, permute 74, view 36, cat 15, unsqueeze 12, squeeze 9, select 7, slice 6, expand 6,
  split_with_sizes 3; once each roll, flip, unfold, tril, triu, constant_pad_nd, index, gather; full 4, full_like 2
- norms: _native_batch_norm_legit_no_training 31, native_group_norm 17, native_layer_norm 9, _native_batch_norm_legit 4
- reductions: mean 33, sum 14, logsumexp 9, max 6, min 6, linalg_vector_norm 5; once each argmax, argmin, norm
- windows: max_pool2d 22, max_pool3d 8, avg_pool2d 7, avg_pool3d 5, avg_pool1d 2, adaptive_avg_pool1d 2
- rows and scans: _softmax 18, _log_softmax 2, cumsum 4, cumprod 1
"""

import functools
from typing import Any

from cudal2_agent.contract.records.module_graph import GraphNode

# Composite in ATen; the export would take them apart.
WHOLE = (
    *("celu", "elu", "gelu", "glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid_forward", "mish"),
    *("relu6", "selu", "silu", "softplus", "softshrink", "hardshrink", "threshold"),
    *("_softmax", "_log_softmax", "logsumexp", "logcumsumexp", "cumsum", "cumprod", "linalg_vector_norm", "norm"),
    *("mean", "sum", "amax", "amin", "argmax", "argmin", "prod", "var", "var_mean", "max", "min", "all", "any", "topk", "sort"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("convolution", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "embedding", "gather", "index", "index_select"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "upsample_linear1d", "grid_sampler_2d", "pixel_shuffle", "pixel_unshuffle", "roll", "flip"),
    *("scaled_dot_product_attention", "tril", "triu", "masked_fill", "where", "addcmul", "addcdiv", "lerp", "square"),
)
# Of recurrent layers: the export would write out each step.
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Everything else that a graph may have.
_ELEMENTWISE = (
    *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift"),
    *("bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min"),
    *("copysign", "cos", "cosh", "digamma", "div", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor"),
    *("floor_divide", "fmax", "fmin", "fmod", "frac", "ge", "gt", "heaviside", "hypot", "isfinite", "isinf", "isnan", "le"),
    *("lgamma", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor"),
    *("logit", "lt", "maximum", "minimum", "mul", "nan_to_num", "ne", "neg", "pow", "reciprocal", "relu", "remainder"),
    *("round", "rsqrt", "rsub", "sigmoid", "sign", "sgn", "sin", "sinc", "sinh", "special_entr", "special_i0", "sqrt"),
    *("sub", "tan", "tanh", "trunc", "xlogy", "prelu", "_prelu_kernel", "signbit", "log_softmax", "softmax"),
)
_SHAPES = (
    *("_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "detach", "diagonal"),
    *("diagonal_copy", "expand", "expand_copy", "lift_fresh_copy", "movedim", "narrow", "permute", "permute_copy"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat", "repeat_interleave", "replication_pad1d"),
    *("replication_pad2d", "replication_pad3d", "reshape", "select", "select_copy", "select_scatter", "slice", "slice_copy"),
    *("slice_scatter", "diagonal_scatter", "as_strided_scatter", "as_strided_copy", "split", "split_with_sizes"),
    *("split_with_sizes_copy", "squeeze", "squeeze_copy", "stack", "t", "transpose", "unbind", "unbind_copy", "unfold"),
    *("unfold_copy", "unsqueeze", "unsqueeze_copy", "view", "view_copy", "im2col", "col2im", "_unsafe_index", "diag_embed"),
    *("index_put", "_unsafe_index_put", "scatter", "scatter_add", "scatter_reduce", "index_add", "take", "masked_scatter"),
    *("channel_shuffle", "native_channel_shuffle", "_reshape_alias", "reshape_copy", "tile", "view_as", "expand_as"),
)
_MAKING = (
    *("arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "new_empty"),
    *("new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "tril_indices", "triu_indices", "zeros"),
    *("zeros_like", "one_hot", "bucketize", "searchsorted"),
)
_REDUCING = (
    *("aminmax", "count_nonzero", "cummax", "cummin", "cumsum", "median", "nanmedian", "nansum", "std", "std_mean", "argsort"),
    *("kthvalue", "mode", "nll_loss_forward", "nll_loss2d_forward", "nll_loss2d", "_pdist_forward", "_cdist_forward", "outer"),
    *("linear", "matmul", "addbmm", "addr", "cross", "linalg_cross", "trace", "renorm", "histc", "mse_loss", "huber_loss"),
    *("smooth_l1_loss", "binary_cross_entropy", "kl_div", "soft_margin_loss", "_fused_rms_norm", "rms_norm", "bilinear"),
    *("_trilinear", "einsum", "tensordot", "kron", "cov", "lerp", "norm"),
)
# One result for each element of the operands, which are broadcast.
POINTWISE = frozenset(
    (
        *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu6", "selu", "silu"),
        *("softplus", "softshrink", "hardshrink", "threshold", "masked_fill", "where", "addcmul", "addcdiv", "lerp", "square"),
        *(name for name in _ELEMENTWISE if "softmax" not in name and "prelu" not in name),
    )
)
NAMES = frozenset((*WHOLE, *RECURRENT, *_ELEMENTWISE, *_SHAPES, *_MAKING, *_REDUCING))

# Those that move or copy values. Without one a module does not run, or it computes the same.
MOVES = frozenset(
    (
        *("view", "reshape", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "clone", "alias", "detach"),
        *("_to_copy", "copy", "lift_fresh_copy", "full"),
    )
)

# How problems draw their inputs and parameters: the numbers come from a seeded generator, and only their own tensors change.
DRAWING = frozenset(
    (
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal"),
        *("multinomial", "uniform", "uniform_", "normal_", "bernoulli_", "random_", "exponential_", "log_normal_"),
        *("trunc_normal_", "cauchy_", "geometric_", "fill_", "zero_", "copy_", "add_", "sub_", "mul_", "div_", "clamp_"),
        *("erfinv_", "sqrt_", "exp_", "log_", "neg_", "abs_", "pow_", "sigmoid_", "tanh_", "relu_", "clamp_min_"),
        *("clamp_max_", "index_put_", "masked_fill_", "tril_", "triu_", "squeeze_", "unsqueeze_", "transpose_", "t_"),
        *("fill_diagonal_", "scatter_", "index_fill_", "sign_", "round_", "floor_", "detach_", "eq_", "cumsum_"),
        *("lift_fresh", "to", "_conj", "linalg_qr", "linalg_svd", "_linalg_svd", "polar", "view_as_real", "lift"),
    )
)


def packet_of(op: str) -> str:
    """`relu` of `aten.relu.default`; `getitem` of itself."""
    return op.removeprefix("aten.").partition(".")[0]


def operation(node: GraphNode) -> str:
    """The packet of a node's operator."""
    return packet_of(node.op)


@functools.cache
def operator(name: str, *, drawing: bool = False) -> Any:
    """The overload that `aten.relu.default` names. Raises: ValueError for one that is not listed."""
    import torch

    _, _, rest = name.partition("aten.")
    packet, _, overload = rest.partition(".")
    if packet in NAMES or (drawing and packet in DRAWING):
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if found is not None:
            return found
    raise ValueError(f"{name} is not among the operators that run")
