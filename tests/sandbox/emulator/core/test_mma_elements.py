"""Products of tf32, f64, s8 and u8 in the core: mma, wmma and wgmma, against the index formulas of the PTX ISA."""

from typing import Any

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.timing_model.trace import NUMBERS
from tests.sandbox.emulator.core.test_wgmma import Layout, of_warpgroup
from tests.sandbox.emulator.ptx.small_ptx import module
from tests.sandbox.emulator.registers import After, run_statements

Array = np.ndarray[Any, Any]
_LANE = np.arange(32)
_GROUP, _THREAD = _LANE >> 2, _LANE & 3
_TYPES = {"tf32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8}
_SUMS = {"tf32": "f32", "f64": "f64", "s8": "s32", "u8": "s32"}
_SUM_TYPES = {"f32": np.float32, "f64": np.float64, "s32": np.int32}
_SHAPES = [
    *(("tf32", (16, 8, k)) for k in (4, 8)),
    *(("f64", shape) for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))),
    *((kind, shape) for kind in ("s8", "u8") for shape in ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
]


def place_of_a(kind: str, shape: tuple[int, int, int], i: int) -> tuple[Array, Array]:
    """Row and column of element i of a lane's fragment of A. Source: PTX ISA, "Matrix Fragments" of each mma shape."""
    if kind in ("s8", "u8"):
        upper = 4 <= i < 8 or i >= 12
        return _GROUP + 8 * upper, _THREAD * 4 + (i & 3) + 16 * (i >= 8)
    if kind == "f64" and shape[2] == 16:
        return _GROUP + 8 * (i % 2), i // 2 * 4 + _THREAD
    return _GROUP + 8 * (i in (1, 3)), _THREAD + 4 * (i >= 2)


def place_of_b(kind: str, i: int) -> tuple[Array, Array]:
    if kind in ("s8", "u8"):
        return _THREAD * 4 + (i & 3) + 16 * (i >= 4), _GROUP
    return _THREAD + 4 * i, _GROUP


def place_of_sums(i: int) -> tuple[Array, Array]:
    return _GROUP + 8 * (i >= 2), _THREAD * 2 + (i & 1)


def registers_of(elements: list[Array]) -> list[Array]:
    """One array a register: four 8-bit elements share one."""
    if elements[0].itemsize > 1:
        return [each.view(f"u{each.itemsize}") for each in elements]
    return [np.stack(elements[i : i + 4], axis=1).copy().view(np.uint32).reshape(-1) for i in range(0, len(elements), 4)]


def fragments(kind: str, shape: tuple[int, int, int], a: Array, b: Array, c: Array) -> tuple[list[Array], ...]:
    m, n, k = shape
    return (
        registers_of([a[place_of_a(kind, shape, i)] for i in range(m * k // 32)]),
        registers_of([b[place_of_b(kind, i)] for i in range(k * n // 32)]),
        registers_of([c[place_of_sums(i)] for i in range(m * n // 32)]),
    )


def named(prefix: str, registers: list[Array]) -> dict[str, Array]:
    """Names by their width: the harness has 64 bits for those that begin with l."""
    return {f"%{'l' if register.itemsize == 8 else 'r'}{prefix}{i}": register for i, register in enumerate(registers)}


def group(names: list[str] | dict[str, Array]) -> str:
    return "{" + ", ".join(names) + "}"


def multiplied(opcode: str, kind: str, shape: tuple[int, int, int], a: Array, b: Array, c: Array) -> Array:
    left, right, sums = (named(*each) for each in zip("abc", fragments(kind, shape, a, b, c), strict=True))
    results = [name.replace("c", "d") for name in sums]
    body = f"{opcode} {group(results)}, {group(left)}, {group(right)}, {group(sums)};"
    after = run_statements(body, {**left, **right, **sums}, results)
    assert not after.findings
    d = np.zeros_like(c)
    for i, name in enumerate(results):
        d[place_of_sums(i)] = after.registers[name].view(c.dtype)
    return d


def opcode(kind: str, shape: tuple[int, int, int], other: str = "", saturated: bool = False) -> str:
    m, n, k = shape
    to = _SUMS[kind]
    return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.satfinite' * saturated}.{to}.{kind}.{other or kind}.{to}"


def drawn(kind: str, shape: tuple[int, int, int], other: str = "", integers: bool = True) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(shape[2])
    m, n, k = shape

    def one(size: tuple[int, int], element: str) -> Array:
        dtype = _TYPES[element]
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            return draw.integers(limits.min, limits.max + 1, size).astype(dtype)
        return (draw.integers(-9, 10, size) if integers else draw.standard_normal(size)).astype(dtype)

    sums = _SUM_TYPES[_SUMS[kind]]
    return one((m, k), kind), one((k, n), other or kind), draw.integers(-(10**6), 10**6, (m, n)).astype(sums)


def exact(a: Array, b: Array, c: Array) -> Array:
    wide = np.int64 if a.dtype.itemsize == 1 else np.float64
    return a.astype(wide) @ b.astype(wide) + c.astype(wide)


@pytest.mark.parametrize(("kind", "shape"), _SHAPES)
def test_mma_is_exact_where_every_sum_is(kind: str, shape: tuple[int, int, int]) -> None:
    a, b, c = drawn(kind, shape)
    np.testing.assert_array_equal(multiplied(opcode(kind, shape), kind, shape, a, b, c), exact(a, b, c))


@pytest.mark.parametrize(("kind", "other"), [("s8", "u8"), ("u8", "s8")])
@pytest.mark.parametrize("shape", [(8, 8, 16), (16, 8, 16), (16, 8, 32)])
def test_mma_of_signed_and_unsigned_integers(kind: str, other: str, shape: tuple[int, int, int]) -> None:
    a, b, c = drawn(kind, shape, other)
    np.testing.assert_array_equal(multiplied(opcode(kind, shape, other), kind, shape, a, b, c), exact(a, b, c))


@pytest.mark.parametrize("saturated", [False, True])
def test_integers_wrap_around_or_saturate(saturated: bool) -> None:
    shape = (16, 8, 32)
    a, b = np.full((16, 32), -128, np.int8), np.full((32, 8), -128, np.int8)
    b[:, 1::2] = 127
    limits = np.iinfo(np.int32)
    c = np.full((16, 8), limits.max - 5, np.int32)
    c[:, 1::2] = limits.min + 5
    sums = exact(a, b, c)
    expected = np.clip(sums, limits.min, limits.max) if saturated else sums.astype(np.int32)
    assert (sums != sums.astype(np.int32)).all()
    np.testing.assert_array_equal(multiplied(opcode("s8", shape, saturated=saturated), "s8", shape, a, b, c), expected)


def test_tf32_operands_are_the_upper_19_bits() -> None:
    shape = (16, 8, 8)
    a, b, c = drawn("tf32", shape, integers=False)

    def kept(values: Array) -> Array:
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    d = multiplied(opcode("tf32", shape), "tf32", shape, a, b, c)
    np.testing.assert_array_equal(d, multiplied(opcode("tf32", shape), "tf32", shape, kept(a), kept(b), c))
    magnitude = np.abs(kept(a)).astype(float) @ np.abs(kept(b)) + np.abs(c)
    assert (np.abs(d - exact(kept(a), kept(b), c)) <= magnitude * 2.0**-24 * 9).all()
    assert (np.abs(d - exact(a, b, c)) > 0).any()


def test_sums_of_f64_are_fused_in_the_order_of_k() -> None:
    shape = (16, 8, 16)
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a[0, [0, 5, 15]], b[[0, 5, 15], 0] = [2.0**27, 1, 2.0**27], [2.0**27, 1, -(2.0**27)]
    a[1, [0, 5, 15]] = [2.0**27, 2.0**27, 1]
    b[[0, 5, 15], 1] = [2.0**27, -(2.0**27), 1]
    a[2, 0] = b[0, 2] = 1 + 2.0**-30
    c[2, 2] = -1
    d = multiplied(opcode("f64", shape), "f64", shape, a, b, c)
    assert d[0, 0] == 0
    assert d[1, 1] == 1
    assert d[2, 2] == 2.0**-29 + 2.0**-60


@pytest.mark.parametrize(("kind", "shape"), _SHAPES)
@pytest.mark.parametrize("matrix", ["a", "b", "c"])
def test_an_old_element_makes_its_row_column_or_sum_old(kind: str, shape: tuple[int, int, int], matrix: str) -> None:
    """One lane's last register of a matrix is uninitialised."""
    lane = 22
    parts = [named(*each) for each in zip("abc", fragments(kind, shape, *drawn(kind, shape)), strict=True)]
    last = list(parts["abc".index(matrix)])[-1]
    results = [name.replace("c", "d") for name in parts[2]]
    bits = 64 if kind == "f64" else 32
    body = f"""{{ .reg .b{bits} %old; setp.eq.u32 %p0, %me, {lane}; selp.b{bits} {last}, %old, {last}, %p0;
{opcode(kind, shape)} {group(results)}, {group(parts[0])}, {group(parts[1])}, {group(parts[2])}; }}"""
    after = run_statements(body, {**parts[0], **parts[1], **parts[2]}, results, taint=True)
    old = np.zeros(shape[:2], bool)
    for i, name in enumerate(results):
        old[place_of_sums(i)] = after.tainted[name].any(axis=1)
    expected = np.zeros_like(old)
    count = {"a": shape[0] * shape[2], "b": shape[1] * shape[2], "c": shape[0] * shape[1]}[matrix] // 32
    if matrix == "a":
        expected[place_of_a(kind, shape, count - 1)[0][lane]] = True
    elif matrix == "b":
        expected[:, place_of_b(kind, count - 1)[1][lane]] = True
    else:
        row, column = place_of_sums(count - 1)
        expected[row[lane], column[lane]] = True
    np.testing.assert_array_equal(old, expected)


# ---- wmma -------------------------------------------------------------------------------------------------------------------
_WMMA = [
    ("tf32", (16, 16, 8)),
    ("f64", (8, 8, 4)),
    *((kind, shape) for kind in ("s8", "u8") for shape in ((16, 16, 16), (32, 8, 16), (8, 32, 16))),
]
_COUNTS = {"tf32": (4, 4), "f64": (1, 1)}


def in_memory(matrix: Array, layout: str) -> Array:
    return np.ascontiguousarray(matrix if layout == "row" else matrix.T)


@pytest.mark.parametrize(("kind", "shape"), _WMMA)
@pytest.mark.parametrize("layouts", ["row col row", "col row col", "row row col", "col col row"])
@pytest.mark.parametrize("races", [False, True])
def test_wmma(kind: str, shape: tuple[int, int, int], layouts: str, races: bool) -> None:
    m, n, k = shape
    a, b, c = drawn(kind, shape)
    of_a, of_b, of_d = layouts.split()
    parts = [in_memory(a, of_a), in_memory(b, of_b), in_memory(c, of_d)]
    starts = np.cumsum([0, *(part.nbytes for part in parts)])
    counts = _COUNTS.get(kind, (m * k // 128, k * n // 128))
    to, name, bits = _SUMS[kind], f"m{m}n{n}k{k}", 64 if kind == "f64" else 32
    left, right, sums = (
        group([f"%{prefix}{i}" for i in range(count)]) for prefix, count in zip("abc", (*counts, m * n // 32), strict=True)
    )
    saturated = ".satfinite" if to == "s32" else ""
    body = f"""{{ .reg .b{bits} %a<9>; .reg .b{bits} %b<9>; .reg .b{bits} %c<9>;
mov.u32 %x0, tile;
mov.u64 %y0, tile;
cvta.shared.u64 %y0, %y0;
wmma.load.a.sync.aligned.{of_a}.{name}.shared.{kind} {left}, [%x0];
wmma.load.b.sync.aligned.{of_b}.{name}.{kind} {right}, [%y0+{starts[1]}], {k if of_b == "col" else n};
wmma.load.c.sync.aligned.{of_d}.{name}.shared.{to} {sums}, [%x0+{starts[2]}];
wmma.mma.sync.aligned.{of_a}.{of_b}.{name}.{to}.{kind}.{kind}.{to}{saturated} {sums}, {left}, {right}, {sums};
wmma.store.d.sync.aligned.{of_d}.{name}.global.{to} [%out], {sums};
}}"""
    shared = np.concatenate([part.view(np.uint8).reshape(-1) for part in parts])
    after = run_statements(body, shared=shared, output_bytes=c.nbytes, races=races)
    assert not after.findings
    stored = after.output.view(c.dtype).reshape(parts[2].shape)
    np.testing.assert_array_equal(stored if of_d == "row" else stored.T, exact(a, b, c))


@pytest.mark.parametrize(("kind", "shape"), [each for each in _WMMA if each[1][1] != 32])
@pytest.mark.parametrize("matrix", ["a", "b", "c"])
def test_fragments_of_wmma_are_those_of_the_mma_that_ptxas_makes_of_it(
    kind: str, shape: tuple[int, int, int], matrix: str
) -> None:
    """Read from ptxas's code for sm_80 and sm_90: pieces of 16 rows, then of eight columns. m8n32k16 is m32n8k16 transposed."""
    a, b, c = drawn(kind, shape)
    m, n, k = shape
    rows, expected = min(m, 16), []
    one = (rows, 8, k)
    if matrix == "b":
        for column in range(0, n, 8):
            expected += fragments(kind, one, a, b[:, column : column + 8], c)[1]
    else:
        for column in range(0, n if matrix == "c" else 8, 8):
            for row in range(0, m, 16):
                part = fragments(kind, one, a[row : row + 16], b[:, :8], c[row : row + 16, column : column + 8])
                expected += part[0 if matrix == "a" else 2]
    operand = {"a": a, "b": b, "c": c}[matrix]
    element = _SUMS[kind] if matrix == "c" else kind
    results = list(named("t", expected))
    load = f"wmma.load.{matrix}.sync.aligned.row.m{m}n{n}k{k}.shared.{element} {group(results)}, [%x0];"
    after = run_statements(f"mov.u32 %x0, tile; {load}", {}, results, operand)
    assert not after.findings
    for name, register in zip(results, expected, strict=True):
        np.testing.assert_array_equal(after.registers[name], register, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "shape", "change", "finding"),
    [
        ("s8", "m16n16k16", "add.u32 %x0, %x0, 8;", "misaligned"),
        ("f64", "m8n8k4", "add.u32 %x0, %x0, 8;", "misaligned"),
        ("tf32", "m16n16k8", "add.u32 %x0, %x0, 16;", "shared-out-of-bounds"),
        ("s8", "m16n16k16", "mad.lo.u32 %x0, %me, 16, %x0;", "divergent"),
    ],
)
def test_bad_places_of_wmma(kind: str, shape: str, change: str, finding: str) -> None:
    """The tile is as large as the matrix."""
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    count = {"s8": 2, "f64": 1, "tf32": 4}[kind]
    results = [f"%{'l' if kind == 'f64' else 'r'}{i}" for i in range(count)]
    declared = f".reg .b{64 if kind == 'f64' else 32} {', '.join(results)};"
    load = f"wmma.load.a.sync.aligned.row.{shape}.shared.{kind} {group(results)}, [%x0];"
    after = run_statements(f"{{ {declared} mov.u32 %x0, tile; {change} {load} }}", shared=np.zeros((m, k), _TYPES[kind]))
    assert [found for found, _ in after.findings] == [finding]


# ---- wgmma ------------------------------------------------------------------------------------------------------------------
_B_AT = 16384


def of_warpgroup_product(
    kinds: tuple[str, str], columns: int, a: Array, b: Array, c: Array, *, registers_of_a: bool, layout: Layout, form: str = ""
) -> tuple[After, list[str]]:
    """A (64 x k), B transposed (columns x k), C (64 x columns)."""
    kind, to = kinds[0], _SUMS[kinds[0]]
    tile = np.full(61440, 0xFF, np.uint8)
    k = a.shape[1]
    first = layout.place(tile, 0, a.view(np.uint16))
    second = layout.place(tile, _B_AT, b.view(np.uint16))
    sums = [
        [c[16 * warp :][:16, 8 * n :][:, :8][place_of_sums(i)].view(np.uint32) for n in range(columns // 8) for i in range(4)]
        for warp in range(4)
    ]
    registers = {f"%d{i}": each for i, each in enumerate(of_warpgroup(sums))}
    operand = "%y1"
    if registers_of_a:
        operand = "{%a0, %a1, %a2, %a3}"
        shape = (16, 8, k)
        count = 16 * k // 32
        left = of_warpgroup(
            [registers_of([a[16 * w :][:16][place_of_a(kind, shape, i)] for i in range(count)]) for w in range(4)]
        )
        registers.update({f"%a{i}": each for i, each in enumerate(left)})
    results = [f"%d{i}" for i in range(columns // 2)]
    factors = ", 1, -1" if kind == "tf32" else ""
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}{form}.{to}.{kinds[0]}.{kinds[1]}"
    body = f"""
mov.u32 %x0, tile;
shr.u32 %x0, %x0, 4;
cvt.u64.u32 %y0, %x0;
add.s64 %y1, %y0, {first};
add.s64 %y2, %y0, {second};
setp.eq.u32 %p0, %x0, %x0;
wgmma.fence.sync.aligned;
{name} {group(results)}, {operand}, %y2, %p0{factors};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
"""
    return run_statements(body, registers, results, tile, threads=128), results


def sums_of_warpgroup(after: After, results: list[str], c: Array) -> Array:
    d = np.zeros_like(c)
    for warp in range(4):
        for i, name in enumerate(results):
            row, column = place_of_sums(i % 4)
            d[16 * warp + row, 8 * (i // 4) + column] = after.registers[name][32 * warp :][:32].view(c.dtype)
    return d


@pytest.mark.parametrize("kinds", [("tf32", "tf32"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")])
@pytest.mark.parametrize("registers_of_a", [False, True])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_wgmma(kinds: tuple[str, str], registers_of_a: bool, swizzle: int) -> None:
    for columns, spread in ((8, 0), (32, 1024), (144, 0)):
        k = 8 if kinds[0] == "tf32" else 32
        a, b, c = drawn(kinds[0], (64, columns, k), kinds[1])
        transposed = np.ascontiguousarray(b.T)
        after, results = of_warpgroup_product(
            kinds, columns, a, transposed, c, registers_of_a=registers_of_a, layout=Layout(swizzle, spread=spread)
        )
        assert not after.findings
        expected = exact(-a if kinds[0] == "tf32" else a, b, c)
        np.testing.assert_array_equal(sums_of_warpgroup(after, results, c), expected)


def test_wgmma_saturates() -> None:
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    c = np.full((64, 8), np.iinfo(np.int32).max - 1, np.int32)
    for form, expected in ((".satfinite", 2**31 - 1), ("", 2**31 - 2 + 32 * 127 * 127 - 2**32)):
        after, results = of_warpgroup_product(("s8", "s8"), 8, a, b, c, registers_of_a=False, layout=Layout(128), form=form)
        assert (sums_of_warpgroup(after, results, c) == expected).all()


_SUMS_OF_8 = "{%r1, %r2, %r3, %r4}"


@pytest.mark.parametrize(
    "text",
    [
        f"m64n8k16.f32.tf32.tf32 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 1;",
        f"m64n8k8.f32.tf32.tf32 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        f"m64n8k8.f32.tf32.tf32 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 2;",
        f"m64n8k8.f32.tf32.tf32 {_SUMS_OF_8}, %rd1, %rd2, %p1;",
        f"m64n8k8.satfinite.f32.tf32.tf32 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 1;",
        f"m64n8k32.s32.s8.s8 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 1;",
        f"m64n8k32.s32.s8.s4 {_SUMS_OF_8}, %rd1, %rd2, %p1;",
        f"m64n40k32.s32.s8.s8 {{{', '.join(['%r1'] * 20)}}}, %rd1, %rd2, %p1;",
        f"m64n8k32.f32.e4m3.e4m3 {_SUMS_OF_8}, %rd1, %rd2, %p1, 1, 1;",
        f"m64n8k32.s32.s8.s8.satfinite {_SUMS_OF_8}, %rd1, %rd2, %p1;",
        "m64n8k32.s32.s8.s8 {%r1, %r2}, %rd1, %rd2, %p1;",
    ],
)
def test_other_forms_of_wgmma_are_refused(text: str) -> None:
    declared = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;"
    with pytest.raises(Unsupported, match=r"PTX line \d+: .* is not supported"):
        lower(module(f".visible .entry k() {{ {declared} wgmma.mma_async.sync.aligned.{text} ret; }}"), "k")


# ---- malformed variants, and what a trace counts ----------------------------------------------------------------------------
_FORMS = [
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1,%r1,%r1};",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%rd1,%rd1}, {%rd1}, {%rd1}, {%rd1,%rd1};",
    "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.u8.s32 {%r1,%r1}, {%r1}, {%r1}, {%r1,%r1};",
    "wmma.load.a.sync.aligned.row.m16n16k8.shared.tf32 {%r1,%r1,%r1,%r1}, [%r1], 8;",
    "wmma.store.d.sync.aligned.row.m8n8k4.global.f64 [%rd1], {%rd1,%rd1};",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1,%r1,%r1,%r1}, %rd1, %rd1, %p1, 1, 1;",
    "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1}, %rd1, %p1;",
]
_WORDS = ["row", "m16n8k8", "m8n8k4", "m16n8k32", "m16n16k16", "m64n8k16", "satfinite", "rn", "rz", "sp", "shared"]
_WORDS += ["f32", "f16", "bf16", "tf32", "f64", "s32", "s8", "u4", "e4m3"]
_OPERANDS = ["{%r1}", "{%rd1,%rd1}", "{%r1,_}", "{%r1,3}", "[%rd1]", "%r1", "%p1", "7", "_", "{%h1,%h1}"]


@pytest.mark.parametrize("form", _FORMS)
def test_a_form_lowers_and_its_malformed_variants_are_refused_by_name_or_lower(form: str) -> None:
    draw = np.random.default_rng(9)
    declared = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %h<9>; .reg .pred %p<3>;"
    lower(module(f".visible .entry k() {{ {declared} {form} ret; }}"), "k")
    opcode_text, _, rest = form.partition(" ")
    refused = 0
    for _ in range(60):
        parts, operands = opcode_text.split("."), rest.rstrip(";").split(", ")
        at, where = int(draw.integers(1, len(parts))), int(draw.integers(len(operands)))
        match int(draw.integers(4)):
            case 0:
                parts[at] = str(draw.choice(_WORDS))
            case 1:
                del parts[at]
            case 2:
                operands[where] = str(draw.choice(_OPERANDS))
            case _:
                del operands[where]
        text = f".visible .entry k() {{ {declared} {'.'.join(parts)} {', '.join(operands)}; ret; }}"
        try:
            lower(module(text), "k")
        except Unsupported:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("form", "amount"),
    [
        (_FORMS[0], 2 * 16 * 8 * 8),
        (_FORMS[1], 16 * 8 * 8 * 4),
        (_FORMS[2], 8 * 8 * 16 // 2),
        (f"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {_SUMS_OF_8}, {{%r1,%r1}}, {{%r1}}, {_SUMS_OF_8};", 16 * 8 * 8),
    ],
)
def test_a_trace_counts_multiply_adds_of_f16_that_take_the_same_time(form: str, amount: int) -> None:
    declared = ".reg .b32 %r<9>; .reg .b64 %rd<9>;"
    program = lower(module(f".visible .entry k() {{ {declared} {form} ret; }}"), "k")
    outcome = Machine().run(program, Grid((1, 1, 1), (32, 1, 1), parameters=b""), Conditions(), traced=100)
    data = outcome.trace()
    count = len(data) // (4 * len(NUMBERS) + 8)
    numbers = np.frombuffer(data, np.uint32, len(NUMBERS) * count).reshape(len(NUMBERS), count)
    rows = dict(zip(NUMBERS, numbers, strict=True))
    assert rows["amount"][rows["kind"] == int(core.TraceKind.FRAGMENTS)].tolist() == [amount]
