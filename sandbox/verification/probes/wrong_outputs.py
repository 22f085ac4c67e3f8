"""Which outputs are wrong, in terms of a GEMM: rows, columns, residue classes and tiles. Pure, over a mask of D."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cudal2_agent.contract.records.symptoms import Lines, WrongPlaces
from cudal2_agent.sandbox.verification.elements import Array

MODULI = (2, 4, 8, 16, 32, 64, 128, 256)
TILE_SIDES = (256, 128, 64, 32, 16, 8)
_CELL = 8
_WHOLE = 0.75  # of a tile's outputs: a wrong tile may have some that are right by chance
_SHOWN = 6


def wrong_places(xp: Any, wrong: Array) -> WrongPlaces:
    """Where a mask of D is true. Shape: wrong (M, N), bool, with a true element."""
    m, n = wrong.shape
    rows, columns = (np.asarray(_host(xp, wrong.any(axis=axis))) for axis in (1, 0))
    tile, bad = _tiles(_cells(xp, wrong))
    return WrongPlaces(
        wrong=int(wrong.sum()),
        outputs=m * n,
        rows=lines_of(rows),
        columns=lines_of(columns),
        tile=tile,
        wrong_tiles=int(bad.sum()),
        tiles=int(bad.size),
        first_tiles=tuple((int(row), int(column)) for row, column in np.argwhere(bad)[:_SHOWN]),
    )


def lines_of(hit: np.ndarray) -> Lines:
    """Which lines a mask selects. Shape: (lines,), with a true element."""
    at, size = np.flatnonzero(hit), len(hit)
    made = Lines(first=int(at[0]), last=int(at[-1]), count=len(at), of=size)
    for modulus in MODULI:
        if 2 * modulus > size:
            break
        residues = np.unique(at % modulus)
        if len(residues) < modulus and _regular(at, residues, modulus, size):
            return made.model_copy(update={"modulus": modulus, "residues": ranges(residues)})
    return made


def _regular(at: np.ndarray, residues: np.ndarray, modulus: int, size: int) -> bool:
    """Whether the lines of these classes are wrong in most periods, so that the classes tell more than a range does."""
    periods = len(np.unique(at // modulus))
    return periods >= 2 and len(at) >= _WHOLE * periods * len(residues) and at[-1] - at[0] + 1 > len(at) and size > modulus


def ranges(numbers: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Sorted distinct numbers as ranges (first, last)."""
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(numbers) - 1]])
    return tuple((int(numbers[first]), int(numbers[last])) for first, last in zip(firsts, lasts, strict=True))


def _cells(xp: Any, wrong: Array) -> np.ndarray:
    """Share of wrong outputs in each cell of 8 by 8, partial cells at the edges included. Shape: (cells, cells)."""
    m, n = wrong.shape
    high, across = -(-m // _CELL), -(-n // _CELL)
    padded = xp.zeros((high * _CELL, across * _CELL), dtype=xp.float32)
    present = xp.zeros_like(padded)
    padded[:m, :n], present[:m, :n] = wrong, 1
    counts, sizes = (each.reshape(high, _CELL, across, _CELL).sum(axis=(1, 3)) for each in (padded, present))
    return np.asarray(_host(xp, counts / sizes))


def _tiles(cells: np.ndarray) -> tuple[tuple[int, int] | None, np.ndarray]:
    """The largest tile that is wrong throughout or right throughout, and which tiles are wrong. Whole rows are no tile."""
    for rows, columns in _sizes():
        high, across = rows // _CELL, columns // _CELL
        if high >= len(cells) or across >= cells.shape[1]:  # rows, or columns, tell that
            continue
        least, most = (_over(cells, high, across, function) for function in (np.minimum, np.maximum))
        wrong = most > 0
        whole = wrong[: len(cells) // high, : cells.shape[1] // across].any()  # not only parts of tiles at the edges
        if bool((least[wrong] >= _WHOLE).all()) and not bool(wrong.all()) and bool(whole):
            return (rows, columns), wrong
    return None, np.zeros((0, 0), dtype=bool)


def _sizes() -> Iterator[tuple[int, int]]:
    """Tile sizes, the largest area first."""
    yield from sorted(((rows, columns) for rows in TILE_SIDES for columns in TILE_SIDES), key=lambda size: -size[0] * size[1])


def _over(cells: np.ndarray, high: int, across: int, function: np.ufunc) -> np.ndarray:
    """A function reduced over tiles of cells."""
    rows, columns = range(0, len(cells), high), range(0, cells.shape[1], across)
    reduced = function.reduceat(function.reduceat(cells, list(rows), axis=0), list(columns), axis=1)
    return np.asarray(reduced)


def _host(xp: Any, values: Array) -> Array:
    return values if xp is np else xp.asnumpy(values)
