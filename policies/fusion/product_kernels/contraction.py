"""Matrix products and convolutions as one kind of sum: D(batch, m, n) = the sum over k of A(batch, m, k) * B(batch, k, n).

The operands are index maps, so that a convolution needs no copy of its windows (implicit GEMM). A transposed convolution of
stride s is one product for each phase of its output, where the kernel's taps of that phase are the sum's terms: every
s / gcd(s, dilation)-th of them, and none in a phase that no tap reaches.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of, unflat
from cudal2_agent.policies.fusion.values import ProductValue, Scope, Unplanned, Value

_WIDEST = 8  # neighbours of one copy
_PLACES = 64  # of an image for which its matrix fills tiles
Operand = Callable[[Scope, Index, Index, Index], Expr]  # (scope, batch, m or n, k)


@dataclass(frozen=True)
class Contraction:
    """Sizes, and where elements of the operands and of the result are. `place(batch, m, n)`: in the result, with what must
    be inside for it to exist.

    `phases`: how many batches, from one that they divide, are of neighbouring elements of the result. `exists(batch, k)`: what
    must be inside for a term to be there; `existing`: the share of terms that are.
    """

    batches: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    place: Callable[[Index, Index, Index], tuple[Index, tuple[tuple[Index, int], ...]]]
    phases: int = 1
    exists: Callable[[Index, Index], tuple[tuple[Index, int], ...]] = lambda _batch, _k: ()
    existing: float = 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k

    def term(self, depth: int) -> Index:
        """A term by its step and its line in it, of which a step has `depth`."""
        return of(Var("step", -(-self.k // depth))) * depth + of(Var("line", depth))

    def limits(self, depth: int) -> tuple[list[tuple[Index, int]], bool]:
        """What must be inside for the terms of a step to be there, as far as all are there or none; and whether that is all."""
        known = self.exists(of(Var("batch", self.batches)), self.term(depth))
        wanted = [(index, size) for index, size in known if index.low < 0 or index.high >= size]
        together = [(index, size) for index, size in wanted if Var("line", depth) not in index.variables()]
        return together, len(together) == len(wanted)

    def tiles(self, m: int, n: int) -> int:
        """How many tiles of m x n there are."""
        return self.batches * -(-self.m // m) * -(-self.n // n)


def contraction(product: ProductValue, *, by_tap: bool = False) -> Contraction:
    """`by_tap`: the terms of a convolution are the channels of its first tap, then those of the next, so that neighbours among
    them are read at equal distances; else the taps of its first channel come first.

    Raises: Unplanned for a call that is none.
    """
    match product.call.call:
        case "mm" | "bmm":
            return _matrix(product)
        case "conv" if _of_single_places(product):
            return _by_image(product)
        case "conv" | "conv_transpose":
            return _convolution(product, by_tap=by_tap)
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


def _convolution(product: ProductValue, *, by_tap: bool) -> Contraction:
    """Of a batch of images: m counts the channels of the result within a group, n its images and places."""
    call, (value, weight), shape = product.call, product.operands, product.shape
    images, space, taps = shape[0], list(shape[2:]), list(weight.shape[2:])
    groups, transposed, rank = call.groups, call.call == "conv_transpose", len(taps)
    inner, outer = value.shape[1] // groups, shape[1] // groups
    phases = list(call.stride) if transposed else [1] * rank
    common = [math.gcd(*each) for each in zip(call.stride, call.dilation, strict=True)]
    every = [by // shared if transposed else 1 for by, shared in zip(call.stride, common, strict=True)]  # taps of a phase
    cells = [-(-size // phase) for size, phase in zip(space, phases, strict=True)]
    steps = [-(-size // by) for size, by in zip(taps, every, strict=True)]

    def split(batch: Index) -> tuple[Index, list[Index]]:
        group, *phase = unflat(batch, (groups, *phases))
        return group, phase

    def term_of(k: Index) -> tuple[Index, list[Index]]:
        """The channel, and which of its phase's taps."""
        if not by_tap:
            channel, *terms = unflat(k, (inner, *steps))
            return channel, terms
        *terms, channel = unflat(k, (*steps, inner))
        return channel, terms

    def first_taps(phase: list[Index]) -> list[Index]:
        """The smallest t with t * dilation = phase + padding, modulo the stride."""
        turns = [pow(far // shared, -1, by) for far, shared, by in zip(call.dilation, common, every, strict=True)]
        sums = [(each + pad) // shared for each, pad, shared in zip(phase, call.padding, common, strict=True)]
        return [each * turn % by for each, turn, by in zip(sums, turns, every, strict=True)]

    def tap(batch: Index, terms: list[Index]) -> list[Index]:
        """The tap of the kernel that a term of the sum uses."""
        if not transposed:
            return terms
        firsts = first_taps(split(batch)[1])
        return [term * by + first for term, by, first in zip(terms, every, firsts, strict=True)]

    def reached(batch: Index) -> tuple[tuple[Index, int], ...]:
        """What must be inside for a tap to reach the phase."""
        phase = split(batch)[1]
        rests = ((each + pad) % shared for each, pad, shared in zip(phase, call.padding, common, strict=True))
        return tuple((rest, 1) for rest in rests) if transposed else ()

    def exists(batch: Index, k: Index) -> tuple[tuple[Index, int], ...]:
        return (*reached(batch), *zip(tap(batch, term_of(k)[1]), taps, strict=True))

    def a(scope: Scope, batch: Index, row: Index, k: Index) -> Expr:
        channel, terms = term_of(k)
        group, _ = split(batch)
        places = tap(batch, terms)
        own = group * inner + channel, row
        index = [*own, *places] if transposed else [group * outer + row, channel, *places]
        read = _inside(scope, weight, index, [0, 0, *taps])
        return scope.pool.guard(reached(batch), read, scope.pool.literal(0, weight.ctype))

    def b(scope: Scope, batch: Index, column: Index, k: Index) -> Expr:
        channel, terms = term_of(k)
        image, *cell = unflat(column, (images, *cells))
        group, phase = split(batch)
        places = list[Index]()
        for dim, (by, far, pad) in enumerate(zip(call.stride, call.dilation, call.padding, strict=True)):
            if transposed:
                whole, first = phase[dim] + pad, first_taps(phase)[dim]
                back = (first * far - whole % by + (by - 1)) // by + terms[dim] * (far // common[dim])
                places.append(cell[dim] + whole // by - back)
            else:
                places.append(cell[dim] * by + terms[dim] * far - pad)
        return _inside(scope, value, [image, group * inner + channel, *places], [0, 0, *value.shape[2:]])

    def place(batch: Index, row: Index, column: Index) -> tuple[Index, tuple[tuple[Index, int], ...]]:
        image, *cell = unflat(column, (images, *cells))
        group, phase = split(batch)
        at = [each * by + shift for each, by, shift in zip(cell, phases, phase, strict=True)]
        return flat([image, group * outer + row, *at], shape), tuple(zip(at, space, strict=True))

    count, terms = math.prod(phases), inner * math.prod(steps)
    existing = inner * math.prod(taps) / (count * terms)
    return Contraction(groups * count, outer, images * math.prod(cells), terms, a, b, place, count, exists, existing)


def _inside(scope: Scope, value: Value, index: Sequence[Index], sizes: Sequence[int]) -> Expr:
    """An element, or zero where an index is outside of a size that is not 0."""
    made = scope.pool
    guards = tuple((each, size) for each, size in zip(index, sizes, strict=True) if size)
    known = [made.known_inside(each, size) if size else each for each, size in zip(index, sizes, strict=True)]
    read = scope.read(value, known)
    return made.guard(guards, read, made.literal(0, read.ctype))
