"""Cases of cp.async: sizes, zero fill, groups, and arrivals on an mbarrier."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import UNWRITTEN, Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
_THREADS = 128
_IGNORE_ABOVE = 5


def copy_family() -> Family:
    return Family("copies", source("copies.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for name in ("ca_4", "ca_8", "ca_16", "cg_16"):
        yield _case(name, int(name[3:]), _all(int(name[3:])))
    for name in ("ca_4_size", "ca_8_size", "ca_16_size", "cg_16_size"):
        yield _case(name, int(name.split("_")[1]), lambda words: words)
    for name in ("ca_4_ignore", "cg_16_ignore"):
        size = int(name.split("_")[1])
        yield _case(name, size, _unless_above(size))
    yield _case("cg_16_predicated", 16, lambda words: np.where(words > _IGNORE_ABOVE, 16, -1))
    block = (_THREADS, 1, 1)
    yield Case("copies/groups", "groups", _build(16, 12), block=block, expected=_grouped)
    for name in ("arrive_noinc", "arrive"):
        yield Case(f"copies/{name}", name, _build(16, 4), block=block, expected=_arrived)


def _all(size: int) -> Callable[[Array], Array]:
    return lambda words: np.full(len(words), size)


def _unless_above(size: int) -> Callable[[Array], Array]:
    return lambda words: np.where(words > _IGNORE_ABOVE, 0, size)


def _build(size: int, extra: int) -> Callable[[Draw], Buffers]:
    def build(draw: Draw) -> Buffers:
        return raw(draw.bits(256, 64), draw.below(_THREADS, size + 1).astype(np.uint32)), unwritten(2048 + _THREADS * extra)

    return build


def _case(name: str, size: int, copied: Callable[[Array], Array]) -> Case:
    """`copied`: bytes that are copied; the rest of `size` is zero; -1 where nothing is written."""

    def expected(given: Bytes, _: Bytes) -> Bytes:
        rows = given[:2048].reshape(_THREADS, 16).copy()
        counts = copied(given[2048:].view(np.uint32).astype(np.int64))[:, None]
        rows[np.arange(16) >= counts] = 0
        rows[np.broadcast_to(counts < 0, rows.shape)] = UNWRITTEN
        rows[:, size:] = UNWRITTEN
        return raw(rows)

    return Case(f"copies/{name}", name, _build(size, 0), block=(_THREADS, 1, 1), expected=expected)


def _grouped(given: Bytes, _: Bytes) -> Bytes:
    words = given[:2048].view(np.uint32).reshape(_THREADS, 4)
    tile = np.full((_THREADS, 16), UNWRITTEN, np.uint8).view(np.uint32)
    tile[:, :3] = words[:, [0, 2, 1]]
    return raw(tile, words[:, [0, 2, 1]])


def _arrived(given: Bytes, _: Bytes) -> Bytes:
    """Once the next phase is open, the previous parity no longer reads as complete: parity 1 is open."""
    return raw(given[:2048], np.zeros(_THREADS, np.uint32))
