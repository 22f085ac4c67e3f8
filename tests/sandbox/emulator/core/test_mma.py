"""ldmatrix, stmatrix, movmatrix and mma in the core, against the fragments of the PTX ISA."""

from typing import Any

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.core.fragments import (
    bits,
    blocks_of_a,
    blocks_of_b,
    blocks_of_sums,
    from_pairs,
    pairs,
    sums_of,
    values,
)
from tests.sandbox.emulator.ptx.small_ptx import module
from tests.sandbox.emulator.registers import run_statements

Array = np.ndarray[Any, Any]
_LANES = np.arange(32, dtype=np.uint32)
_ROWS = 64  # of 128 bytes, in shared memory
_TYPES = [("f32", "f16"), ("f32", "bf16"), ("f16", "f16")]


def vector(names: list[str]) -> str:
    return "{" + ", ".join(names) + "}"


def named(prefix: str, registers: list[Array]) -> dict[str, Array]:
    return {f"%{prefix}{index}": register for index, register in enumerate(registers)}


# ---- mma --------------------------------------------------------------------------------------------------------------------
def multiplied(shape: str, accumulator: str, element: str, a: Array, b: Array, c: Array) -> Array:
    """A, B, C as bits; D as values."""
    left, right, sums = (named(*each) for each in (("a", blocks_of_a(a)), ("b", blocks_of_b(b)), ("c", blocks_of_sums(c))))
    results = [f"%d{index}" for index in range(len(sums))]
    opcode = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{element}.{element}.{accumulator}"
    body = f"{opcode} {vector(results)}, {vector(list(left))}, {vector(list(right))}, {vector(list(sums))};"
    after = run_statements(body, {**left, **right, **sums}, results)
    assert not after.findings
    return sums_of([after.registers[name] for name in results], (16, 8), accumulator)


@pytest.mark.parametrize("shape", ["m16n8k16", "m16n8k8"])
@pytest.mark.parametrize(("accumulator", "element"), _TYPES)
def test_mma_is_exact_where_every_sum_is(shape: str, accumulator: str, element: str) -> None:
    draw = np.random.default_rng(5)
    depth = int(shape.removeprefix("m16n8k"))
    a, b = (bits(draw.integers(-8, 9, size), element) for size in ((16, depth), (depth, 8)))
    c = bits(draw.integers(-99, 100, (16, 8)), accumulator)
    expected = values(a, element) @ values(b, element) + values(c, accumulator)
    np.testing.assert_array_equal(multiplied(shape, accumulator, element, a, b, c), expected)


@pytest.mark.parametrize("shape", ["m16n8k16", "m16n8k8"])
@pytest.mark.parametrize(("accumulator", "element"), _TYPES)
def test_mma_rounds_once_or_once_a_term(shape: str, accumulator: str, element: str) -> None:
    draw = np.random.default_rng(6)
    depth = int(shape.removeprefix("m16n8k"))
    a, b = (bits(draw.standard_normal(size), element) for size in ((16, depth), (depth, 8)))
    c = bits(draw.standard_normal((16, 8)), accumulator)
    left, right, sums = values(a, element), values(b, element), values(c, accumulator)
    wrong = np.abs(multiplied(shape, accumulator, element, a, b, c) - (left @ right + sums))
    magnitude = np.abs(left) @ np.abs(right) + np.abs(sums)
    single = magnitude * 2.0**-24 * (depth + 1)
    allowed = single if accumulator == "f32" else single + np.abs(left @ right + sums) * 2.0**-11 + 2.0**-25
    assert (wrong <= allowed).all()


def test_f32_sums_are_fused_and_in_the_order_of_k() -> None:
    """2^24 + 1 - 2^24 depends on the order; (1 + 2^-10)^2 - 1 on whether the product is rounded."""
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    a[0, :3], b[:3, 0] = [2.0**12, 1, 2.0**12], [2.0**12, 1, -(2.0**12)]
    a[1, 5:8], b[5:8, 0] = [2.0**12, 2.0**12, 1], [2.0**12, -(2.0**12), 1]
    d = multiplied("m16n8k16", "f32", "f16", bits(a, "f16"), bits(b, "f16"), bits(np.zeros((16, 8)), "f32"))
    assert d[:2, 0].tolist() == [0, 1]
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    a[0, 0] = b[0, 0] = 1 + 2.0**-10
    d = multiplied("m16n8k16", "f32", "f16", bits(a, "f16"), bits(b, "f16"), bits(np.full((16, 8), -1.0), "f32"))
    assert d[0, 0] == 2.0**-9 + 2.0**-20


def test_half_sums_round_at_the_end_only() -> None:
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    a[0], b[:, 0] = 1, 2.0**-12
    c = np.ones((16, 8))
    d = multiplied("m16n8k16", "f16", "f16", bits(a, "f16"), bits(b, "f16"), bits(c, "f16"))
    assert d[0, 0] == 1 + 2.0**-8


def test_special_values_of_mma() -> None:
    """Infinities, NaN as the hardware's one, subnormal inputs and results, overflow of f16."""
    a, b, c = np.zeros((16, 16), np.uint16), np.zeros((16, 8), np.uint16), np.zeros((16, 8), np.uint32)
    one, infinity = 0x3C00, 0x7C00
    b[0, :] = one
    a[0, 0], a[1, 0], a[2, 0], a[3, 0] = infinity, 0xFE01, 0x0001, infinity
    c[3, :] = 0xFF800000
    d = multiplied("m16n8k16", "f32", "f16", a, b, c)
    assert np.isposinf(d[0]).all()
    assert (d[2] == 2.0**-24).all()
    assert not d[4:].any()
    left, right = named("a", blocks_of_a(a)), named("b", blocks_of_b(b))
    sums = named("c", blocks_of_sums(c))
    for accumulator, added, nan in (
        ("f32", sums, {0x7FFFFFFF}),
        ("f16", {"%c0": sums["%c0"], "%c1": sums["%c1"]}, {0x7FFF7FFF}),
    ):
        results = [f"%d{index}" for index in range(len(added))]
        opcode = f"mma.sync.aligned.m16n8k16.row.col.{accumulator}.f16.f16.{accumulator}"
        body = f"{opcode} {vector(results)}, {vector(list(left))}, {vector(list(right))}, {vector(list(added))};"
        after = run_statements(body, {**left, **right, **added}, results)
        assert set(after.registers["%d0"][4:8].tolist()) == nan
    big = np.full((16, 16), 255.0)
    d = multiplied("m16n8k16", "f16", "f16", bits(big, "f16"), bits(big[:, :8], "f16"), bits(np.zeros((16, 8)), "f16"))
    assert np.isposinf(d).all()


def test_results_may_be_the_operands_in_another_order() -> None:
    draw = np.random.default_rng(7)
    a, b = bits(draw.integers(-4, 5, (16, 16)), "f16"), bits(draw.integers(-4, 5, (16, 8)), "f16")
    c = bits(draw.integers(-9, 9, (16, 8)), "f32")
    registers = {**named("a", blocks_of_a(a)), **named("b", blocks_of_b(b)), **named("c", blocks_of_sums(c))}
    results = ["%c3", "%a0", "%b1", "%c0"]
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    body = f"{opcode} {vector(results)}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%c0, %c1, %c2, %c3}};"
    after = run_statements(body, registers, results)
    expected = values(a, "f16") @ values(b, "f16") + values(c, "f32")
    np.testing.assert_array_equal(sums_of([after.registers[name] for name in results], (16, 8), "f32"), expected)


def test_constants_as_operands_of_mma() -> None:
    a = bits(np.arange(256).reshape(16, 16) % 7, "f16")
    registers = named("a", blocks_of_a(a))
    ones = 0x3C003C00
    body = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0, _, %d2, %d3}, {%a0, %a1, %a2, %a3},"
        f" {{{ones}, {ones}}}, {{0f3F800000, 0f00000000, 0f3F800000, 0f40000000}};"
    )
    after = run_statements(body, registers, ["%d0", "%d2", "%d3"])
    row_sums = values(a, "f16").sum(axis=1)
    rows = np.arange(32) // 4
    np.testing.assert_array_equal(after.registers["%d0"].view(np.float32), row_sums[rows] + 1)
    np.testing.assert_array_equal(after.registers["%d3"].view(np.float32), row_sums[rows + 8] + 2)


# ---- ldmatrix, stmatrix, movmatrix ------------------------------------------------------------------------------------------
def addresses(draw: np.random.Generator) -> tuple[Array, Array]:
    """32 rows of 16 bytes that do not overlap: (row, chunk) in the tile, and offsets."""
    places = draw.permutation(_ROWS * 8)[:32]
    return places, (16 * places).astype(np.uint32)


def located(generic: bool) -> str:
    """Statements that make the address of the tile plus `%o` in %x0 or %y0."""
    if not generic:
        return "mov.u32 %x0, tile; add.u32 %x0, %x0, %o;"
    return "mov.u64 %y0, tile; cvta.shared.u64 %y0, %y0; cvt.u64.u32 %y1, %o; add.s64 %y0, %y0, %y1;"


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, transposed: bool, generic: bool, races: bool) -> None:
    draw = np.random.default_rng(count)
    tile = draw.integers(0, 65536, (_ROWS * 8, 8)).astype(np.uint16)
    places, offsets = addresses(draw)
    results = [f"%r{index}" for index in range(count)]
    form = f"x{count}{'.trans' if transposed else ''}{'' if generic else '.shared'}"
    address = "%y0" if generic else "%x0"
    body = f"{located(generic)} ldmatrix.sync.aligned.m8n8.{form}.b16 {vector(results)}, [{address}+-16];"
    after = run_statements(body, {"%o": offsets + np.uint32(16)}, results, tile, races=races)
    assert not after.findings
    for index, name in enumerate(results):
        matrix = tile[places[8 * index :][:8]]
        np.testing.assert_array_equal(after.registers[name], pairs(matrix.T if transposed else matrix))


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count: int, transposed: bool, generic: bool, races: bool) -> None:
    draw = np.random.default_rng(count)
    tile = draw.integers(0, 65536, (_ROWS * 8, 8)).astype(np.uint16)
    places, offsets = addresses(draw)
    registers = {f"%r{index}": draw.integers(0, 2**32, 32, dtype=np.uint32) for index in range(count)}
    form = f"x{count}{'.trans' if transposed else ''}{'' if generic else '.shared'}"
    body = (
        f"{located(generic)} stmatrix.sync.aligned.m8n8.{form}.b16 [{'%y0' if generic else '%x0'}], {vector(list(registers))};"
    )
    after = run_statements(body, {"%o": offsets, **registers}, [], tile, races=races)
    assert not after.findings
    expected = tile.copy()
    for index, register in enumerate(registers.values()):
        matrix = from_pairs(register)
        expected[places[8 * index :][:8]] = matrix.T if transposed else matrix
    np.testing.assert_array_equal(after.shared.view(np.uint16).reshape(tile.shape), expected)


def test_the_address_may_be_a_result() -> None:
    tile = np.arange(256, dtype=np.uint16)
    body = (
        "mov.u32 %r2, tile; mad.lo.u32 %r2, %o, 16, %r2; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r2];"
    )
    after = run_statements(body, {"%o": _LANES}, [f"%r{index}" for index in range(4)], tile)
    for index in range(4):
        np.testing.assert_array_equal(after.registers[f"%r{index}"], pairs(tile[64 * index :][:64].reshape(8, 8)))


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(
    ("opcode", "offset", "kind"),
    [
        ("ldmatrix", 8, "misaligned"),
        ("ldmatrix", 1 << 16, "shared-out-of-bounds"),
        ("ldmatrix", 512, "shared-out-of-bounds"),  # one row past the end
        ("ldmatrix", -1024, "shared-out-of-bounds"),  # reserved by the system
        ("ldmatrix", 1 << 24, "shared-out-of-bounds"),  # a CTA that the cluster does not have
        ("stmatrix", 12, "misaligned"),
        ("stmatrix", 512, "shared-out-of-bounds"),
    ],
)
def test_a_bad_row_is_reported_and_spoils_itself_only(opcode: str, offset: int, kind: str, races: bool) -> None:
    tile = np.arange(256, dtype=np.uint16)
    offsets = 16 * _LANES
    offsets[3] = np.uint32(offset & 0xFFFFFFFF)
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%x0];"
    store = "mov.u32 %r0, 7; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%x0], {%r0};"
    after = run_statements(
        located(False) + (load if opcode == "ldmatrix" else store), {"%o": offsets}, ["%r0"], tile, races=races
    )
    assert [found for found, _ in after.findings] == [kind]
    if opcode == "ldmatrix":
        block = from_pairs(after.registers["%r0"])
        np.testing.assert_array_equal(block[3], np.full(8, 0xFFFF))
        np.testing.assert_array_equal(np.delete(block, 3, axis=0), np.delete(tile[:64].reshape(8, 8), 3, axis=0))
    else:
        left = after.shared.view(np.uint16).reshape(-1, 8)
        assert left[3].tolist() == tile.reshape(-1, 8)[3].tolist()
        assert left[2].tolist() == [7, 0] * 4


def test_lanes_without_a_row_need_no_good_address() -> None:
    offsets = np.where(_LANES < 8, 16 * _LANES, 0xFFFFFFF0).astype(np.uint32)
    body = f"{located(False)} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r0}}, [%x0];"
    assert not run_statements(body, {"%o": offsets}, ["%r0"], np.zeros(256, np.uint16)).findings


def test_a_generic_address_outside_shared_memory() -> None:
    body = "mov.u64 %y0, %out; ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%y0];"
    after = run_statements(body, {}, ["%r0"], np.zeros(256, np.uint16))
    assert [kind for kind, _ in after.findings] == ["shared-out-of-bounds"]
    assert (after.registers["%r0"] == 0xFFFFFFFF).all()


def test_movmatrix() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    body = "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r0;"
    after = run_statements(body, {"%r0": pairs(matrix)}, ["%r0"])
    np.testing.assert_array_equal(from_pairs(after.registers["%r0"]), matrix.T)


def test_a_race_with_a_writer_reaches_the_fragment() -> None:
    """Warp 1 writes what warp 0 reads, without synchronisation."""
    tile = np.zeros(1024, np.uint16)
    body = """
setp.ge.u32 %p0, %me, 32;
mov.u32 %x0, tile;
and.b32 %x2, %me, 31;
mad.lo.u32 %x0, %x2, 16, %x0;
@%p0 bra $write;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%x0];
bra $end;
$write:
st.shared.b32 [%x0], %me;
$end:
"""
    after = run_statements(body, {}, [f"%r{index}" for index in range(4)], tile, threads=64)
    assert "shared-race" in [kind for kind, _ in after.findings]


@pytest.mark.parametrize(
    "statement",
    [
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, {%r0, %r1}, {%r2}, {%d0, %d1, %d2, %d3};",
        "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %r0;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%d0}, [%x0];",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%x0], {%r0};",
    ],
)
def test_half_a_warp_is_reported(statement: str) -> None:
    registers = {f"%r{index}": _LANES for index in range(4)}
    body = f"mov.u32 %x0, tile; setp.lt.u32 %p0, %me, 16; @%p0 {statement}"
    results = [f"%d{index}" for index in range(4)]
    after = run_statements(body, registers, results, np.zeros(256, np.uint16))
    assert [kind for kind, _ in after.findings] == ["divergent"]


# ---- what is refused --------------------------------------------------------------------------------------------------------
_FOUR = "{%r1, %r2, %r3, %r4}"


@pytest.mark.parametrize(
    "text",
    [
        f"mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.bf16.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k8.row.col.satfinite.f32.tf32.tf32.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {_FOUR}, {_FOUR}, {_FOUR}, {_FOUR};",
        f"mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32 {_FOUR}, {{%r1, %r2}}, {{%r1}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k32.row.row.s32.s8.s8.s32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32.satfinite {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        "mma.sync.aligned.m8n8k4.row.col.rz.f64.f64.f64.f64 {%rd1, %rd2}, {%rd1}, {%rd2}, {%rd1, %rd2};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%r1, %r2}, {%r1}, {%r2}, {%r1, %r2};",
        f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {{%r1, %r2}};",
        f"mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 {_FOUR}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {{%r1, %r2}}, {{%r1, %r2}}, {_FOUR}, %r1, 0;",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {{%r1, %r2}}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_FOUR}, {{%r1, _}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%r1, 2, %r3, %r4}}, {_FOUR}, {{%r1, %r2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_FOUR}, {{%r1, %rd2}}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_FOUR};",
        "mma.sync;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x1.shared::cluster.b16 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r1}, [%rd3];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.shared.b16 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%h1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, %r3;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1};",
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r3], {%r1};",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {_};",
        "movmatrix.sync.aligned.m8n8.b16 %r1, %r2;",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r1, _;",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    declared = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %h<9>;"
    with pytest.raises(Unsupported, match=r"PTX line 7: .* is not supported"):
        lower(module(f".visible .entry k()\n{{\n{declared}\n{text}\nret;\n}}\n"), "k")
