"""wmma in the core: products of every form, and fragments as on hardware."""

from typing import Any

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.core.fragments import bits, blocks_of_a, blocks_of_b, blocks_of_sums, values
from tests.sandbox.emulator.ptx.small_ptx import module
from tests.sandbox.emulator.registers import run_statements

Array = np.ndarray[Any, Any]
_SIZES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}
_TYPES = [("f16", d, c) for d in ("f32", "f16") for c in ("f32", "f16")] + [("bf16", "f32", "f32")]
_PITCH = 40  # elements


def vector(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{index}" for index in range(count)) + "}"


def in_memory(matrix: Array, layout: str, pitch: int = _PITCH) -> Array:
    lines = matrix if layout == "row" else matrix.T
    memory = np.zeros((lines.shape[0], pitch), matrix.dtype)
    memory[:, : lines.shape[1]] = lines
    return memory


def halves(shape: str, operand: str, element: str) -> int:
    """Registers of a fragment of A or B. Source: PTX ISA, "Matrix Fragments for WMMA"."""
    m, n, _ = _SIZES[shape]
    return 8 if element == "f16" else (m if operand == "a" else n) // 4


@pytest.mark.parametrize("shape", _SIZES)
@pytest.mark.parametrize(("element", "to", "addend"), _TYPES)
@pytest.mark.parametrize("layouts", ["row col row", "col row col", "row row col", "col col row"])
@pytest.mark.parametrize("integers", [True, False])
def test_product(shape: str, element: str, to: str, addend: str, layouts: str, integers: bool) -> None:
    """A and C from shared memory, B from generic addresses, D to global memory; some strides are given, some by default."""
    draw = np.random.default_rng(11)
    m, n, k = _SIZES[shape]
    of_a, of_b, of_d = layouts.split()
    a, b, c = (
        bits(draw.integers(-8, 9, size) if integers else draw.standard_normal(size), kind)
        for size, kind in (((m, k), element), ((k, n), element), ((m, n), addend))
    )
    natural = k if of_a == "row" else m
    parts = [in_memory(a, of_a, natural), in_memory(b, of_b), in_memory(c, of_d)]
    starts = np.cumsum([0, *(part.nbytes for part in parts)])
    counts = {"d": 8 if to == "f32" else 4, "c": 8 if addend == "f32" else 4}
    left, right = (vector(name, halves(shape, name, element)) for name in "ab")
    types = f"{to}.{addend}" if element == "f16" else "f32.bf16.bf16.f32"
    declared = "".join(f".reg .b32 %{name}<8>;" for name in "abcd")
    body = f"""{{ {declared}
mov.u32 %x0, tile;
mov.u64 %y0, tile;
cvta.shared.u64 %y0, %y0;
mov.u32 %x1, {_PITCH};
wmma.load.a.sync.aligned.{of_a}.{shape}.shared.{element} {left}, [%x0];
wmma.load.b.sync.aligned.{of_b}.{shape}.{element} {right}, [%y0+{starts[1]}], %x1;
wmma.load.c.sync.aligned.{of_d}.{shape}.shared::cta.{addend} {vector("c", counts["c"])}, [%x0+{starts[2]}], {_PITCH};
wmma.mma.sync.aligned.{of_a}.{of_b}.{shape}.{types} {vector("d", counts["d"])}, {left}, {right}, {vector("c", counts["c"])};
wmma.store.d.sync.aligned.{of_d}.{shape}.global.{to} [%out], {vector("d", counts["d"])}, %x1;
}}"""
    lines = m if of_d == "row" else n
    width = 4 if to == "f32" else 2
    shared = np.concatenate([part.view(np.uint8).reshape(-1) for part in parts])
    after = run_statements(body, shared=shared, output_bytes=lines * _PITCH * width)
    assert not after.findings
    stored = values(after.output.view(f"u{width}").reshape(lines, _PITCH), to)
    assert not stored[:, m + n - lines :].any()
    result = stored[:, : m + n - lines]
    left_values, right_values, sums = values(a, element), values(b, element), values(c, addend)
    exact = left_values @ right_values + sums
    wrong = np.abs((result if of_d == "row" else result.T) - exact)
    if integers:
        assert not wrong.any()
    magnitude = np.abs(left_values) @ np.abs(right_values) + np.abs(sums)
    assert (wrong <= magnitude * 2.0**-24 * (k + 1) + (np.abs(exact) * 2.0**-11 + 2.0**-25 if to == "f16" else 0)).all()


# The 8x8 block in each register after wmma.load, as ptxas compiles it for sm_90. m8n32k16 is the transpose of m32n8k16.
def fragment(shape: str, operand: str, matrix: Array, element: str) -> list[Array]:
    if shape == "m8n32k16":
        return fragment("m32n8k16", {"a": "b", "b": "a"}.get(operand, operand), matrix.T, element)
    if operand == "c":
        return blocks_of_sums(matrix)
    distinct = blocks_of_a(matrix) if operand == "a" else blocks_of_b(matrix)
    return distinct * (8 // len(distinct)) if element == "f16" else distinct


@pytest.mark.parametrize("shape", _SIZES)
@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(
    ("operand", "element"), [("a", "f16"), ("a", "bf16"), ("b", "f16"), ("b", "bf16"), ("c", "f16"), ("c", "f32")]
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_fragments(shape: str, layout: str, operand: str, element: str, space: str) -> None:
    m, n, k = _SIZES[shape]
    size = {"a": (m, k), "b": (k, n), "c": (m, n)}[operand]
    matrix = np.random.default_rng(3).permutation(size[0] * size[1]).reshape(size)
    matrix = matrix.astype(np.uint32 if element == "f32" else np.uint16)
    expected = fragment(shape, operand, matrix, element)
    results = [f"%r{index}" for index in range(len(expected))]
    memory = in_memory(matrix, layout)
    # In global memory it is read from the input buffer, whose beginning is what the tile is filled with.
    address = "mov.u32 %x0, tile;" if space == "shared" else ""
    base = "%x0" if space == "shared" else "%in"
    opcode = f"wmma.load.{operand}.sync.aligned.{layout}.{shape}.{space}.{element}"
    after = run_statements(f"{address} {opcode} {{{', '.join(results)}}}, [{base}], {_PITCH};", {}, results, memory)
    assert not after.findings
    for name, register in zip(results, expected, strict=True):
        np.testing.assert_array_equal(after.registers[name], register, err_msg=name)


@pytest.mark.parametrize("element", ["f16", "f32"])
def test_the_address_may_be_a_result(element: str) -> None:
    matrix = np.arange(256).reshape(16, 16).astype(np.uint32 if element == "f32" else np.uint16)
    results = [f"%r{index}" for index in range(8 if element == "f32" else 4)]
    load = f"wmma.load.c.sync.aligned.row.m16n16k16.shared.{element} {{{', '.join(results)}}}, [%r0], %r1;"
    body = f"mov.u32 %r0, tile; mov.u32 %r1, 16; {load}"
    after = run_statements(body, {}, results, matrix)
    for name, register in zip(results, blocks_of_sums(matrix), strict=True):
        np.testing.assert_array_equal(after.registers[name], register)


_LOAD = "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, [%x0], %x1;"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("add.u32 %x0, %x0, 8;", "misaligned"),
        ("mov.u32 %x1, 12;", "misaligned"),
        ("mov.u32 %x1, 24;", "shared-out-of-bounds"),
        ("mov.u32 %x1, 0xFFFFFFF8;", "shared-out-of-bounds"),
        ("add.u32 %x0, %x0, 16;", "shared-out-of-bounds"),
        ("mad.lo.u32 %x0, %me, 16, %x0;", "divergent"),
        ("mad.lo.u32 %x1, %me, 8, %x1;", "divergent"),
    ],
)
def test_bad_places(change: str, kind: str) -> None:
    """The tile holds one 16x16 matrix exactly."""
    body = f"{{ .reg .b32 %a<8>; mov.u32 %x0, tile; mov.u32 %x1, 16; {change} {_LOAD} }}"
    after = run_statements(body, shared=np.zeros(256, np.uint16))
    assert [found for found, _ in after.findings] == [kind]


def test_the_good_place_among_the_bad() -> None:
    body = f"{{ .reg .b32 %a<8>; mov.u32 %x0, tile; mov.u32 %x1, 16; {_LOAD} }}"
    assert not run_statements(body, shared=np.zeros(256, np.uint16)).findings


def test_a_store_past_the_end_of_global_memory() -> None:
    body = """{ .reg .f32 %d<8>;
wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%out], {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, 16; }"""
    assert not run_statements(body, output_bytes=1024).findings
    assert [kind for kind, _ in run_statements(body, output_bytes=1008).findings] == ["global-out-of-bounds"]
    body = body.replace("%out", "%in")
    assert [kind for kind, _ in run_statements(body, shared=np.zeros(1024, np.uint8)).findings] == ["input-written"]


_EIGHT = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"
_QUARTET = "{%r1, %r2, %r3, %r4}"


@pytest.mark.parametrize(
    "text",
    [
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.tf32 {_QUARTET}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {_EIGHT}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k8.global.f16 {_EIGHT}, [%rd1], 16;",
        f"wmma.load.c.sync.aligned.row.m16n16k8.global.s32 {_EIGHT}, [%rd1], 16;",
        "wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {%r1}, [%rd1], 32;",
        "wmma.load.c.sync.aligned.row.m8n8k4.global.f32 {%r1, %r2}, [%rd1], 16;",
        f"wmma.load.c.sync.aligned.row.m16n16k16.global.f64 {_EIGHT}, [%rd1], 16;",
        "wmma.load.a.sync.aligned.row.m16n16k16.global.s32 {%r1, %r2}, [%rd1], 16;",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {_EIGHT}, {{%r1, %r2}}, {{%r1, %r2}}, {_EIGHT};",
        f"wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32.satfinite {_EIGHT}, {_QUARTET}, {_QUARTET}, {_EIGHT};",
        "wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64.rz {%rd1, %rd1}, {%rd1}, {%rd1}, {%rd1, %rd1};",
        f"wmma.load.c.sync.aligned.row.m16n16k16.global.bf16 {_QUARTET}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f32 {_EIGHT}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {_QUARTET}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.m16n16k16.global.f16 {_EIGHT}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.shared::cluster.f16 {_EIGHT}, [%rd1], 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {_EIGHT}, [%rd1], _;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {_EIGHT}, [%rd1], 16, 16;",
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {_EIGHT};",
        f"wmma.load.d.sync.aligned.row.m16n16k16.global.f16 {_EIGHT}, [%rd1], 16;",
        f"wmma.store.c.sync.aligned.row.m16n16k16.global.f16 [%rd1], {_QUARTET}, 16;",
        f"wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%rd1], {_EIGHT}, 16;",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {_EIGHT}, {_EIGHT}, {_EIGHT}, {_EIGHT};",
        f"wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64 {_EIGHT}, {_EIGHT}, {_EIGHT}, {_EIGHT};",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {_EIGHT}, {_QUARTET}, {_EIGHT}, {_EIGHT};",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 {_EIGHT}, {_EIGHT}, {_EIGHT}, {_EIGHT};",
        "wmma.mma.sync.aligned;",
        "wmma;",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=r"PTX line 7: .* is not supported"):
        lower(module(f".visible .entry k()\n{{\n.reg .b32 %r<9>; .reg .b64 %rd<9>;\n{text}\nret;\n}}\n"), "k")
