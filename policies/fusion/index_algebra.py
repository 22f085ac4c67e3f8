"""Integer arithmetic over loop variables, simplified by their ranges: how a view, a pad or a window reads its operand.

An index is a constant plus terms; a term is a coefficient times a variable, a quotient or a remainder. What a reshape takes
apart is put together again: `4*(i//4) + i%4` is `i`. Quotients and remainders are those of numbers that are not negative.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Var:
    """0 <= name < extent. `given`: its value was loaded, as an index into a table is."""

    name: str
    extent: int
    given: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Divided:
    """`of // by`, or with `rest` `of % by`."""

    of: "Index"
    by: int
    rest: bool = False

    def __str__(self) -> str:
        return f"({self.of}) {'%' if self.rest else '/'} {self.by}u"


Atom = Var | Divided


@dataclass(frozen=True)
class Index:
    """`constant` + the sum of coefficient * atom. Terms are sorted, so that equal indices are equal records."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0
    _hash: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.terms, self.constant)))

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: "Index | int") -> "Index":
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        return _sum([*self.terms, *other.terms], self.constant + other.constant)

    def __sub__(self, other: "Index | int") -> "Index":
        return self + (other * -1 if isinstance(other, Index) else -other)

    def __mul__(self, factor: int) -> "Index":
        return Index(tuple((atom, by * factor) for atom, by in self.terms) if factor else (), self.constant * factor)

    def __floordiv__(self, by: int) -> "Index":
        if by == 1:
            return self
        whole, part = self._parted(by)
        if part.low >= 0 and part.high < by:
            return whole
        divisor = math.gcd(by, *(factor for _, factor in part.terms))
        if divisor > 1:
            return whole + Index(tuple((atom, factor // divisor) for atom, factor in part.terms), part.constant // divisor) // (
                by // divisor
            )
        if isinstance(atom := _only(part), Divided):
            if not atom.rest:
                return whole + atom.of // (atom.by * by)
            if atom.by % by == 0:
                return whole + (atom.of // by) % (atom.by // by)
        if (blocks := part._blocks(by)) is not None:
            coarse, step, _ = blocks
            return whole + coarse // (by // step)
        return whole + Index(((Divided(part, by), 1),))

    def __mod__(self, by: int) -> "Index":
        if by == 1:
            return Index()
        _, part = self._parted(by)
        if part.low >= 0 and part.high < by:
            return part
        divisor = math.gcd(by, *(factor for _, factor in part.terms))
        if divisor > 1:
            inner = Index(tuple((atom, factor // divisor) for atom, factor in part.terms), part.constant // divisor)
            return (inner % (by // divisor)) * divisor + part.constant % divisor
        if isinstance(atom := _only(part), Divided) and atom.rest and atom.by % by == 0:
            return atom.of % by
        if (blocks := part._blocks(by)) is not None:
            coarse, step, fine = blocks
            return coarse % (by // step) * step + fine
        return Index(((Divided(part, by, rest=True), 1),))

    def _parted(self, by: int) -> "tuple[Index, Index]":
        """The quotient of the terms that `by` divides, and what is left. A constant below zero stays whole in the rest."""
        held = tuple((atom, factor // by) for atom, factor in self.terms if factor % by == 0)
        left = tuple((atom, factor) for atom, factor in self.terms if factor % by)
        return Index(held, self.constant // by), Index(left, self.constant % by)

    def _blocks(self, by: int) -> "tuple[Index, int, Index] | None":
        """(coarse, step, fine) with self = coarse * step + fine and fine from 0 to below step, which divides `by`."""
        for step in sorted({math.gcd(by, factor) for _, factor in self.terms} - {1}, reverse=True):
            fine = Index(tuple((atom, factor) for atom, factor in self.terms if factor % step), self.constant % step)
            if fine.low >= 0 and fine.high < step:
                coarse = tuple((atom, factor // step) for atom, factor in self.terms if factor % step == 0)
                return Index(coarse, self.constant // step), step, fine
        return None

    @cached_property
    def low(self) -> int:
        return self.constant + sum(min(factor * _most(atom), 0) for atom, factor in self.terms)

    @cached_property
    def high(self) -> int:
        return self.constant + sum(max(factor * _most(atom), 0) for atom, factor in self.terms)

    def replace(self, values: "Mapping[Var, Index]") -> "Index":
        """With other indices in the place of variables."""
        result = Index((), self.constant)
        for atom, factor in self.terms:
            match atom:
                case Var():
                    inner = values.get(atom, Index(((atom, 1),)))
                case Divided(of=of, by=by, rest=rest):
                    inside = of.replace(values)
                    inner = inside % by if rest else inside // by
            result = result + inner * factor
        return result

    def variables(self) -> frozenset[Var]:
        inner = (atom.of.variables() if isinstance(atom, Divided) else frozenset((atom,)) for atom, _ in self.terms)
        return frozenset().union(*inner)

    def __str__(self) -> str:
        """In C++, for unsigned numbers."""
        words = [_term(atom, factor) for atom, factor in self.terms]
        if self.constant or not words:
            words.append(f"{self.constant}u" if self.constant >= 0 else f"- {-self.constant}u")
        return " + ".join(words).replace("+ - ", "- ").removeprefix("- 0u")


def _term(atom: Atom, factor: int) -> str:
    text = str(atom) if isinstance(atom, Var) else f"({atom})"
    if factor < 0:
        return f"- {-factor}u * {text}"
    return text if factor == 1 else f"{factor}u * {text}"


def _most(atom: Atom) -> int:
    match atom:
        case Var(extent=extent):
            return extent - 1
        case Divided(of=of, by=by, rest=rest):
            return by - 1 if rest else of.high // by


def _sum(terms: Iterable[tuple[Atom, int]], constant: int) -> Index:
    found: dict[Atom, int] = {}
    for atom, factor in terms:
        found[atom] = found.get(atom, 0) + factor
    for atom in [each for each in found if isinstance(each, Divided) and each.rest]:
        if atom not in found or not isinstance(atom, Divided):
            continue
        quotient, factor = atom.of // atom.by, found[atom]
        whole_part = _only(quotient)
        if whole_part is not None and found.get(whole_part) == factor * atom.by:
            rest = [(each, by) for each, by in found.items() if each not in (atom, whole_part)]
            whole = atom.of * factor
            return _sum([*rest, *whole.terms], constant + whole.constant)
    for atom in [each for each in found if isinstance(each, Divided) and each.rest]:
        if atom not in found or not isinstance(atom, Divided):
            continue
        quotient, factor = atom.of // atom.by, found[atom]
        for other, by in found.items():  # x%a + a*((x//a) % b) is x % (a*b)
            if isinstance(other, Divided) and other.rest and by == factor * atom.by and other.of == quotient:
                rest = [(each, times) for each, times in found.items() if each not in (atom, other)]
                whole = (atom.of % (atom.by * other.by)) * factor
                return _sum([*rest, *whole.terms], constant + whole.constant)
    kept = sorted(((atom, factor) for atom, factor in found.items() if factor), key=lambda term: str(term[0]))
    return Index(tuple(kept), constant)


def _only(index: Index) -> Atom | None:
    """The atom that the index is."""
    return index.terms[0][0] if len(index.terms) == 1 and index.terms[0][1] == 1 and not index.constant else None


def of(variable: Var) -> Index:
    return Index(((variable, 1),)) if variable.extent > 1 or variable.given else Index()


def number(value: int) -> Index:
    return Index((), value)


def strides(shape: Sequence[int]) -> list[int]:
    """Of a row-major array, in elements."""
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


def flat(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Where an element of a row-major array lies."""
    total = Index()
    for each, stride in zip(index, strides(shape), strict=True):
        total = total + each * stride
    return total


def unflat(place: Index, shape: Sequence[int]) -> list[Index]:
    """The element of a row-major array that lies there."""
    found = []
    for at, (size, stride) in enumerate(zip(shape, strides(shape), strict=True)):
        quotient = place // stride
        found.append(Index() if size == 1 else quotient % size if at else quotient)
    return found
