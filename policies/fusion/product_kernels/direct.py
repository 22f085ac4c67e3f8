"""Products that tiles would waste: those with a vector are reductions, and depthwise convolutions are sums over a window.

Both are computed by kernels that compute what is around them as well.
"""

import math
from collections.abc import Callable, Sequence

from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, number, unflat
from cudal2_agent.policies.fusion.norms import reduced
from cudal2_agent.policies.fusion.values import Map, ProductValue, Scope, Value
from cudal2_agent.policies.fusion.views import reshaped

_MOST_TAPS = 64  # of a window that is written out


def direct(product: ProductValue) -> Value | None:
    """The product as other values; None where tiles, or a library, are the better way."""
    call, (left, right) = product.call, product.operands
    match call.call:
        case "mm" | "bmm" if 1 in product.shape[-2:]:
            return _with_vector(product)
        case "conv" if call.groups == left.shape[1] > 1 and math.prod(right.shape[2:]) <= _MOST_TAPS:
            return _depthwise(product)
    return None


def multiplied(
    name: str,
    shape: tuple[int, ...],
    value: Value,
    operands: tuple[Value, ...],
    factors: Callable[[Scope, Sequence[Index]], list[Expr]],
) -> Value:
    """The sums along the last dimension of the products of two numbers. `value`: whose type the sums have."""

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        return scope.pool.call("({0} * {1})", value.ctype, *factors(scope, index))

    return reduced(name, Map(f"{name}_terms", shape, value.element, operands, at), "sum", (len(shape) - 1,))


def _with_vector(product: ProductValue) -> Value:
    left, right = product.operands
    *outer, rows, columns = product.shape

    def factors(scope: Scope, index: Sequence[Index]) -> list[Expr]:
        *batch, place, k = index
        row, column = (place, Index()) if columns == 1 else (Index(), place)
        return [scope.read(left, [*batch, row, k]), scope.read(right, [*batch, k, column])]

    sums = multiplied(f"{product.name}_sums", (*outer, max(rows, columns), left.shape[-1]), product, (left, right), factors)
    return reshaped(product.name, sums, product.shape)


def _depthwise(product: ProductValue) -> Value:
    call, (x, weight) = product.call, product.operands
    each, taps = product.shape[1] // x.shape[1], weight.shape[2:]
    steps = list(zip(call.stride, call.dilation, call.padding, strict=True))

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        made, (image, channel, *place) = scope.pool, index
        total: Expr | None = None
        for term in range(math.prod(taps)):
            tap = unflat(number(term), taps)
            there = [at * by + one * far - pad for at, one, (by, far, pad) in zip(place, tap, steps, strict=True)]
            inside = tuple(zip(there, x.shape[2:], strict=True))
            known = [made.known_inside(at, size) for at, size in inside]
            read = made.guard(inside, scope.read(x, [image, channel // each, *known]), made.literal(0, x.ctype))
            factor = scope.read(weight, [channel, Index(), *tap])
            text = "({0} * {1})" if total is None else "({0} * {1} + {2})"
            total = made.call(text, product.ctype, read, factor, *(() if total is None else (total,)))
        assert total is not None
        return total

    cost = 2 * math.prod(taps)
    repeats = math.prod(max(tap / by, 1) for tap, (by, _, _) in zip(taps, steps, strict=True))
    return Map(product.name, product.shape, product.element, (x, weight), at, repeats=repeats, cost=cost)
