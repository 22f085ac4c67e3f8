"""Matrix products and convolutions as one kind of sum: D(batch, m, n) = the sum over k of A(batch, m, k) * B(batch, k, n).

The operands are index maps, so that a convolution needs no copy of its windows (implicit GEMM). A transposed convolution of
stride s is one product for each phase of its output, where the kernel's taps of that phase are the sum's terms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, flat, unflat
from cudal2_agent.policies.fusion.values import ProductValue, Scope, Unplanned, Value

_WIDEST = 8  # neighbours of one copy
_PLACES = 64  # of an image for which its matrix fills tiles
Operand = Callable[[Scope, Index, Index, Index], Expr]  # (scope, batch, m or n, k)


@dataclass(frozen=True)
class Contraction:
    """Sizes, and where elements of the operands and of the result are. `place(batch, m, n)`: in the result, with what must
    be inside for it to exist.
    """

    batches: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    place: Callable[[Index, Index, Index], tuple[Index, tuple[tuple[Index, int], ...]]]

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k

    def tiles(self, m: int, n: int) -> int:
        """How many tiles of m x n there are."""
        return self.batches * -(-self.m // m) * -(-self.n // n)


def contraction(product: ProductValue) -> Contraction:
    """Raises: Unplanned for a call that is none."""
    match product.call.call:
        case "mm" | "bmm":
            return _matrix(product)
        case "conv" if _of_single_places(product):
            return _by_image(product)
        case "conv" | "conv_transpose":
            return _convolution(product)
    raise Unplanned(product.call.call)


def _matrix(product: ProductValue) -> Contraction:
    left, right = product.operands
    *outer, m, k = left.shape
    n = right.shape[-1]

    def a(scope: Scope, batch: Index, row: Index, inner: Index) -> Expr:
        return scope.read(left, [*([batch] if outer else []), row, inner])

    def b(scope: Scope, batch: Index, column: Index, inner: Index) -> Expr:
        return scope.read(right, [*([batch] if outer else []), inner, column])

    return Contraction(math.prod(outer), m, n, k, a, b, lambda batch, row, column: (batch * (m * n) + row * n + column, ()))


def _of_single_places(product: ProductValue) -> bool:
    """Whether each place of a convolution's result is made of the same place of its operand alone, and lines are whole."""
    call, (value, weight) = product.call, product.operands
    alone = math.prod(weight.shape[2:]) == 1 and set(call.stride) == {1} and not any(call.padding) and call.groups == 1
    places = math.prod(value.shape[2:])
    return alone and places >= _PLACES and places % _WIDEST == 0


def _by_image(product: ProductValue) -> Contraction:
    """The weight times the matrix of each image: its channels by its places."""
    value, weight = product.operands
    images, inner, *space = value.shape
    outer, places = weight.shape[0], math.prod(space)
    tap = [Index()] * len(space)

    def a(scope: Scope, batch: Index, row: Index, k: Index) -> Expr:  # noqa: ARG001 (all images have one weight)
        return scope.read(weight, [row, k, *tap])

    def b(scope: Scope, batch: Index, column: Index, k: Index) -> Expr:
        return scope.read(value, [batch, k, *unflat(column, space)])

    def place(batch: Index, row: Index, column: Index) -> tuple[Index, tuple[tuple[Index, int], ...]]:
        return batch * (outer * places) + row * places + column, ()

    return Contraction(images, outer, places, inner, a, b, place)


def _convolution(product: ProductValue) -> Contraction:
    """Of a batch of images: m counts the channels of the result within a group, n its images and places."""
    call, (value, weight), shape = product.call, product.operands, product.shape
    images, space, taps = shape[0], list(shape[2:]), list(weight.shape[2:])
    groups, transposed = call.groups, call.call == "conv_transpose"
    inner, outer = value.shape[1] // groups, shape[1] // groups
    phases = _phases(product) if transposed else [1] * len(space)
    cells = [-(-size // phase) for size, phase in zip(space, phases, strict=True)]
    steps = [-(-size // phase) for size, phase in zip(taps, phases, strict=True)]
    rank = len(space)

    def split(batch: Index) -> tuple[Index, list[Index]]:
        group, *phase = unflat(batch, (groups, *phases))
        return group, phase

    def tap(batch: Index, terms: list[Index]) -> list[Index]:
        """The tap of the kernel that a term of the sum uses."""
        if not transposed:
            return terms
        _, phase = split(batch)
        rests = [(each + pad) % by for each, pad, by in zip(phase, call.padding, phases, strict=True)]
        return [term * by + rest for term, by, rest in zip(terms, phases, rests, strict=True)]

    def a(scope: Scope, batch: Index, row: Index, k: Index) -> Expr:
        channel, *terms = unflat(k, (inner, *steps))
        group, _ = split(batch)
        places = tap(batch, terms)
        own = group * inner + channel, row
        index = [*own, *places] if transposed else [group * outer + row, channel, *places]
        return _inside(scope, weight, index, [0, 0, *taps])

    def b(scope: Scope, batch: Index, column: Index, k: Index) -> Expr:
        channel, *terms = unflat(k, (inner, *steps))
        image, *cell = unflat(column, (images, *cells))
        group, phase = split(batch)
        guards, places = list[tuple[Index, int]](), list[Index]()
        for dim in range(rank):
            if not transposed:
                places.append(cell[dim] * call.stride[dim] + terms[dim] * call.dilation[dim] - call.padding[dim])
            elif call.dilation[dim] == 1:
                places.append(cell[dim] + (phase[dim] + call.padding[dim]) // phases[dim] - terms[dim])
            else:
                away = cell[dim] + call.padding[dim] - terms[dim] * call.dilation[dim]
                known = scope.pool.known_inside(away, value.shape[2 + dim] * call.stride[dim])
                guards += [(away, value.shape[2 + dim] * call.stride[dim]), (known % call.stride[dim], 1)]
                places.append(known // call.stride[dim])
        index = [image, group * inner + channel, *places]
        read = _inside(scope, value, index, [0, 0, *value.shape[2:]])
        for guard in reversed(guards):
            read = scope.pool.guard((guard,), read, scope.pool.literal(0, value.ctype))
        return read

    def place(batch: Index, row: Index, column: Index) -> tuple[Index, tuple[tuple[Index, int], ...]]:
        image, *cell = unflat(column, (images, *cells))
        group, phase = split(batch)
        at = [each * by + shift for each, by, shift in zip(cell, phases, phase, strict=True)]
        return flat([image, group * outer + row, *at], shape), tuple(zip(at, space, strict=True))

    return Contraction(groups * math.prod(phases), outer, images * math.prod(cells), inner * math.prod(steps), a, b, place)


def _phases(product: ProductValue) -> list[int]:
    """By dimension, in how many phases the result of a transposed convolution is computed; 1 where taps are dilated."""
    call = product.call
    return [stride if dilation == 1 else 1 for stride, dilation in zip(call.stride, call.dilation, strict=True)]


def _inside(scope: Scope, value: Value, index: Sequence[Index], sizes: Sequence[int]) -> Expr:
    """An element, or zero where an index is outside of a size that is not 0."""
    made = scope.pool
    guards = tuple((each, size) for each, size in zip(index, sizes, strict=True) if size)
    known = [made.known_inside(each, size) if size else each for each, size in zip(index, sizes, strict=True)]
    read = scope.read(value, known)
    return made.guard(guards, read, made.literal(0, read.ctype))
