"""Cases of mbarrier: results of its queries, and threads that synchronise through it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
# The expected result of each query in the script's order; pairs are parity 0 and parity 1.
_ANSWERS = {
    "arrivals": [(0, 1), 3, 0, (0, 1), 2, 1, 1, 1, (1, 0), 3, 0, 1, 1, 1, (0, 1)],
    "transactions": [0, (0, 1), 0, 1, (1, 0), 0, 0, 1, (0, 1), (0, 1), 1, (1, 0)],
    "early_bytes": [(0, 1), 0, 1, 1, (1, 0)],
    "drops": [4, 3, 0, 1, 1, (1, 0), 1, 1, (0, 1)],
    "limits": [(1 << 20) - 1, (0, 1), 0, 1, (1, 0), (0, 1), 1, 1, (1, 0)],
}


def mbarrier_family() -> Family:
    return Family("mbarriers", source("mbarriers.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for name, answers in _ANSWERS.items():
        words = np.array(
            [word for answer in answers for word in (answer if isinstance(answer, tuple) else (answer,))], np.uint32
        )
        yield Case(
            f"mbarriers/{name}", name, _empty(words.nbytes), block=(1, 1, 1), expected=lambda *_, words=words: raw(words)
        )
    yield Case("mbarriers/meetings", "meetings", _words(128, 512), block=(128, 1, 1), expected=_met)
    yield Case("mbarriers/hand_over", "hand_over", _words(320, 512), block=(128, 1, 1), expected=_handed_over)


def _empty(size: int) -> Any:
    return lambda _: (unwritten(16), unwritten(size))


def _words(count: int, out_bytes: int) -> Any:
    def build(draw: Draw) -> Buffers:
        return raw(draw.bits(count, 32)), unwritten(out_bytes)

    return build


def _met(given: Bytes, _: Bytes) -> Bytes:
    value = given.view(np.uint32).copy()
    for _phase in range(20):
        value = value * np.uint32(5) + np.roll(value, -1)
    return raw(value)


def _handed_over(given: Bytes, _: Bytes) -> Bytes:
    lanes, sums = np.arange(32), np.zeros((4, 32), np.uint32)
    for row in given.view(np.uint32).reshape(10, 32):
        for warp in (1, 2, 3):
            sums[warp] = sums[warp] * np.uint32(3) + row[(lanes + warp) & 31]
    return raw(sums)
