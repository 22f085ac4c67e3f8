"""What wrong outputs hold instead, as a share of them: nothing, zero, twice the sum, another row's sum. Pure."""

from collections.abc import Iterator

import numpy as np

from contract.task import ElementType
from sandbox.verification.elements import decode_wide, encode

_NOTABLE = 0.02  # of the wrong outputs
_ALIKE = 0.9  # of a line's outputs that must equal those of another line


def describe_values(got: np.ndarray, want: np.ndarray, *, poison: int | None, element: ElementType) -> list[str]:
    """Shape: got (rows, columns), bit patterns; want the exact sums. `poison`: what D held before."""
    values, right = decode_wide(np, got, element), encode(np, want, element)
    wrong = (got != right) & ~((want == 0) & ((got & np.uint16(0x7FFF)) == 0))
    count = int(wrong.sum())
    if not count:
        return []
    left = wrong.copy()
    said = []
    for words, found in _kinds(got, values, want, poison):
        hit = left & found
        if int(hit.sum()) >= _NOTABLE * count:
            said.append(f"{int(hit.sum()) / count:.0%} {words}")
            left &= ~hit
    return said


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
