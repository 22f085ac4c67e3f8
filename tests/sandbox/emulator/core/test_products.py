"""A tainted operand element taints exactly its row or column of a warpgroup's product."""

from typing import Any

import numpy as np
import pytest

from tests.sandbox.emulator.core.fragments import blocks_of_a
from tests.sandbox.emulator.core.test_wgmma import _B_AT, _XOR, Form, Layout, of_warpgroup
from tests.sandbox.emulator.registers import run_statements

Array = np.ndarray[Any, Any]
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
