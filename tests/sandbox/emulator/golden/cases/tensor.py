"""Cases of TMA through tensor maps: boxes inside, partly outside on every side, and wholly outside; every swizzle."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.boxes import ELEMENT_BYTES, box_bytes, elements, gather, tensor_bytes
from tests.sandbox.emulator.golden.case import UNWRITTEN, Buffers, Bytes, Case, Family, MapSpec, Swizzle, raw, unwritten
from tests.sandbox.emulator.golden.cases.integers import signed
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.exact import FORMATS, decode, encode
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
_BEHIND = 128
_SWIZZLES: tuple[Swizzle, ...] = (0, 32, 64, 128)
_FLAT = MapSpec("in", "f16", (70, 37), (144,), (32, 16))
_SPECS = (
    MapSpec("in", "f16", (100,), (), (64,)),
    _FLAT,
    MapSpec("in", "f16", (70, 11, 6), (144, 144 * 12), (32, 5, 3)),
    MapSpec("in", "f16", (40, 7, 5, 4), (80, 80 * 7, 80 * 40), (32, 3, 3, 2)),
    MapSpec("in", "f16", (40, 5, 4, 3, 3), (80, 400, 1600, 4800), (32, 2, 3, 2, 2)),
)


def tensor_family() -> Family:
    return Family("tensors", source("tensors.cu"), (*_loads(), *_stores(), *_reductions(), *_multicasts()))


def _starts(spec: MapSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Places of a box: inside, over the low and the high end of each dimension, over all at once, and far outside."""
    rank = len(spec.sizes)
    inside = tuple(min(1, size - box) for size, box in zip(spec.sizes, spec.box, strict=True))
    yield "inside", inside
    for at in range(rank):
        yield f"low{at}", (*inside[:at], -(spec.box[at] // 2) or -1, *inside[at + 1 :])
        yield f"high{at}", (*inside[:at], spec.sizes[at] - (spec.box[at] + 1) // 2, *inside[at + 1 :])
    yield "corner", tuple(size - (box + 1) // 2 for size, box in zip(spec.sizes, spec.box, strict=True))
    yield "low corner", tuple(-(box // 2) for box in spec.box)
    yield "outside", (*inside[:-1], spec.sizes[-1] + 3)


def _on_chunk(spec: MapSpec, start: tuple[int, ...]) -> tuple[int, ...]:
    """The place moved down to where rows of the box start on 16 bytes: elsewhere a copy is an illegal instruction (H200)."""
    chunk = 16 // ELEMENT_BYTES[spec.element]
    return (start[0] // chunk * chunk, *start[1:])


def _loads() -> Iterator[Case]:
    for spec in _SPECS:
        for name, start in _starts(spec):
            yield _load(spec, name, start)
    for swizzle in _SWIZZLES[1:]:
        for spec in _SPECS[1:]:
            swizzled = replace(spec, box=(swizzle // 2, *spec.box[1:]), swizzle=swizzle)
            for name, start in list(_starts(swizzled))[:1] + list(_starts(swizzled))[-3:-1]:
                yield _load(swizzled, name, start)
    tall = MapSpec("in", "bf16", (64, 80), (128,), (64, 64), swizzle=128, offset=256)
    yield _load(tall, "tall", (0, 8))
    for element in ("u8", "u16", "f32", "u64"):
        size = ELEMENT_BYTES[element]
        spec = MapSpec("in", element, (50, 20), (-(-50 * size // 16) * 16,), (32, 8))
        yield _load(spec, "typed", (-3, 15))
    wide = MapSpec("in", "f16", (300, 4), (608,), (256, 2))
    yield _load(wide, "wide", (50, 1))


def _load(spec: MapSpec, name: str, start: tuple[int, ...]) -> Case:
    size, start = box_bytes(spec), _on_chunk(spec, start)

    def build(draw: Draw) -> Buffers:
        return raw(draw.bits(-(-tensor_bytes(spec) // 8), 64)), unwritten(size + _BEHIND)

    def expected(given: Bytes, before: Bytes) -> Bytes:
        return gather(spec, start, given, before)

    numbers = (*start, *(0,) * (5 - len(start)), size)
    label = f"tensors/load {len(start)}d {spec.element} swizzle {spec.swizzle} {name}"
    smem = size + _BEHIND + 16
    return Case(
        label, f"load_{len(start)}d", build, block=(64, 1, 1), smem=smem, numbers=numbers, maps=(spec,), expected=expected
    )


def _stores() -> Iterator[Case]:
    flat = [replace(_FLAT, box=(swizzle // 2, 16), swizzle=swizzle) for swizzle in _SWIZZLES[1:]]
    for spec in (*_SPECS, *flat):
        given = _whole_chunks(replace(spec, of="out"))
        for name, start in _starts(given):
            if min(start) >= 0:  # a store that starts outside the tensor is an illegal instruction (H200)
                yield _give(given, name, start, "store", lambda _, new: new)


def _whole_chunks(spec: MapSpec) -> MapSpec:
    """The tensor with rows of whole 16 bytes: stores are clipped at such pieces, not at elements (H200)."""
    chunk = 16 // ELEMENT_BYTES[spec.element]
    return replace(spec, sizes=(-(-spec.sizes[0] // chunk) * chunk, *spec.sizes[1:]))


def _reductions() -> Iterator[Case]:
    for spec in _SPECS:
        given = _whole_chunks(replace(spec, of="out"))
        yield _give(given, "high corner", list(_starts(given))[-3][1], "reduce_add", _update("add", "f16"))
    for operation, kinds in (
        ("add", ("u32", "s32", "u64", "f16", "bf16", "f32")),
        *((side, ("u32", "s32", "u64", "s64", "f16", "bf16")) for side in ("min", "max")),
        *((side, ("u32",)) for side in ("inc", "dec")),
        *((join, ("u32", "u64")) for join in ("and", "or", "xor")),
    ):
        for kind in kinds:
            pitch = -(-20 * ELEMENT_BYTES[kind] // 16) * 16
            spec = _whole_chunks(MapSpec("out", kind, (20, 12), (pitch,), (16, 8)))  # type: ignore[arg-type]
            yield _give(spec, "corner", (9, 6), f"reduce_{operation}", _update(operation, kind))


def _update(operation: str, kind: str) -> Callable[[Array, Array], Array]:
    """old, new → result, on columns of bits."""
    return lambda old, new: exact.lanes(bit_update(operation, kind), old, new, width=8 * ELEMENT_BYTES[kind])


def bit_update(operation: str, kind: str) -> Callable[[int, int], int]:
    """old, new → result of a reduction, on the bits of one element."""
    if kind not in FORMATS:
        return _integer_update(operation, kind)
    form = FORMATS[kind]
    key = lambda bits: decode(bits, form).number  # noqa: E731
    return {
        "add": lambda old, new: encode(exact.add(decode(old, form), decode(new, form)), form),
        "min": lambda old, new: min(old, new, key=key),
        "max": lambda old, new: max(old, new, key=key),
    }[operation]


def _integer_update(operation: str, kind: str) -> Callable[[int, int], int]:
    width, sign = int(kind[1:]), kind[0] == "s"
    key = (lambda bits: signed(bits, width)) if sign else (lambda bits: bits)
    return {
        "add": lambda old, new: old + new & (1 << width) - 1,
        "min": lambda old, new: min(old, new, key=key),
        "max": lambda old, new: max(old, new, key=key),
        "inc": lambda old, new: 0 if old >= new else old + 1,
        "dec": lambda old, new: new if old == 0 or old > new else old - 1,
        "and": lambda old, new: old & new,
        "or": lambda old, new: old | new,
        "xor": lambda old, new: old ^ new,
    }[operation]


def operands(draw: Draw, kind: str, count: int) -> Array:
    """Bits without NaN: numbers for floats, half of them near each other for integers."""
    if kind in FORMATS:
        return draw.wide(count, kind, 5)
    return np.where(draw.below(count, 2) == 0, draw.bits(count, int(kind[1:])), draw.below(count, 50)).astype(
        f"u{int(kind[1:]) // 8}"
    )


def _give(spec: MapSpec, name: str, start: tuple[int, ...], kernel: str, update: Callable[[Array, Array], Array]) -> Case:
    size, total, start = box_bytes(spec), tensor_bytes(spec), _on_chunk(spec, start)
    reduces = kernel.startswith("reduce")

    def build(draw: Draw) -> Buffers:
        box = operands(draw, spec.element, size // ELEMENT_BYTES[spec.element])
        before = operands(draw, spec.element, total // ELEMENT_BYTES[spec.element])
        return raw(box), raw(before) if reduces else np.full(total, UNWRITTEN, np.uint8)

    def expected(given: Bytes, before: Bytes) -> Bytes:
        addresses, new = elements(spec, start, given)
        result = before.copy().view(new.dtype)
        at = addresses // new.itemsize
        result[at] = update(result[at], new)
        return raw(result)

    numbers = (*start, *(0,) * (5 - len(start)), size)
    label = f"tensors/{kernel} {len(start)}d {spec.element} swizzle {spec.swizzle} {name}"
    kernel = f"{kernel}_{len(start)}d"
    return Case(label, kernel, build, block=(64, 1, 1), smem=size, numbers=numbers, maps=(spec,), expected=expected)


def _multicasts() -> Iterator[Case]:
    for ctas, mask, issuer in ((2, 0b11, 0), (2, 0b11, 1), (2, 0b10, 0), (4, 0b1111, 2), (4, 0b1010, 0)):
        spec = replace(_FLAT, box=(64, 8), swizzle=128)
        size = box_bytes(spec)

        def build(draw: Draw, spec: MapSpec = spec, ctas: int = ctas) -> Buffers:
            return raw(draw.bits(tensor_bytes(spec) // 8, 64)), unwritten(ctas * (box_bytes(spec) + _BEHIND))

        def expected(given: Bytes, before: Bytes, mask: int = mask, spec: MapSpec = spec, ctas: int = ctas) -> Bytes:
            empty = np.split(before, ctas)
            return raw(*(gather(spec, (16, 33), given, one) if mask >> at & 1 else one for at, one in enumerate(empty)))

        yield Case(
            f"tensors/multicast to {mask:04b} of {ctas} from {issuer}",
            "multicast_2d",
            build,
            grid=(ctas, 1, 1),
            block=(64, 1, 1),
            cluster=(ctas, 1, 1),
            smem=size + _BEHIND + 16,
            numbers=(16, 33, 0, 0, 0, size, mask, issuer),
            maps=(spec,),
            expected=expected,
        )
