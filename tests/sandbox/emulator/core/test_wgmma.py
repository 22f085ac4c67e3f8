"""The arithmetic of wgmma in the core: every form of its operands, at the addresses of their descriptors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.sandbox.emulator.core.fragments import bits, blocks_of_a, blocks_of_sums, sums_of, values
from tests.sandbox.emulator.registers import After, run_statements

Array = np.ndarray[Any, Any]
_ROWS, _K = 64, 16
_B_AT = 16384  # in the tile
_WIDTHS = {0: 16, 128: 128, 64: 64, 32: 32}  # bytes of a line by swizzle
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_XOR = {0: 0, 128: 0x70, 64: 0x30, 32: 0x10}


@dataclass(frozen=True)
class Layout:
    """One operand in shared memory. `spread`: unused bytes between its parts, or an offset into another's gaps."""

    swizzle: int = 128
    mn_major: bool = False
    spread: int = 0

    def strides(self, rows: int) -> tuple[int, int]:
        """Leading and stride byte offsets."""
        width = _WIDTHS[self.swizzle]
        atom = 8 * width + self.spread
        if not self.swizzle:
            # Core matrices of 128 bytes: here those along k lie together, with a spread those of all rows do.
            return (128, 256) if not self.spread else (16 * rows, 128)
        return (2 * atom, atom) if self.mn_major else (16, atom)

    def offsets(self, rows: int) -> Array:
        """Of element (row, k), before the swizzle. Source: the canonical layouts of CUTLASS's make_gmma_desc."""
        leading, stride = self.strides(rows)
        row, k = np.arange(rows)[:, None], np.arange(_K)[None, :]
        width = _WIDTHS[self.swizzle]
        if self.swizzle and self.mn_major:
            line = width // 2
            return row // line * leading + k // 8 * stride + k % 8 * width + row % line * 2
        if self.swizzle:
            return row // 8 * stride + row % 8 * width + k * 2
        inner = k % 8 * 16 + row % 8 * 2 if self.mn_major else row % 8 * 16 + k % 8 * 2
        return row // 8 * stride + k // 8 * leading + inner

    def place(self, tile: Array, start: int, operand: Array) -> int:
        """Puts (rows, k) elements there; the descriptor without the tile's address."""
        plain = start + self.offsets(len(operand))
        # The tile is aligned to every pattern, so that its offsets are swizzled as addresses are.
        at = plain ^ (plain >> 3 & _XOR[self.swizzle])
        assert len(np.unique(at)) == at.size
        tile.view(np.uint16)[at // 2] = operand
        leading, stride = self.strides(len(operand))
        return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | _MODES[self.swizzle] << 62


@dataclass(frozen=True)
class Form:
    columns: int = 64
    element: str = "f16"
    accumulator: str = "f32"
    a: Layout | None = Layout()  # None: in registers
    b: Layout = Layout()
    signs: tuple[int, int] = (1, 1)
    accumulate: bool = True

    @property
    def registers(self) -> int:
        return self.columns // (2 if self.accumulator == "f32" else 4)

    def statement(self) -> str:
        sums = ", ".join(f"%d{index}" for index in range(self.registers))
        a = "%y1" if self.a else "{%a0, %a1, %a2, %a3}"
        majors = ([int(self.a.mn_major)] if self.a else []) + [int(self.b.mn_major)]
        shape = f"m64n{self.columns}k16.{self.accumulator}.{self.element}.{self.element}"
        factors = ", ".join(map(str, (*self.signs, *majors)))
        return f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {a}, %y2, %p0, {factors};"


def of_warpgroup(blocks: list[list[Array]]) -> list[Array]:
    """Registers of 128 threads from those of each warp."""
    return [np.concatenate(warps) for warps in zip(*blocks, strict=True)]


def multiply(form: Form, a: Array, b: Array, c: Array, **changes: int) -> After:
    """A (64 x 16), B transposed (columns x 16), C (64 x columns), as bits."""
    tile = np.full(61440, 0xFF, np.uint8)
    first = form.a.place(tile, 0, a) if form.a else 0
    second = form.b.place(tile, _B_AT, b)
    first, second = changes.get("first", first), changes.get("second", second)
    registers = {f"%d{i}": each for i, each in enumerate(of_warpgroup([blocks_of_sums(c[16 * w :][:16]) for w in range(4)]))}
    if form.a is None:
        left = of_warpgroup([blocks_of_a(a[16 * w :][:16]) for w in range(4)])
        registers.update({f"%a{i}": each for i, each in enumerate(left)})
    body = f"""
mov.u32 %x0, tile;
shr.u32 %x0, %x0, 4;
cvt.u64.u32 %y0, %x0;
add.s64 %y1, %y0, {first};
add.s64 %y2, %y0, {second};
setp.ne.u32 %p0, {int(form.accumulate)}, 0;
wgmma.fence.sync.aligned;
{form.statement()}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
"""
    results = [f"%d{index}" for index in range(form.registers)]
    return run_statements(body, registers, results, tile, threads=128)


def result_of(form: Form, after: After) -> Array:
    registers = [after.registers[f"%d{index}"] for index in range(form.registers)]
    return np.concatenate(
        [sums_of([each[32 * w :][:32] for each in registers], (16, form.columns), form.accumulator) for w in range(4)]
    )


def operands(form: Form, integers: bool) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(form.columns)
    sizes = (((_ROWS, _K), form.element), ((form.columns, _K), form.element), ((_ROWS, form.columns), form.accumulator))
    a, b, c = (bits(draw.integers(-6, 7, size) if integers else draw.standard_normal(size), kind) for size, kind in sizes)
    return a, b, c


def expected(form: Form, a: Array, b: Array, c: Array) -> Array:
    sign = form.signs[0] * form.signs[1]
    sums = values(c, form.accumulator) if form.accumulate else 0
    return sign * values(a, form.element) @ values(b, form.element).T + sums


def check_exact(form: Form) -> None:
    a, b, c = operands(form, integers=True)
    after = multiply(form, a, b, c)
    assert not after.findings
    np.testing.assert_array_equal(result_of(form, after), expected(form, a, b, c))


_SWIZZLES = (0, 32, 64, 128)
_TYPES = [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")]


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_every_width(columns: int) -> None:
    check_exact(Form(columns, *_TYPES[columns // 8 % 3]))


@pytest.mark.parametrize(("element", "accumulator"), _TYPES)
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("swizzle", _SWIZZLES)
@pytest.mark.parametrize("spread", [0, 1024])
def test_every_layout_of_a(swizzle: int, mn_major: bool, spread: int, element: str, accumulator: str) -> None:
    check_exact(Form(16, element, accumulator, a=Layout(swizzle, mn_major, spread)))


@pytest.mark.parametrize(("element", "accumulator"), _TYPES)
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("swizzle", _SWIZZLES)
@pytest.mark.parametrize("spread", [0, 1024])
def test_every_layout_of_b(swizzle: int, mn_major: bool, spread: int, element: str, accumulator: str) -> None:
    for columns in (24, 136):
        check_exact(Form(columns, element, accumulator, b=Layout(swizzle, mn_major, spread)))


@pytest.mark.parametrize(("element", "accumulator"), _TYPES)
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_signs_and_accumulation(
    element: str, accumulator: str, in_registers: bool, signs: tuple[int, int], accumulate: bool
) -> None:
    a = None if in_registers else Layout()
    check_exact(Form(32, element, accumulator, a=a, signs=signs, accumulate=accumulate))


@pytest.mark.parametrize(("element", "accumulator"), _TYPES)
def test_rounding(element: str, accumulator: str) -> None:
    form = Form(96, element, accumulator)
    a, b, c = operands(form, integers=False)
    exact = expected(form, a, b, c)
    magnitude = np.abs(values(a, element)) @ np.abs(values(b, element)).T + np.abs(values(c, accumulator))
    allowed = magnitude * 2.0**-24 * (_K + 1) + (np.abs(exact) * 2.0**-11 + 2.0**-25 if accumulator == "f16" else 0)
    assert (np.abs(result_of(form, multiply(form, a, b, c)) - exact) <= allowed).all()


def test_without_accumulation_the_old_sums_are_not_read() -> None:
    form = Form(16, accumulate=False)
    a, b, _ = operands(form, integers=True)
    nan = np.full((_ROWS, 16), 0x7FFFFFFF, np.uint32)
    np.testing.assert_array_equal(result_of(form, multiply(form, a, b, nan)), values(a, "f16") @ values(b, "f16").T)


class _Shifted(Layout):
    def place(self, tile: Array, start: int, operand: Array) -> int:
        return super().place(tile, start + 32, operand)


def test_a_descriptor_within_a_swizzled_line() -> None:
    """The second k step of a K-major tile begins 32 bytes into its lines; the pattern goes by addresses."""
    check_exact(Form(16, a=_Shifted(), b=_Shifted()))


@pytest.mark.parametrize("which", ["first", "second"])
def test_an_operand_outside_of_shared_memory(which: str) -> None:
    form = Form(16)
    a, b, c = operands(form, integers=True)
    far = 0x3F00 | 1 << 16 | 64 << 32 | 1 << 62
    after = multiply(form, a, b, c, **{which: far})
    assert "shared-out-of-bounds" in [kind for kind, _ in after.findings]
    assert np.isnan(result_of(form, after)).all()


def test_a_base_offset_is_refused() -> None:
    form = Form(16)
    a, b, c = operands(form, integers=True)
    after = multiply(form, a, b, c, first=1 << 16 | 64 << 32 | 1 << 49 | 1 << 62)
    assert [kind for kind, _ in after.findings] == ["unsupported"]


COLUMNS = 24
LAYOUTS = [Layout(swizzle, mn_major) for swizzle in (0, 32, 64, 128) for mn_major in (False, True)]
# The register of element (row, k) of a row-major 64 x 16 operand: warp row // 16, then as in mma.m16n8k16.
ROW, COLUMN, K = 43, 13, 11


def old_elements(form: Form, make_old: str, registers: dict[str, Array]) -> set[tuple[int, int]]:
    """Elements of the product that depend on what `make_old` puts into the operands."""
    tile = np.zeros(61440, np.uint8)
    zeros = np.zeros((64, 16), np.uint16), np.zeros((form.columns, 16), np.uint16)
    first = form.a.place(tile, 0, zeros[0]) if form.a else 0
    second = form.b.place(tile, _B_AT, zeros[1])
    given = {f"%d{i}": np.zeros(128, np.uint32) for i in range(form.registers)} | registers
    body = f"""
.reg .b16 %never; .reg .b32 %never32; .reg .f32 %old;
{make_old}
mov.u32 %x0, tile; shr.u32 %x0, %x0, 4; cvt.u64.u32 %y0, %x0; add.s64 %y1, %y0, {first}; add.s64 %y2, %y0, {second};
setp.ne.u32 %p0, {int(form.accumulate)}, 0;
fence.proxy.async; bar.sync 0;
wgmma.fence.sync.aligned; {form.statement()} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
"""
    after = run_statements(body, given, [f"%d{i}" for i in range(form.registers)], tile, threads=128, taint=True)
    assert [found for found in after.findings if "reach" in found[1]] == []
    found = set()
    for index in range(form.registers):
        for thread, of_bytes in enumerate(after.tainted[f"%d{index}"]):
            found |= {_place(form, index, thread, half) for half in range(4) if of_bytes[half]}
    return found


def _place(form: Form, index: int, thread: int, byte: int) -> tuple[int, int]:
    """Row and column of a byte of a thread's register. Source: PTX ISA, "Register Fragments for wgmma"."""
    if form.accumulator == "f32":
        block, half, odd = index // 4, index // 2 % 2, index % 2
    else:
        block, half, odd = index // 2, index % 2, byte // 2
    return thread // 32 * 16 + half * 8 + thread % 32 // 4, 8 * block + thread % 4 * 2 + odd


def address_of(layout: Layout, start: int, rows: int, row: int, k: int) -> int:
    plain = start + int(layout.offsets(rows)[row, k])
    return plain ^ (plain >> 3 & _XOR[layout.swizzle])


@pytest.mark.parametrize("accumulator", ["f32", "f16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_old_element_in_shared_memory(layout: Layout, accumulator: str) -> None:
    alone = "setp.eq.u32 %p1, %me, 0; @%p1 st.shared.b16 [tile+{}], %never;"
    form = Form(COLUMNS, accumulator=accumulator, a=layout)
    made = alone.format(address_of(layout, 0, 64, ROW, K))
    assert old_elements(form, made, {}) == {(ROW, column) for column in range(COLUMNS)}
    form = Form(COLUMNS, accumulator=accumulator, b=layout)
    made = alone.format(address_of(layout, _B_AT, COLUMNS, COLUMN, K))
    assert old_elements(form, made, {}) == {(row, COLUMN) for row in range(64)}


@pytest.mark.parametrize("thread", [0, 77])
def test_an_old_element_in_registers(thread: int) -> None:
    left = of_warpgroup([blocks_of_a(np.zeros((16, 16), np.uint16)) for _ in range(4)])
    registers = {f"%a{i}": each for i, each in enumerate(left)}
    made = f"setp.eq.u32 %p1, %me, {thread}; selp.b32 %a3, %never32, %a3, %p1;"
    row = thread // 32 * 16 + 8 + thread % 32 // 4
    assert old_elements(Form(COLUMNS, a=None), made, registers) == {(row, column) for column in range(COLUMNS)}


@pytest.mark.parametrize("accumulate", [True, False])
def test_an_old_sum_counts_where_it_is_added_to(accumulate: bool) -> None:
    made = "setp.eq.u32 %p1, %me, 77; selp.b32 %d2, %never32, %d2, %p1;"
    expected = {(2 * 16 + 8 + 77 % 32 // 4, 77 % 4 * 2)} if accumulate else set()
    assert old_elements(Form(COLUMNS, accumulate=accumulate), made, {}) == expected
