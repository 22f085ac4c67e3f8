"""Sums over a product or a convolution without the product: what is linear is summed first, then multiplied.

A sum over the columns of A B is A times the sums of B's rows. A sum over all places of a convolution is the sum over its taps
of the weight times the sum of what the tap reads. Means, biases, scales and batch norms between the two are linear too.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, unflat
from cudal2_agent.policies.fusion.norms import reduced, with_operands
from cudal2_agent.policies.fusion.product_kernels.direct import multiplied
from cudal2_agent.policies.fusion.values import Linear, Map, ProductValue, Scope, Value
from cudal2_agent.policies.fusion.views import broadcast


def summed(name: str, value: Value, dims: Sequence[int]) -> Value | None:
    """The sums over dimensions, which the result lacks; None where the value is not linear in a product that has such sums."""
    match value:
        case ProductValue():
            return _product(name, value, tuple(dims))
        case Map(linear=linear) if linear:
            return _terms(name, value, linear, tuple(dims))
    return None


def _terms(name: str, value: Value, linear: Linear, dims: tuple[int, ...]) -> Value | None:
    """The sums of `factor * term`, where no factor differs along what is summed, and one term is a product's."""
    parts, scales, found = list[Value](), list[list[float | Value]](), False
    for at, (term, factor) in enumerate(linear):
        scale: list[float | Value] = [factor]
        if isinstance(factor, Value):
            if any(size > 1 for size in _sizes(factor, value, dims)):
                return None
            scale = [_along(f"{name}_factor{at}", factor, value, dims, ())]
        part = summed(f"{name}_{at}", term, dims) if term.shape == value.shape else None
        found = found or part is not None
        if part is None:
            sizes, missing = _sizes(term, value, dims), len(value.shape) - len(term.shape)
            scale.append(math.prod(value.shape[dim] for dim, size in zip(dims, sizes, strict=True) if size == 1))
            part = _along(
                f"{name}_{at}", term, value, dims, [dim - missing for dim, size in zip(dims, sizes, strict=True) if size > 1]
            )
        parts.append(part)
        scales.append([each for each in scale if each != 1])
    if not found:
        return None
    values = [each for scale in scales for each in scale if isinstance(each, Value)]

    def write(scope: Scope, operands: list[Expr]) -> Expr:
        made, ctype, factors = scope.pool, value.ctype, iter(operands[len(parts) :])
        terms = []
        for term, scale in zip(operands, scales, strict=False):
            for each in scale:
                by = next(factors) if isinstance(each, Value) else made.literal(each, ctype)
                term = made.call("({0} * {1})", ctype, term, by)
            terms.append(term)
        return reduce(partial(made.call, "({0} + {1})", ctype), terms)

    shape = tuple(size for dim, size in enumerate(value.shape) if dim not in dims)
    return with_operands(name, [*parts, *values], shape, value.element, write)


def _sizes(term: Value, value: Value, dims: Sequence[int]) -> list[int]:
    """Of a broadcast operand along dimensions of the result."""
    missing = len(value.shape) - len(term.shape)
    return [term.shape[dim - missing] if dim >= missing else 1 for dim in dims]


def _along(name: str, term: Value, value: Value, dims: Sequence[int], gone: Sequence[int]) -> Value:
    """A broadcast operand, summed over its dimensions `gone`, for each element that a sum over the value's `dims` has."""
    total = reduced(f"{name}_total", term, "sum", gone) if gone else term
    shape = tuple(size for dim, size in enumerate(value.shape) if dim not in dims)

    def at(scope: Scope, index: Sequence[Index]) -> Expr:
        kept = iter(index)
        place = broadcast(term, [Index() if dim in dims else next(kept) for dim in range(len(value.shape))])
        return scope.read(total, [each for dim, each in enumerate(place) if dim not in gone])

    return Map(f"{name}_along", shape, value.element, (total,), at)


def _product(name: str, value: ProductValue, dims: tuple[int, ...]) -> Value | None:
    call, rank = value.call.call, len(value.shape)
    if call in ("mm", "bmm") and dims == (rank - 1,):
        return _matrix(name, value)
    if call in ("conv", "conv_transpose") and dims == tuple(range(2, rank)):
        return _convolution(name, value)
    return None


def _wide(value: Value) -> Value:
    """Half-precision numbers in f32, as sums of them are kept."""
    if value.element not in (BufferElement.F16, BufferElement.BF16):
        return value
    return with_operands(f"{value.name}_wide", [value], value.shape, BufferElement.F32, lambda _, of: of[0])


def _matrix(name: str, value: ProductValue) -> Value:
    left, right = value.operands
    total = reduced(f"{name}_columns", _wide(right), "sum", (len(right.shape) - 1,))

    def factors(scope: Scope, index: Sequence[Index]) -> list[Expr]:
        return [scope.read(left, index), scope.read(total, [*index[:-2], index[-1]])]

    return multiplied(name, left.shape, value, (left, total), factors)


def _convolution(name: str, value: ProductValue) -> Value:
    """Shape: (images, channels). The sum of what a tap reads is over the input where the convolution is transposed, else over
    the places of the result; on the other side it may be outside.
    """
    call, (x, weight) = value.call, value.operands
    transposed, rank = call.call == "conv_transpose", len(x.shape)
    taps, count = weight.shape[2:], math.prod(weight.shape[2:])
    walked, limits = (x.shape, value.shape) if transposed else (value.shape, x.shape)
    steps = list(zip(call.stride, call.dilation, call.padding, strict=True))
    farthest = [
        (size - 1) * by + (tap - 1) * far - pad for size, tap, (by, far, pad) in zip(walked[2:], taps, steps, strict=True)
    ]
    whole = transposed and not any(call.padding) and all(far < size for far, size in zip(farthest, limits[2:], strict=True))
    if whole:  # every tap reads all of the input
        count, weight = 1, reduced(f"{name}_taps", _wide(weight), "sum", range(2, rank))
        sums: Value = reduced(f"{name}_sums", _wide(x), "sum", range(2, rank))
    else:

        def read(scope: Scope, index: Sequence[Index]) -> Expr:
            tap, place = unflat(index[2], taps), index[3:]
            other = [at * by + each * far - pad for at, each, (by, far, pad) in zip(place, tap, steps, strict=True)]
            inside = tuple(zip(other, limits[2:], strict=True))
            known = place if transposed else [scope.pool.known_inside(at, size) for at, size in inside]
            return scope.pool.guard(inside, scope.read(x, [*index[:2], *known]), scope.pool.literal(0, x.ctype))

        source = Map(f"{name}_read", (*x.shape[:2], count, *walked[2:]), _wide(x).element, (x,), read)
        sums = reduced(f"{name}_sums", source, "sum", range(3, rank + 1))
    inner, outer = x.shape[1] // call.groups, value.shape[1] // call.groups

    def factors(scope: Scope, index: Sequence[Index]) -> list[Expr]:
        image, channel, term = index
        which, tap = (term, []) if whole else (term // count, unflat(term % count, taps))
        own = channel // outer * inner + which
        place = [own, channel % outer] if transposed else [channel, which]
        return [scope.read(sums, [image, own, *([] if whole else [term % count])]), scope.read(weight, [*place, *tap])]

    return multiplied(name, (value.shape[0], value.shape[1], inner * count), value, (sums, weight), factors)
