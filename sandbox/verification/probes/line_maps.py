"""Which line stands where another belongs, in words: `8-15 hold 0-7, in every 64`."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

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
