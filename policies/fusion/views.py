"""Operators that move elements: each is an index map, read where it is used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Index, flat, number, unflat
from cudal2_agent.policies.fusion.values import Map, Scan, Scope, Unplanned, Value


def reshaped(name: str, value: Value, shape: Sequence[int]) -> Value:
    """The elements in row-major order under another shape."""
    shape = tuple(shape)
    if shape == value.shape:
        return value

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        return scope.read(value, unflat(flat(index, shape), value.shape))

    return Map(name, shape, value.element, (value,), at, view_of=value)


def permuted(name: str, value: Value, order: Sequence[int]) -> Value:
    order = tuple(dim % len(value.shape) for dim in order)

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        return scope.read(value, [index[order.index(dim)] for dim in range(len(order))])

    return Map(name, tuple(value.shape[dim] for dim in order), value.element, (value,), at, view_of=value, permute=order)


def expanded(name: str, value: Value, shape: Sequence[int]) -> Value:
    """Dimensions of size 1 repeated, and new ones in front."""
    if tuple(shape) == value.shape:
        return value
    return Map(name, tuple(shape), value.element, (value,), lambda scope, index: scope.read(value, broadcast(value, index)))


def broadcast(value: Value, index: Sequence[Index]) -> list[Index]:
    """The element of an operand that a broadcast operation reads."""
    last = index[len(index) - len(value.shape) :]
    return [Index() if size == 1 else each for each, size in zip(last, value.shape, strict=True)]


def moved(name: str, value: Value, shape: Sequence[int], place: Callable[[list[Index]], list[Index]]) -> Value:
    """Each element of the result is that of the operand at `place`."""
    return Map(name, tuple(shape), value.element, (value,), lambda scope, index: scope.read(value, place(list(index))))


def view(name: str, op: str, value: Value, args: Sequence[Any], shape: tuple[int, ...]) -> Value | None:
    """The result of an operator that only moves elements of one operand; None where `op` is none. `shape`: the result's."""
    rank = len(value.shape)
    match op:
        case "view" | "reshape" | "_unsafe_view" | "unsqueeze" | "squeeze" | "flatten" | "unflatten":
            return reshaped(name, value, shape)
        case "permute":
            return permuted(name, value, args[0])
        case "tril" | "triu":
            return triangle(name, value, args[0] if args else 0, lower=op == "tril")
        case "transpose" | "t":
            first, second = (args[0] % rank, args[1] % rank) if args else (0, rank - 1)
            order = list(range(rank))
            order[first], order[second] = order[second], order[first]
            return permuted(name, value, order)
        case "expand":
            return expanded(name, value, shape)
        case "slice":
            dim, start, step = args[0] % rank if args else 0, args[1] if len(args) > 1 else 0, args[3] if len(args) > 3 else 1
            start = max(start + value.shape[dim], 0) if (start or 0) < 0 else min(start or 0, value.shape[dim])
            return moved(name, value, shape, lambda index: _changed(index, dim, lambda each: each * step + start))
        case "select":
            dim, which = args[0] % rank, args[1] % value.shape[args[0] % rank]
            return moved(name, value, shape, lambda index: [*index[:dim], number(which), *index[dim:]])
        case "flip":
            dims = [dim % rank for dim in args[0]]

            def flipped(index: list[Index]) -> list[Index]:
                return [each * -1 + (value.shape[dim] - 1) if dim in dims else each for dim, each in enumerate(index)]

            return moved(name, value, shape, flipped)
        case "roll":
            shifts, dims = args[0], args[1] if len(args) > 1 else []
            if not dims:
                return None
            turns = {dim % rank: shift for dim, shift in zip(dims, shifts, strict=True)}

            def rolled(index: list[Index]) -> list[Index]:
                sizes = value.shape
                return [(each + -turns.get(dim, 0) % sizes[dim]) % sizes[dim] for dim, each in enumerate(index)]

            return moved(name, value, shape, rolled)
        case "repeat":
            added = len(shape) - rank
            return moved(
                name,
                value,
                shape,
                lambda index: [each % size for each, size in zip(index[added:], value.shape, strict=True)],
            )
        case "unfold":
            dim, step = args[0] % rank, args[2]
            return moved(name, value, shape, lambda index: _changed(index[:-1], dim, lambda each: each * step + index[-1]))
        case "constant_pad_nd":
            return padded(name, value, args[0], args[1] if len(args) > 1 else 0, shape)
    return None


def padded(name: str, value: Value, pad: Sequence[int], fill: float, shape: tuple[int, ...]) -> Value:
    """`pad`: (before, after) of the last dimension, then of the one before it."""
    before = [0] * len(shape)
    for at in range(len(pad) // 2):
        before[-1 - at] = pad[2 * at]

    def at_(scope: Scope, index: Sequence[Index]) -> Expr:
        inner = [each - offset for each, offset in zip(index, before, strict=True)]
        inside = tuple(zip(inner, value.shape, strict=True))
        known = [scope.pool.known_inside(each, size) for each, size in inside]
        return scope.pool.guard(inside, scope.read(value, known), scope.pool.literal(fill, value.ctype))

    return Map(name, shape, value.element, (value,), at_)


def triangle(name: str, value: Value, diagonal: int, *, lower: bool, fill: float | str = 0) -> Value:
    """A matrix of the last two dimensions with zeros, or another number, beyond a diagonal."""
    beyond = sum(value.shape[-2:]) + abs(diagonal)

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        below = index[-2] - index[-1] + diagonal
        kept = below if lower else below * -1
        return scope.pool.guard(((kept, beyond),), scope.read(value, index), scope.pool.literal(fill, value.ctype))

    return Map(name, value.shape, value.element, (value,), at, triangle=(diagonal, lower))


def pieces(name: str, value: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    """A value in pieces along a dimension."""
    found, start = [], 0
    for at, size in enumerate(sizes):
        shape = tuple(size if each == dim else whole for each, whole in enumerate(value.shape))
        found.append(moved(f"{name}_{at}", value, shape, partial(_shifted, dim=dim, by=start)))
        start += size
    return tuple(found)


def _shifted(index: list[Index], dim: int, by: int) -> list[Index]:
    return _changed(index, dim, lambda each: each + by)


def joined(name: str, values: Sequence[Value], dim: int, shape: tuple[int, ...]) -> Value:
    """Values one after another along a dimension."""
    values = [each for each in values if each.numel or len(each.shape) == len(shape)]
    dim %= len(shape)

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        result: Expr | None = None
        start = shape[dim]
        for each in reversed(values):
            start -= each.shape[dim]
            if not each.numel:
                continue
            inner, size = list(index), each.shape[dim]
            inner[dim] = inner[dim] - start
            known = list(inner)
            known[dim] = scope.pool.known_inside(inner[dim], size)
            part = scope.read(each, known)
            result = part if result is None else scope.pool.guard(((inner[dim], size),), part, result)
        if result is None:
            raise Unplanned("aten.cat", "of nothing")
        return result

    return Map(name, shape, values[0].element, tuple(values), at)


def scanned_behind(name: str, values: Sequence[Value], dim: int, shape: tuple[int, ...]) -> Value | None:
    """A constant before a scan that does not change it, as a scan of the constant and the scan's operand; else None."""
    first, last = values[0], values[-1]
    if len(values) != 2 or not isinstance(last, Scan) or last.dim != dim % len(shape):
        return None
    if not isinstance(first, Map) or first.of or first.element is not last.element:
        return None
    pool = ExpressionPool()
    fill = first.at(Constants(pool), [Index()] * len(shape))
    if fill is not pool.literal({"sum": 0, "prod": 1}[last.operation], last.ctype):
        return None
    return Scan(name, shape, last.element, last.operation, joined(f"{name}_of", [first, last.source], dim, shape), last.dim)


@dataclass
class Constants:
    """A scope of values without operands."""

    pool: ExpressionPool

    def read(self, value: Value, index: Sequence[Index]) -> Expr:
        raise Unplanned(value.name, f"read at {index}")


def _changed(index: list[Index], dim: int, change: Callable[[Index], Index]) -> list[Index]:
    return [change(each) if at == dim else each for at, each in enumerate(index)]
