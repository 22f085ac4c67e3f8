"""Cases of bulk copies and bulk reductions, within a CTA and between the CTAs of a cluster."""

from collections.abc import Callable, Iterator

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.cases.tensor import bit_update, operands
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.lanes import width_of
from tests.sandbox.emulator.golden.sources import source

_BYTES = 512
_REDUCTIONS = {
    "add": "u32 s32 u64 f32 f64 f16 bf16",
    "min": "u32 s32 u64 s64 f16 bf16",
    "max": "u32 s32 u64 s64 f16 bf16",
    **dict.fromkeys(("inc", "dec"), "u32"),
    **dict.fromkeys(("and", "or", "xor"), "u32 u64"),
}
_SENT = {
    **dict.fromkeys(("min", "max"), "u32 s32"),
    **dict.fromkeys(("inc", "dec", "and", "or", "xor"), "u32"),
    "add": "u32 s32 u64",
}


def bulk_family() -> Family:
    return Family("bulk", source("bulk.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for size in (16, 256, 4096):
        yield _load(size)
        yield _store(size)
    for operation, kinds in _REDUCTIONS.items():
        for kind in kinds.split():
            yield _reduce(operation, kind)
    yield _send("send", "u32", lambda _, new: new)
    for operation, kinds in _SENT.items():
        for kind in kinds.split():
            yield _send(f"send_{operation}_{kind}", kind, bit_update(operation, kind))
    for ctas, mask in ((2, 0b11), (4, 0b1101)):
        yield _multicast(ctas, mask)


def _load(size: int) -> Case:
    def expected(given: Bytes, before: Bytes) -> Bytes:
        result = before.copy()
        result[16 : 16 + size] = given[32 : 32 + size]
        return result

    build = lambda draw: (raw(draw.bits(size // 8 + 8, 64)), unwritten(size + 32))  # noqa: E731
    return Case(f"bulk/load {size}", "load", build, block=(64, 1, 1), smem=size + 48, numbers=(size,), expected=expected)


def _store(size: int) -> Case:
    def expected(given: Bytes, before: Bytes) -> Bytes:
        result = before.copy()
        result[16 : 16 + size] = given
        return result

    build = lambda draw: (raw(draw.bits(size // 8, 64)), unwritten(size + 32))  # noqa: E731
    return Case(f"bulk/store {size}", "store", build, block=(64, 1, 1), smem=size + 48, numbers=(size,), expected=expected)


def _reduce(operation: str, kind: str) -> Case:
    size = width_of(kind) // 8
    update = bit_update(operation, kind)

    def build(draw: Draw) -> Buffers:
        before = unwritten(_BYTES + 32)
        before[16:-16] = raw(operands(draw, kind, _BYTES // size))
        return raw(operands(draw, kind, _BYTES // size)), before

    def expected(given: Bytes, before: Bytes) -> Bytes:
        result = before.copy()
        old = before[16:-16].view(f"u{size}")
        result[16:-16] = raw(exact.lanes(update, old, given.view(old.dtype), width=8 * size))
        return result

    name = f"reduce_{operation}_{kind}"
    return Case(f"bulk/{name}", name, build, block=(64, 1, 1), smem=_BYTES + 48, numbers=(_BYTES,), expected=expected)


def _send(name: str, kind: str, update: Callable[[int, int], int]) -> Case:
    size = width_of(kind) // 8

    def build(draw: Draw) -> Buffers:
        return raw(operands(draw, kind, 2 * _BYTES // size)), unwritten(2 * _BYTES)

    def expected(given: Bytes, _: Bytes) -> Bytes:
        new, old = given.view(f"u{size}").reshape(2, -1)
        return raw(new, exact.lanes(update, old, new, width=8 * size))

    shape, pair = (64, 1, 1), (2, 1, 1)
    return Case(f"bulk/{name}", name, build, pair, shape, pair, smem=_BYTES + 48, numbers=(_BYTES,), expected=expected)


def _multicast(ctas: int, mask: int) -> Case:
    def expected(given: Bytes, before: Bytes) -> Bytes:
        return raw(*(given if mask >> at & 1 else one for at, one in enumerate(np.split(before, ctas))))

    build = lambda draw: (raw(draw.bits(_BYTES // 8, 64)), unwritten(ctas * _BYTES))  # noqa: E731
    shape, cluster = (64, 1, 1), (ctas, 1, 1)
    name = f"bulk/multicast to {mask:04b} of {ctas}"
    return Case(name, "multicast", build, cluster, shape, cluster, smem=_BYTES + 48, numbers=(_BYTES, mask), expected=expected)
