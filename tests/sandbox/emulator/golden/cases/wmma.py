"""Cases of wmma: every shape, type and layout."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.products import operand, product, to_bits, to_values

Array = np.ndarray[Any, Any]
_SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
_TYPES = (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))
_LAYOUTS = ("row", "col")


def wmma_family() -> Family:
    """D = A·B + C in memory, and the fragments of a lane. Output: D, then registers of A and B as [register][lane].

    in: A, B, C; rows (or columns) of A and B are padded by 8 elements. C and D are stored alike.
    """
    combinations = list(itertools.product(_SHAPES, _TYPES, _LAYOUTS, _LAYOUTS))
    parts = [_Part(shape, *types, (a, b, "row" if a == b else "col")) for shape, types, a, b in combinations]
    source = '#include "golden.cuh"\n\n' + "\n".join(_kernel(part) for part in parts)
    return Family("wmma", source, tuple(_case(part) for part in parts))


@dataclass(frozen=True)
class _Part:
    """One form of the three instructions. Layouts of A, B, and C with D."""

    shape: tuple[int, int, int]
    element: str
    accumulator: str
    layouts: tuple[str, str, str]

    @property
    def kernel(self) -> str:
        m, n, k = self.shape
        return f"wmma_m{m}n{n}k{k}_{self.element}_{self.accumulator}_{'_'.join(self.layouts)}"

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers per lane of A, B and C. f16 operands always take eight registers, bf16 operands as many as they need."""
        m, n, _ = self.shape
        operands = (8, 8) if self.element == "f16" else (m // 4, n // 4)
        return *operands, 8 if self.accumulator == "f32" else 4

    @property
    def padded(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of A and B in memory."""
        m, n, k = self.shape
        return _padded(m, k, self.layouts[0]), _padded(k, n, self.layouts[1])


def _kernel(part: _Part) -> str:
    m, n, k = part.shape
    shape, (a, b, c) = f"m{m}n{n}k{k}", part.layouts
    starts = [0, 2 * int(np.prod(part.padded[0]))]
    starts.append(starts[1] + 2 * int(np.prod(part.padded[1])))
    counts, c_letter = part.registers, "f" if part.accumulator == "f32" else "r"
    c_type, lead = ("float" if c_letter == "f" else "unsigned"), n if c == "row" else m
    d_bytes = m * n * (4 if c_letter == "f" else 2)
    types = f"{part.accumulator}.{part.accumulator}" if part.element == "f16" else "f32.bf16.bf16.f32"
    a_list, b_list, c_list = (_list(0, count) for count in counts)
    loads = [
        (f"wmma.load.a.sync.aligned.{a}.{shape}.global.{part.element}", "a", "r", starts[0], part.padded[0][1]),
        (f"wmma.load.b.sync.aligned.{b}.{shape}.global.{part.element}", "b", "r", starts[1], part.padded[1][1]),
        (f"wmma.load.c.sync.aligned.{c}.{shape}.global.{part.accumulator}", "c", c_letter, starts[2], lead),
    ]
    lists = (a_list, b_list, c_list)
    lines = [
        f'  asm volatile("{opcode} {listed}, [%{count}], %{count + 1};" : {_outs(name, letter, count)} '
        f': "l"(in + {start}), "r"({step}));'
        for (opcode, name, letter, start, step), listed, count in zip(loads, lists, counts, strict=True)
    ]
    d = _list(0, counts[2])
    operands = f"{_list(counts[2], counts[0])}, {_list(counts[2] + counts[0], counts[1])}, {d}"
    signature = f"wmma.mma.sync.aligned.{a}.{b}.{shape}.{types}"
    ins = ", ".join([f'"r"(a[{i}])' for i in range(counts[0])] + [f'"r"(b[{i}])' for i in range(counts[1])])
    lines.append(f'  asm volatile("{signature} {d}, {operands};" : {_outs("c", c_letter, counts[2], "+")} : {ins});')
    stored = ", ".join(f'"{c_letter}"(c[{i}])' for i in range(counts[2]))
    opcode = f"wmma.store.d.sync.aligned.{c}.{shape}.global.{part.accumulator}"
    lines.append(f'  asm volatile("{opcode} [%0], {_list(2, counts[2])}, %1;" ::"l"(out), "r"({lead}), {stored} : "memory");')
    return (
        f"GOLDEN({part.kernel}) {{\n  unsigned a[{counts[0]}], b[{counts[1]}];\n  {c_type} c[{counts[2]}];\n"
        + "\n".join(lines)
        + f"\n  unsigned* lanes = (unsigned*)(out + {d_bytes}) + threadIdx.x;\n"
        + f"  for (int i = 0; i < {counts[0]}; ++i) lanes[32 * i] = a[i];\n"
        + f"  for (int i = 0; i < {counts[1]}; ++i) lanes[32 * ({counts[0]} + i)] = b[i];\n}}\n"
    )


def _list(start: int, count: int) -> str:
    return "{" + ",".join(f"%{start + i}" for i in range(count)) + "}"


def _outs(name: str, letter: str, count: int, sign: str = "=") -> str:
    return ", ".join(f'"{sign}{letter}"({name}[{i}])' for i in range(count))


def _case(part: _Part) -> Case:
    """Integers, so that the sum is exact in any order."""
    (m, n, _), sizes, accumulator = part.shape, part.padded, part.accumulator
    d_bytes = m * n * (4 if accumulator == "f32" else 2)
    lane_bytes = 128 * sum(part.registers[:2])

    def build(draw: Draw) -> Buffers:
        matrices = [operand(draw, rows * columns, part.element, "integers") for rows, columns in sizes]
        return raw(*matrices, operand(draw, m * n, accumulator, "integers")), unwritten(d_bytes + lane_bytes)

    def expected(given: Bytes, _: Bytes) -> Bytes:
        """D only. The lane of each element is recorded, because no document defines it."""
        counts = [rows * columns * 2 for rows, columns in sizes]
        a, b, c = np.split(given, np.cumsum(counts))
        left = to_values(a.view(np.uint16), part.element).reshape(sizes[0])[:, :-8]
        right = to_values(b.view(np.uint16), part.element).reshape(sizes[1])[:, :-8]
        add = to_values(c.view(np.uint32 if accumulator == "f32" else np.uint16), accumulator)
        added = add.reshape(m, n) if part.layouts[2] == "row" else add.reshape(n, m).T
        result, _ = product(_upright(left, part.layouts[0]), _upright(right, part.layouts[1]), added)
        return raw(to_bits(np.ascontiguousarray(_upright(result, part.layouts[2])), accumulator))

    return Case(f"wmma/{part.kernel.removeprefix('wmma_')}", part.kernel, build, expected=expected)


def _padded(rows: int, columns: int, layout: str) -> tuple[int, int]:
    return (rows, columns + 8) if layout == "row" else (columns, rows + 8)


def _upright(matrix: Array, layout: str) -> Array:
    return matrix if layout == "row" else matrix.T
