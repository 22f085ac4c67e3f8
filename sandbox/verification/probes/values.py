"""What wrong outputs hold instead, as a share of them: nothing, zero, twice the sum, another row's sum. Pure."""

from collections.abc import Iterator

import numpy as np

from cudal2_agent.contract.records.task import ElementType
from cudal2_agent.sandbox.verification.elements import decode_wide, encode
from cudal2_agent.sandbox.verification.probes.line_maps import span
from cudal2_agent.sandbox.verification.probes.wrong_outputs import lines_of

_NOTABLE = 0.02  # of the wrong outputs
_CLASSES = 3


def describe_values(
    got: np.ndarray, want: np.ndarray, *, poison: int | None, element: ElementType, corner: tuple[int, int] = (0, 0)
) -> list[str]:
    """Shape: got (rows, columns), bit patterns; want the exact sums. `poison`: what D held before.

    `corner`: the row and column of D where the arrays begin, both multiples of 256.
    """
    with np.errstate(invalid="ignore"):  # what was never written is NaN
        values, right = decode_wide(np, got, element), encode(np, want, element)
    wrong = (got != right) & ~((want == 0) & ((got & np.uint16(0x7FFF)) == 0))
    count = int(wrong.sum())
    if not count:
        return []
    left = wrong.copy()
    shares = []
    for words, found in _kinds(got, values, want, poison):
        hit = left & found
        if int(hit.sum()) >= _NOTABLE * count:
            share = int(hit.sum()) / count
            shares.append(f"{share:.0%} {words}{_where(hit, corner) if share < 1 else ''}")
            left &= ~hit
    return shares


def _where(hit: np.ndarray, corner: tuple[int, int]) -> str:
    """The rows and columns of some outputs, in words; empty where they are all, or too many classes to tell."""
    parts = []
    for name, axis, start in (("rows", 1, corner[0]), ("columns", 0, corner[1])):
        lines = lines_of(np.asarray(hit.any(axis=axis)))
        if lines.modulus is not None and len(lines.residues) <= _CLASSES:
            parts.append(f"{name} {', '.join(span(*each) for each in lines.residues)} of every {lines.modulus}")
        elif not lines.all:
            parts.append(f"{name} {span(lines.first + start, lines.last + start)}")
    return f" (in {', '.join(parts)})" if parts else ""


def _kinds(got: np.ndarray, values: np.ndarray, want: np.ndarray, poison: int | None) -> Iterator[tuple[str, np.ndarray]]:
    never = got == poison if poison is not None else np.zeros(got.shape, dtype=bool)
    yield "still hold what D held before the run: never written", never
    yield "are NaN", np.isnan(values)
    yield "are infinite", np.isinf(values)
    yield "are zero", values == 0
    yield "are twice the right sum: counted or accumulated twice", (values == 2 * want) & (want != 0)
    yield "are the right sum with the other sign", (values == -want) & (want != 0)
    whole = values == np.rint(values)
    yield "are no whole number, although all inputs are: not the sum of these inputs", ~whole & np.isfinite(values)
