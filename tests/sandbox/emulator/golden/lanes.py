"""Lane-wise opcodes: a form is an opcode with operand widths, and becomes one kernel and one case."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, Within, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.exact import FORMATS

Array = np.ndarray[Any, Any]
COUNT = 512
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}
_LETTER = {16: "h", 32: "r", 64: "l"}
_TYPE = {16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}


@dataclass(frozen=True)
class Form:
    """One opcode. `kinds`: what the operands are filled with. `body`: the statements, where not `opcode %0, %1, ...`.

    `ulps`: tolerance between recorded and emulated results in units in the last place; None if bits must agree.
    """

    opcode: str
    out: str
    kinds: tuple[str, ...]
    reference: Callable[..., Array] | None = None
    body: str = ""
    ulps: float | None = None
    absolute: float = 0.0

    @property
    def kernel(self) -> str:
        return re.sub(r"\W+", "_", self.opcode).strip("_")


def width_of(kind: str) -> int:
    return _WIDTH.get(kind) or int(kind[1:])


def lane_family(name: str, forms: Sequence[Form]) -> Family:
    """The family of some forms: one kernel per form, one row per thread."""
    source = '#include "golden.cuh"\n\n' + "\n".join(_kernel(form) for form in forms)
    return Family(name, source, tuple(_case(name, form) for form in forms))


def _kernel(form: Form) -> str:
    widths = [width_of(kind) for kind in form.kinds]
    starts = [sum(widths[:at]) // 8 * COUNT for at in range(len(widths))]
    operands = "".join(f", %{at + 1}" for at in range(len(widths)))
    body = form.body or f"{form.opcode} %0{operands};"
    inputs = ", ".join(
        f'"{_LETTER[width]}"(((const {_TYPE[width]}*)(in + {start}))[i])' for width, start in zip(widths, starts, strict=True)
    )
    width = width_of(form.out)
    return (
        f"GOLDEN({form.kernel}) {{\n  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  {_TYPE[width]} d;\n"
        f'  asm volatile("{body}" : "={_LETTER[width]}"(d) : {inputs} : "memory");\n'
        f"  (({_TYPE[width]}*)out)[i] = d;\n}}\n"
    )


def _case(family: str, form: Form) -> Case:
    width = width_of(form.out)

    def build(draw: Draw) -> Buffers:
        columns = [draw.column(kind, COUNT, turn) for turn, kind in enumerate(form.kinds)]
        return raw(*columns), unwritten(COUNT * width // 8)

    def expected(given: Bytes, _: Bytes) -> Bytes:
        assert form.reference is not None
        return raw(form.reference(*columns_of(form, given)).astype(f"u{width // 8}"))

    def slack(_: Bytes, recorded: Bytes) -> Array:
        return _ulps(recorded, form.out, form.ulps or 0.0) + form.absolute

    approximate = form.ulps is not None
    return Case(
        name=f"{family}/{form.opcode}",
        kernel=form.kernel,
        build=build,
        grid=(COUNT // 128, 1, 1),
        block=(128, 1, 1),
        comparison=Within(form.out, slack, f"{form.ulps} ulp + {form.absolute}") if approximate else None,  # type: ignore[arg-type]
        expected=expected if form.reference else None,
        expected_element=form.out,
        check=slack if approximate else None,
    )


def columns_of(form: Form, given: Bytes) -> list[Array]:
    columns, start = [], 0
    for kind in form.kinds:
        size = width_of(kind) // 8 * COUNT
        columns.append(given[start : start + size].view(f"u{width_of(kind) // 8}"))
        start += size
    return columns


def _ulps(recorded: Bytes, kind: str, count: float) -> Array:
    """A tolerance in units in the last place of recorded values."""
    form = FORMATS[kind.removesuffix("x2")]
    bits = recorded.view(f"u{form.width // 8}").astype(np.int64)
    exponent = np.maximum((bits >> form.mantissa) & ((1 << (form.width - 1 - form.mantissa)) - 1), 1)
    power = np.minimum(exponent - form.bias - form.mantissa, 127 - form.mantissa).astype(np.int32)
    return np.asarray(np.ldexp(np.float64(count), power))
