"""Cases of ld and st in every width and vector, with sign extension, hints and predicates."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import UNWRITTEN, Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
_THREADS = 128
_LOADS = "u8_16 s8_16 u8_32 s8_32 s8_64 b8_32 u16_16 b16_16 u16_32 s16_32 s16_64 u32_32 u32_64 s32_64 b64_64"
_VECTORS = "v2_u8 v4_s8 v2_s16 v4_u16 v2_b32 v4_u32 v2_b64 nc_v4 ca_v4 cg_v4 cs_v4 lu_v4"
# Where a store writes, in bytes of its 32, and from which bytes of the thread's eight they come.
_STORES: dict[str, tuple[int, tuple[int, ...]]] = {
    "u8": (3, (0,)),
    "b16": (2, (2, 3)),
    "u32": (4, (0, 1, 2, 3)),
    "b64": (8, tuple(range(8))),
    "v2_u8": (2, (0, 4)),
    "v4_b8": (4, (0, 4, 4, 0)),
    "v2_b16": (4, (2, 3, 0, 1)),
    "v4_b16": (8, (2, 3, 0, 1, 0, 1, 2, 3)),
    "v2_b32": (8, (4, 5, 6, 7, 0, 1, 2, 3)),
    "v4_b32": (16, (4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)),
    "v2_b64": (16, (*range(8), *range(8))),
    "generic": (28, (4, 5, 6, 7)),
    "release": (0, (0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7)),
    "hints": (0, (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7)),
}


def memory_family() -> Family:
    return Family("memory", source("memory.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for name in _LOADS.split():
        yield _case(f"ld_{name}", 16, _loaded(*name.split("_")), offset=8 if name.startswith("b64") else 4)
    for name in _VECTORS.split():
        yield _case(f"ld_{name}", 32, _loaded_vector(*name.split("_")))
    for name in ("nc_u32", "cv_u32"):
        yield _case(f"ld_{name}", 32, _loaded_word)
    yield _case("ld_kinds", 24, _kinds)
    yield _case("ld_const_local", 4, _tables)
    for name, (start, bytes_in) in _STORES.items():
        yield _case(f"st_{name}", 32, _stored(start, bytes_in))
    yield _case("st_predicated", 32, _predicated)


def _case(kernel: str, out_bytes: int, expected: Callable[[Bytes], Array], *, offset: int = 0) -> Case:
    def build(draw: Draw) -> Buffers:
        return raw(draw.bits(_THREADS * 2, 64)), unwritten(_THREADS * out_bytes)

    block = (_THREADS, 1, 1)
    numbers = (offset,) if offset else ()
    if offset:
        return Case(
            f"memory/{kernel}",
            kernel,
            build,
            block=block,
            numbers=numbers,
            expected=lambda given, _: raw(expected(given[offset:])),
        )
    return Case(f"memory/{kernel}", kernel, build, block=block, expected=lambda given, _: raw(expected(given)))


def _loaded(kind: str, register: str) -> Callable[[Bytes], Array]:
    size, width = int(kind[1:]) // 8, int(register)

    def expected(given: Bytes) -> Array:
        padded = np.concatenate([given, np.zeros(16, np.uint8)])[: 16 * _THREADS].reshape(_THREADS, 16)
        value = np.ascontiguousarray(padded[:, :size]).view(f"{'i' if kind[0] == 's' else 'u'}{size}").ravel()
        extended = value.astype(np.int64 if kind[0] == "s" else np.uint64).view(np.uint64)
        return np.repeat(extended & np.uint64((1 << width) - 1), 2)

    return expected


def _loaded_vector(first: str, second: str) -> Callable[[Bytes], Array]:
    count, kind = (int(first[1:]), second) if first[0] == "v" else (4, "u32")
    size = int(kind[1:]) // 8

    def expected(given: Bytes) -> Array:
        value = np.ascontiguousarray(given.reshape(_THREADS, 16)[:, : count * size])
        value = value.view(f"{'i' if kind[0] == 's' else 'u'}{size}")
        result = np.zeros((_THREADS, 4), np.uint64)
        result[:, :count] = value.astype(np.int64 if kind[0] == "s" else np.uint64).view(np.uint64)
        return result & np.uint64(0xFFFFFFFF if size < 8 else 0xFFFFFFFFFFFFFFFF)

    return expected


def _loaded_word(given: Bytes) -> Array:
    result = np.zeros((_THREADS, 4), np.uint64)
    result[:, 0], result[:, 1] = given.view(np.uint32)[::4], 7
    return result


def _kinds(given: Bytes) -> Array:
    words, threads = given.view(np.uint32).reshape(_THREADS, 4), np.arange(_THREADS)
    taken = np.where(threads > 50, words[:, 0], 99), np.where(threads > 50, 98, words[:, 1])
    return np.column_stack([words, *taken]).astype(np.uint32)


def _tables(given: Bytes) -> Array:
    table, sums = (3, 1, 4, 1, 5, 9, 2, 6), []
    for row in given.view(np.uint32).reshape(_THREADS, 4).tolist():
        kept = [1000 * at for at in range(16)]
        for word in row:
            kept[word & 15] += word >> 8
        sums.append(sum(kept[word >> 4 & 15] + table[word & 7] for word in row) & 0xFFFFFFFF)
    return np.array(sums, np.uint32)


def _stored(start: int, bytes_in: tuple[int, ...]) -> Callable[[Bytes], Array]:
    def expected(given: Bytes) -> Array:
        result = np.full((_THREADS, 32), UNWRITTEN, np.uint8)
        result[:, start : start + len(bytes_in)] = given[: 8 * _THREADS].reshape(_THREADS, 8)[:, bytes_in]
        return result

    return expected


def _predicated(given: Bytes) -> Array:
    a, b = given[: 8 * _THREADS].view(np.uint32).reshape(_THREADS, 2).T
    result = np.full((_THREADS, 32), UNWRITTEN, np.uint8).view(np.uint32)
    result[a < b, 0] = a[a < b]
    result[a >= b, 1] = b[a >= b]
    return result
