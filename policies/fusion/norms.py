"""Softmax and normalisations: their statistics are reductions, what follows is computed element by element."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index
from cudal2_agent.policies.fusion.values import Linear, Map, Reduction, Scope, Unplanned, Value
from cudal2_agent.policies.fusion.views import broadcast, reshaped

# From the index of an element to that of the statistic of its row.
Row = Callable[[Sequence[Index]], list[Index]]


_STATISTICS = ("moments", "powers")
_ALONE = {
    "powers": {"max": "{0}", "sum": "exp({0} - {0})"},
    "moments": {"mean": "{0}", "variance": "({0} - {0})", "squares": "({0} - {0})"},
}


def reduced(name: str, value: Value, operation: str, dims: Sequence[int], output: str = "value") -> Value:
    """A reduction over dimensions; all where there are none. One of single elements is computed where it is read."""
    rank = len(value.shape)
    gone = tuple(sorted({dim % rank for dim in dims})) if dims else tuple(range(rank))
    shape = tuple(size for dim, size in enumerate(value.shape) if dim not in gone)
    element = BufferElement.I64 if output == "index" else value.element
    if operation in _STATISTICS and element in (BufferElement.F16, BufferElement.BF16):
        element = BufferElement.F32
    if math.prod(value.shape[dim] for dim in gone) == 1 and output != "index":
        whole = reshaped(f"{name}_view", value, shape)
        text = _ALONE.get(operation, {}).get(output, "{0}")
        if text == "{0}":
            return whole
        return with_operands(name, [whole], shape, element, lambda scope, of: scope.pool.call(text, of[0].ctype, of[0]))
    return Reduction(name, shape, element, operation, value, gone, output)


def _row_of(dims: Sequence[int]) -> Row:
    return lambda index: [each for dim, each in enumerate(index) if dim not in dims]


def logsumexp(name: str, value: Value, dims: int | Sequence[int]) -> Value:
    """log(sum(exp(x - max))) + max, without the reduced dimensions; an infinite maximum is the result, as in ATen."""
    gone = tuple(dim % len(value.shape) for dim in ([dims] if isinstance(dims, int) else dims))
    largest, total = _powers(name, value, gone)

    def result(scope: Scope, place: Sequence[Index]) -> Expr:
        parts = scope.read(total, place), scope.read(largest, place)
        return scope.pool.call("(isinf({1}) ? {1} : log({0}) + {1})", value.ctype, *parts)

    return Map(name, total.shape, value.element, (total, largest), result, cost=20)


def _powers(name: str, value: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """The largest element of each row, and the sum of the powers of e of the distances from it: one pass."""
    largest, total = (reduced(f"{name}_{output}", value, "powers", dims, output) for output in ("max", "sum"))
    return largest, total


def softmax(name: str, value: Value, dim: int, *, log: bool, masked: bool = False) -> Value:
    """exp(x - max) / sum, or its logarithm. `masked`: zeros for a row without a number above -inf, instead of NaN."""
    dim %= len(value.shape)
    row = _row_of((dim,))
    largest, total = _powers(name, value, (dim,))

    def result(scope: Scope, index: Sequence[Index]) -> Expr:
        place = row(index)
        made, ctype = scope.pool, value.ctype
        x, top, sums = scope.read(value, index), scope.read(largest, place), scope.read(total, place)
        if log:
            found = made.call("({0} - {1} - {2})", ctype, x, top, made.call("log({0})", ctype, sums))
        else:
            found = made.call("({0} / {1})", ctype, made.call("exp({0} - {1})", ctype, x, top), sums)
        return made.call("({1} == -INF_F ? 0 : {0})", ctype, found, top) if masked else found

    return Map(name, value.shape, value.element, (value, largest, total), result, cost=12)


def _normalised(
    name: str, value: Value, stats: tuple[Value, Value], row: Row, affine: Sequence[tuple[Value | None, Row]]
) -> Map:
    """(x - mean) * rstd * weight + bias. `stats`: mean and rstd; `affine`: weight and bias, with the places in them."""
    (weight, weight_row), (bias, bias_row) = affine
    inputs = (value, *stats, *(each for each in (weight, bias) if each is not None))

    def result(scope: Scope, index: Sequence[Index]) -> Expr:
        made, place = scope.pool, row(index)
        x, mean, rstd = scope.read(value, index), scope.read(stats[0], place), scope.read(stats[1], place)
        total = made.call("(({0} - {1}) * {2})", value.ctype, x, mean, rstd)
        if weight is not None:
            total = made.call("({0} * {1})", value.ctype, total, scope.read(weight, weight_row(index)))
        return total if bias is None else made.call("({0} + {1})", value.ctype, total, scope.read(bias, bias_row(index)))

    return Map(name, value.shape, value.element, inputs, result)


def _inverse_deviation(name: str, variance: Value, eps: float) -> Value:
    def result(scope: Scope, index: Sequence[Index]) -> Expr:
        read, made = scope.read(variance, index), scope.pool
        return made.call("rsqrt({0} + {1})", variance.ctype, read, made.literal(eps, variance.ctype))

    return Map(f"{name}_rstd", variance.shape, variance.element, (variance,), result)


def _statistics(name: str, value: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    mean = reduced(f"{name}_mean", value, "moments", dims, "mean")
    return mean, _inverse_deviation(name, reduced(f"{name}_variance", value, "moments", dims, "variance"), eps)


def normalised(name: str, op: str, args: Sequence[Any]) -> tuple[Value, ...] | None:
    """The results of a normalisation of ATen; None where `op` is none. `args`: values in the place of nodes."""
    value = args[0]
    match op:
        case "native_layer_norm":
            first = len(value.shape) - len(args[1])
            dims = tuple(range(first, len(value.shape)))
            stats = _statistics(name, value, dims, args[4])

            def inner(index: Sequence[Index]) -> list[Index]:
                return list(index[first:])

            return (_normalised(name, value, stats, _row_of(dims), [(args[2], inner), (args[3], inner)]), *stats)
        case "native_group_norm":
            batch, channels, _, groups, eps = args[3:8]
            rows = reshaped(f"{name}_rows", value, (batch, groups, value.numel // (batch * groups)))
            stats = _statistics(name, rows, (2,), eps)

            def group(index: Sequence[Index]) -> list[Index]:
                return [index[0], index[1] // (channels // groups)]

            return (_normalised(name, value, stats, group, [(args[1], _channel), (args[2], _channel)]), *stats)
        case "_native_batch_norm_legit_no_training":
            stats = (args[3], _inverse_deviation(name, args[4], args[6]))
            result = _normalised(name, value, stats, _channel, [(args[1], _channel), (args[2], _channel)])
            result.linear = _by_channel(name, value, stats, args[1], args[2])
            return (result, *stats)
        case "_native_batch_norm_legit" | "_native_batch_norm_legit_functional" | "native_batch_norm":
            training, momentum, eps = args[-3:]
            running: list[Any] = list(args[3:5]) if len(args) == 8 else [None, None]
            if not training:
                stats = (running[0], _inverse_deviation(name, running[1], eps))
            else:
                dims = tuple(dim for dim in range(len(value.shape)) if dim != 1)
                stats = _statistics(name, value, dims, eps)
            results = (_normalised(name, value, stats, _channel, [(args[1], _channel), (args[2], _channel)]), *stats)
            if op != "_native_batch_norm_legit_functional" or not training:
                return results
            return (*results, *_running(name, value, running, momentum))
    return None


def _by_channel(name: str, value: Value, stats: tuple[Value, Value], weight: Value | None, bias: Value | None) -> Linear:
    """x * scale + shift, where both have one number a channel."""
    shape = (1, value.shape[1], *[1] * (len(value.shape) - 2))

    def scale(scope: Scope, index: Sequence[Index]) -> Expr:
        rstd = scope.read(stats[1], _channel(index))
        return (
            rstd if weight is None else scope.pool.call("({0} * {1})", value.ctype, rstd, scope.read(weight, _channel(index)))
        )

    def shift(scope: Scope, index: Sequence[Index]) -> Expr:
        moved = scope.pool.call("(-{0} * {1})", value.ctype, scope.read(stats[0], _channel(index)), scale(scope, index))
        if bias is None:
            return moved
        return scope.pool.call("({0} + {1})", value.ctype, moved, scope.read(bias, _channel(index)))

    of = (*stats, *(each for each in (weight, bias) if each is not None))
    factor = Map(f"{name}_scale", shape, value.element, of, scale)
    return ((value, factor), (Map(f"{name}_shift", shape, value.element, of, shift), 1))


def _channel(index: Sequence[Index]) -> list[Index]:
    return [index[1]]


def _running(name: str, value: Value, running: Sequence[Any], momentum: float) -> tuple[Value, Value]:
    """The next running mean and variance, the latter without bias."""
    dims = tuple(dim for dim in range(len(value.shape)) if dim != 1)
    count = value.numel // value.shape[1]
    if count < 2:
        raise Unplanned("aten._native_batch_norm_legit_functional", "the variance of one element")
    found = []
    for before, output, scale in ((running[0], "mean", 1.0), (running[1], "variance", count / (count - 1))):
        now = reduced(f"{name}_{output}", value, "moments", dims, output)

        def result(
            scope: Scope, index: Sequence[Index], now: Value = now, before: Value = before, scale: float = scale
        ) -> Expr:
            made, ctype = scope.pool, before.ctype
            literals = made.literal(1 - momentum, ctype), made.literal(momentum * scale, ctype)
            return made.call("({0} * {2} + {1} * {3})", ctype, scope.read(before, index), scope.read(now, index), *literals)

        found.append(Map(f"{name}_running_{output}", before.shape, before.element, (before, now), result))
    return found[0], found[1]


def with_operands(
    name: str,
    values: Sequence[Value],
    shape: tuple[int, ...],
    element: BufferElement,
    write: Callable[[Scope, list[Expr]], Expr],
) -> Map:
    """A broadcast element-wise operation. `write(scope, operands)`: its expression."""

    def result(scope: Scope, index: Sequence[Index]) -> Expr:
        return write(scope, [scope.read(each, broadcast(each, index)) for each in values])

    return Map(name, shape, element, tuple(values), result)
