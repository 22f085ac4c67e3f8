"""Cases of shfl, vote, match, redux, activemask and elect."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
_ROWS = 32
_LANES = np.arange(32)
_REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "add": lambda a: a.astype(np.int64).sum(),
    "min": lambda a: a.min(),
    "max": lambda a: a.max(),
    "and": lambda a: np.bitwise_and.reduce(a),
    "or": lambda a: np.bitwise_or.reduce(a),
    "xor": lambda a: np.bitwise_xor.reduce(a),
}


def warp_family() -> Family:
    return Family("warp", source("warp.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        yield _rows(f"shfl_{mode}", _shuffle_inputs, _shuffled(mode))
    yield _rows("shfl_halves", _any_words, _parities)
    for name in ("vote_all", "vote_any", "vote_uni", "vote_ballot"):
        yield _rows(name, _vote_inputs, _voted(name))
    yield _rows("vote_halves", _any_words, _halves)
    yield _rows("match_any", _few_words, _matched)
    yield _rows("match_all", _few_words, _all_matched)
    for name, kind in (
        *((op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32")),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ):
        yield _rows(f"redux_{name}_{kind}", _any_words, _reduced(name, kind))
    active = np.where(np.arange(52) < 32, 0xFFFFFFFF, 0xFFFFF).astype(np.uint32)
    yield Case("warp/activemask", "activemask", _empty(208), block=(52, 1, 1), expected=lambda *_: raw(active))
    yield Case("warp/elect", "elect", _empty(512), expected=lambda *_: _elected())
    yield Case("warp/lane_masks", "lane_masks", _empty(7 * 64 * 4), block=(64, 1, 1), expected=lambda *_: _lane_masks())


def _rows(kernel: str, columns: Callable[[Draw], list[Array]], row: Callable[..., tuple[Array, Array]]) -> Case:
    """A case of rows of 32 lanes with three input words and two output words per lane."""

    def build(draw: Draw) -> Buffers:
        return raw(*columns(draw)), unwritten(_ROWS * 256)

    def expected(given: Bytes, _: Bytes) -> Bytes:
        words = given.view(np.uint32).reshape(3, _ROWS, 32)
        return raw(*(np.stack(row(*words[:, at])).astype(np.uint64).astype(np.uint32) for at in range(_ROWS)))

    return Case(f"warp/{kernel}", kernel, build, grid=(_ROWS, 1, 1), expected=expected)


def _empty(out_bytes: int) -> Callable[[Draw], Buffers]:
    return lambda _: (unwritten(16), unwritten(out_bytes))


def _any_words(draw: Draw) -> list[Array]:
    return [draw.bits(3 * _ROWS * 32, 32)]


def _few_words(draw: Draw) -> list[Array]:
    """Rows of one value, of few values, and of two columns that differ."""
    limits = np.repeat(np.arange(_ROWS) % 4 + 1, 32).astype(np.uint64)
    return [((draw.words(_ROWS * 32) >> np.uint64(20)) % limits).astype(np.uint32) for _ in range(3)]


def _vote_inputs(draw: Draw) -> list[Array]:
    """Thresholds of a row that hold for no lane, for all, and for some."""
    a = draw.bits(_ROWS * 32, 32) >> np.uint32(1)
    b = np.repeat(np.array([0, 0xFFFFFFFF, 1 << 30, 1 << 27] * (_ROWS // 4), np.uint32), 32)
    return [a, b, a]


def _shuffle_inputs(draw: Draw) -> list[Array]:
    """Offsets from 0 to 34, one for the row or one a lane, in segments of 32, 16, 8, 4 and 2 lanes with either clamp."""
    a = draw.bits(_ROWS * 32, 32)
    whole = np.repeat(draw.below(_ROWS, 35), 32)
    b = np.where(np.repeat(np.arange(_ROWS) % 2 == 0, 32), whole, draw.below(_ROWS * 32, 35)).astype(np.uint32)
    masks = (32 - (32 >> np.arange(_ROWS) % 5)) << 8
    clamps = np.where(np.arange(_ROWS) % 3 == 0, 0, 31)
    return [a, b, np.repeat(masks | clamps, 32).astype(np.uint32)]


def _shuffled(mode: str) -> Callable[..., tuple[Array, Array]]:
    def row(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        b, clamp, segment = (b & 31).astype(int), (c & 31).astype(int), (c >> 8 & 31).astype(int)
        most = (_LANES & segment) | (clamp & ~segment)
        least = _LANES & segment
        source, valid = {
            "up": lambda: (_LANES - b, _LANES - b >= most),
            "down": lambda: (_LANES + b, _LANES + b <= most),
            "bfly": lambda: (_LANES ^ b, (_LANES ^ b) <= most),
            "idx": lambda: (least | (b & ~segment), (least | (b & ~segment)) <= most),
        }[mode]()
        return a[np.where(valid, source, _LANES)], valid

    return row


def _parities(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    odd = _LANES & 1 == 1
    return a[np.where(odd, b & 30 | 1, _LANES ^ (b & 30)).astype(int)], c


def _voted(name: str) -> Callable[..., tuple[Array, Array]]:
    def vote(predicate: Array) -> Any:
        uniform = predicate.all() or not predicate.any()
        ballot = int((predicate.astype(np.uint64) << _LANES.astype(np.uint64)).sum())
        return {"vote_all": predicate.all(), "vote_any": predicate.any(), "vote_uni": uniform, "vote_ballot": ballot}[name]

    return lambda a, b, _: (np.full(32, vote(a < b), np.uint64), np.full(32, vote(a >= b), np.uint64))


def _halves(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    low = _LANES < 16
    bits = (a < b).astype(np.uint64) << _LANES.astype(np.uint64)
    return np.where(low, bits[:16].sum(), bits[16:].sum()), c


def _matched(a: Array, b: Array, _: Array) -> tuple[Array, Array]:
    both = b.astype(np.uint64) << np.uint64(32) | a
    weights = np.uint64(1) << _LANES.astype(np.uint64)
    return ((a[:, None] == a) * weights).sum(1), ((both[:, None] == both) * weights).sum(1)


def _all_matched(a: Array, _: Array, __: Array) -> tuple[Array, Array]:
    same = bool((a == a[0]).all())
    return np.full(32, 0xFFFFFFFF if same else 0), np.full(32, int(same))


def _reduced(name: str, kind: str) -> Callable[..., tuple[Array, Array]]:
    view = np.int32 if kind == "s32" else np.uint32

    def row(a: Array, b: Array, _: Array) -> tuple[Array, Array]:
        whole, part = (int(_REDUCTIONS[name](one.view(view))) & 0xFFFFFFFF for one in (a, b[8:]))
        return np.full(32, whole), np.where(_LANES >= 8, part, 0)

    return row


def _elected() -> Bytes:
    inside = _LANES >= 5
    return raw(*(one.astype(np.uint32) for one in (0 * _LANES, _LANES == 0, 5 * inside, _LANES == 5)))


def _lane_masks() -> Bytes:
    lane, warp = np.tile(_LANES, 2), np.repeat([0, 1], 32)
    bit = 1 << lane
    every = (1 << 32) - 1
    rows = (bit, 2 * bit - 1, bit - 1, every & ~(bit - 1), every & ~(2 * bit - 1), lane, warp)
    return raw(*(row.astype(np.int64).astype(np.uint32) for row in rows))
