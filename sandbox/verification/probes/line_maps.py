"""Which line stands where another belongs, in words: `8-15 hold 0-7, in every 64`.

And what wrong outputs hold instead, as a share of them: nothing, zero, twice the sum, another row's sum.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cudal2_agent.contract.records.task import ElementType
from cudal2_agent.sandbox.verification.elements import decode_wide, encode
from cudal2_agent.sandbox.verification.probes.wrong_outputs import lines_of

PERIODS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_GROUPS = 8  # in one sentence
_EXAMPLES = 4
_AGREED = 0.9  # of the outputs of a line that must agree on its source


def agreed_sources(wanted: np.ndarray, found: np.ndarray) -> dict[int, int]:
    """The source of each wanted line on which its outputs agree; lines whose outputs differ are left out.

    Shape: both (outputs,), the line that an output should be made of and the line it is made of.
    """
    sources: dict[int, int] = {}
    for line in np.unique(wanted):
        source, count = Counter(found[wanted == line].tolist()).most_common(1)[0]
        if count >= _AGREED * int((wanted == line).sum()):
            sources[int(line)] = int(source)
    return sources


def describe_map(sources: dict[int, int]) -> tuple[str, bool]:
    """The lines that differ from their sources, and whether that is all of the map; empty where no line differs."""
    lines = np.array(sorted(sources), dtype=np.int64)
    steps = np.array([sources[int(line)] for line in lines], dtype=np.int64) - lines
    if not len(lines) or not steps.any():
        return "", True
    by_range = _ranges(lines, steps)
    if len(by_range) == 1:
        return _said(by_range), True
    for period in PERIODS:
        folded = _folded(lines, steps, period)
        if folded is not None and (groups := _ranges(*folded)) and len(groups) <= _GROUPS:
            return f"{_said(groups)}, in every {period}", True
    if len(by_range) <= _GROUPS:
        return _said(by_range), True
    return f"{_said(by_range[:_EXAMPLES])}, and so on ({int((steps != 0).sum())} of {len(lines)} in all)", False


def _folded(lines: np.ndarray, steps: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray] | None:
    """One period of a map that repeats; None where it does not, or where fewer than two periods show it."""
    residues = lines % period
    if len(np.unique(lines // period)) < 2:
        return None
    of: dict[int, int] = {}
    for residue, step in zip(residues.tolist(), steps.tolist(), strict=True):
        if of.setdefault(residue, step) != step:
            return None
    keys = sorted(of)
    return np.array(keys), np.array([of[key] for key in keys])


Group = tuple[int, int, int]  # first and last line, and how far away their sources are


def _ranges(lines: np.ndarray, steps: np.ndarray) -> list[Group]:
    """Runs of known lines with one step that is not zero. Lines that were not probed between two of a run count to it."""
    groups: list[Group] = []
    open_step: int | None = None
    for line, step in zip(lines.tolist(), steps.tolist(), strict=True):
        if step and step == open_step:
            first, _, _ = groups[-1]
            groups[-1] = (first, line, step)
        elif step:
            groups.append((line, line, step))
        open_step = step or None
    return groups


def _said(groups: Sequence[Group]) -> str:
    return ", ".join(f"{span(first, last)} hold {span(first + step, last + step)}" for first, last, step in groups)


def span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


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
