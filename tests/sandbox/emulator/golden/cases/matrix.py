"""Cases of ldmatrix, stmatrix and movmatrix."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]


def matrix_family() -> Family:
    return Family("matrices", source("matrices.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for count in (1, 2, 4):
        for trans in (False, True):
            yield _case("ldmatrix", count, trans)
            yield _case("stmatrix", count, trans)
    yield Case("matrices/movmatrix", "movmatrix", _inputs(128), expected=_moved)


def _inputs(out_bytes: int) -> Any:
    def build(draw: Draw) -> Buffers:
        rows = np.argsort(draw.words(64), kind="stable")[:32].astype(np.int32)
        return raw(draw.bits(512, 16), rows, draw.bits(128, 32)), unwritten(out_bytes)

    return build


def _case(name: str, count: int, trans: bool) -> Case:
    load = name == "ldmatrix"

    def expected(given: Bytes, before: Bytes) -> Bytes:
        rows = given[1024:1152].view(np.int32)[: 8 * count].reshape(count, 8)
        if load:
            tiles = given[:1024].view(np.uint16).reshape(64, 8)[rows]
            return raw(_turned(tiles, trans))
        tiles = given[1152 : 1152 + 128 * count].view(np.uint16).reshape(count, 8, 8)
        shared = before.copy().view(np.uint16).reshape(64, 8)
        shared[rows] = _turned(tiles, trans)
        return raw(shared)

    kernel = f"{name}_x{count}{'_trans' if trans else ''}"
    return Case(f"matrices/{kernel}", kernel, _inputs(128 * count if load else 1024), expected=expected)


def _turned(tiles: Array, trans: bool) -> Array:
    """Lane l holds two elements of row l/4: a fragment of an 8x8 tile lies in lane order as the tile does row by row."""
    return tiles.transpose(0, 2, 1) if trans else tiles


def _moved(given: Bytes, _: Bytes) -> Bytes:
    return raw(given[1152:1280].view(np.uint16).reshape(8, 8).T)
