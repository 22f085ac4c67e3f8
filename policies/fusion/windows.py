"""Pools: each element is made of the elements of a window, by the thread that needs it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.values import LineWindow, Map, Scope, Unplanned, Value


@dataclass(frozen=True)
class PoolWindow:
    """Of the last dimensions of a value. `divisor`: of an average; None for the number of elements inside, which
    `counts_padding` extends by the padding.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    counts_padding: bool = True
    divisor: int | None = None

    @property
    def repeats(self) -> float:
        """How often an element is read."""
        return math.prod(max(size / stride, 1) for size, stride in zip(self.size, self.stride, strict=True))


def _tuple(value: Any, rank: int, default: Sequence[int]) -> tuple[int, ...]:
    values = tuple(value if isinstance(value, list | tuple) else [value]) if value not in (None, [], ()) else tuple(default)
    return values * rank if len(values) == 1 else values


def pool(name: str, op: str, value: Value, args: Sequence[Any], shape: tuple[int, ...], output: int = 0) -> Value | None:
    """The result of a pooling operator; None where `op` is none. Raises: Unplanned."""
    kind, rank = _kind(op)
    if kind is None:
        return None
    if kind == "adaptive":
        return _adaptive(name, value, shape, rank)
    size = _tuple(args[0], rank, ())
    stride = _tuple(args[1] if len(args) > 1 else None, rank, size)
    padding = _tuple(args[2] if len(args) > 2 else None, rank, (0,) * rank)
    if kind == "max":
        if output:
            raise Unplanned(f"aten.{op}", "the indices of a pool")
        dilation = _tuple(args[3] if len(args) > 3 else None, rank, (1,) * rank)
        return _pooled(name, value, shape, PoolWindow(size, stride, padding, dilation), "max")
    counts = args[4] if len(args) > 4 else True
    divisor = args[5] if len(args) > 5 else None
    window = PoolWindow(size, stride, padding, (1,) * rank, counts_padding=counts, divisor=divisor)
    return _pooled(name, value, shape, window, "sum")


def _kind(op: str) -> tuple[str | None, int]:
    rank = next((int(each) for each in op if each.isdigit()), 1)
    if op.startswith("max_pool"):
        return "max", rank
    if op.startswith("avg_pool"):
        return "average", rank
    return ("adaptive", rank) if op.lstrip("_").startswith("adaptive_avg_pool") else (None, 0)


def _pooled(name: str, value: Value, shape: tuple[int, ...], window: PoolWindow, operation: str) -> Value:
    rank = len(window.size)
    space = value.shape[-rank:]

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        outer, places = list(index[:-rank]), index[-rank:]
        window_name = scope.pool.new_window()
        steps = [Var(f"{window_name}_{dim}", size) for dim, size in enumerate(window.size)]
        inner = [
            place * stride + of(step) * dilation - padding
            for place, stride, step, dilation, padding in zip(
                places, window.stride, steps, window.dilation, window.padding, strict=True
            )
        ]
        inside = tuple(zip(inner, space, strict=True))
        scope_pool = scope.pool
        other = scope_pool.literal("-inf", value.ctype) if operation == "max" else scope_pool.literal(0, value.ctype)
        known = [scope_pool.known_inside(each, size) for each, size in inside]
        element = scope_pool.guard(inside, scope.read(value, [*outer, *known]), other)
        total = scope_pool.make("fold", value.ctype, element, data=(operation, tuple(steps)))
        if operation == "max":
            return total
        return scope_pool.call("({0} / {1})", value.ctype, total, _count(scope, places, space, window, value))

    line = _by_line(name, value, shape, window, operation)
    return Map(name, shape, value.element, (value,), at, repeats=window.repeats, cost=math.prod(window.size), by_line=line)


def _by_line(name: str, value: Value, shape: tuple[int, ...], window: PoolWindow, operation: str) -> LineWindow:
    """The same in two steps: the columns of a line of windows, then those of each window."""
    rank, space = len(window.size), value.shape[-len(window.size) :]
    sides = list(zip(window.stride, window.padding, window.dilation, strict=True))
    (by, pad, far), size = sides[-1], (window.size[-1] - 1) * window.dilation[-1] + 1

    def neutral(scope: Scope) -> Expr:
        return scope.pool.literal("-inf" if operation == "max" else 0, value.ctype)

    def column(scope: Scope, index: Sequence[Index]) -> Expr:
        made, places, across = scope.pool, index[-rank:-1], index[-1] - pad
        prefix = made.new_window()
        steps = [Var(f"{prefix}_{dim}", count) for dim, count in enumerate(window.size[:-1])]
        rows = [
            place * by + of(step) * far - pad for place, step, (by, pad, far) in zip(places, steps, sides[:-1], strict=True)
        ]
        inside = tuple(zip(rows, space[:-1], strict=True))
        known = [made.known_inside(at, count) for at, count in (*inside, (across, space[-1]))]
        element = made.guard(inside, scope.read(value, [*index[:-rank], *known]), neutral(scope))
        total = made.make("fold", value.ctype, element, data=(operation, tuple(steps))) if steps else element
        return made.guard(((across, space[-1]),), total, neutral(scope))

    columns = Map(f"{name}_columns", (*shape[:-1], (shape[-1] - 1) * by + size), value.element, (value,), column)

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        made = scope.pool
        step = Var(f"{made.new_window()}_0", window.size[-1])
        element = scope.read(columns, [*index[:-1], index[-1] * by + of(step) * far])
        total = made.make("fold", value.ctype, element, data=(operation, (step,)))
        if operation == "max":
            return total
        return made.call("({0} / {1})", value.ctype, total, _count(scope, index[-rank:], space, window, value))

    return LineWindow(columns, at, shape[-1], size, by, math.prod(window.size))


def _count(scope: Scope, places: Sequence[Index], space: Sequence[int], window: PoolWindow, value: Value) -> Expr:
    """What a sum is divided by: for each dimension the elements of the window that count."""
    made = scope.pool
    if window.divisor is not None:
        return made.literal(window.divisor, value.ctype)
    count: Expr | None = None
    whole = 1
    for place, size, stride, padding, extent in zip(places, window.size, window.stride, window.padding, space, strict=True):
        last = place.high * stride - padding + size  # one past the last element of the last window
        limit = extent + padding if window.counts_padding else extent
        if last <= limit and (window.counts_padding or not padding):
            whole *= size
            continue
        start = made.index(place * stride)
        low, high = (0, extent + 2 * padding) if window.counts_padding else (padding, extent + padding)
        text = f"(min((int)({{0}}) + {size}, {high}) - max((int)({{0}}), {low}))"
        each = made.call(text, "int", start)
        count = each if count is None else made.call("({0} * {1})", "int", count, each)
    factor = made.literal(whole, value.ctype)
    return factor if count is None else made.call("({0} * {1})", value.ctype, factor, made.cast(count, value.ctype))


def _adaptive(name: str, value: Value, shape: tuple[int, ...], rank: int) -> Value:
    """Windows that divide the space evenly; others are not planned."""
    sizes = list(zip(value.shape[-rank:], shape[-rank:], strict=True))
    if any(before % after for before, after in sizes):
        raise Unplanned("aten.adaptive_avg_pool", f"{value.shape} to {shape} is not even")
    size = tuple(before // after for before, after in sizes)
    return _pooled(name, value, shape, PoolWindow(size, size, (0,) * rank, (1,) * rank), "sum")
