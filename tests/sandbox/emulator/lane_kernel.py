"""Small kernels: each thread loads one element of every input, executes a body of PTX, and stores its results."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine
from cudal2_agent.sandbox.emulator.ptx.parser import parse

Array = np.ndarray[Any, Any]
_REGISTERS = (
    ".reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<9>;\n.reg .b64 %l<9>;\n.reg .b64 %address;\n.reg .b64 %offset;\n"
)


def execute(body: str, inputs: Sequence[Array], outputs: Sequence[str], fill: int = 0) -> list[Array]:
    """The values of %d0, %d1, … of one CTA's threads, with the numpy types `outputs`; the inputs are in %a0, %a1, …

    `fill`: the byte that results hold before the body. Registers %p, %h, %r and %l from 0 to 8 are free for it.
    """
    threads = len(inputs[0])
    results = [np.zeros(threads, kind) for kind in outputs]
    machine, addresses = Machine(), []
    for index, array in enumerate((*inputs, *results)):
        addresses.append(
            machine.add(f"buffer{index}", array.copy() if index < len(inputs) else array, writable=index >= len(inputs))
        )
    text = _kernel(body, inputs, results, fill)
    grid = Grid((1, 1, 1), (threads, 1, 1), parameters=np.array(addresses, np.uint64).tobytes())
    outcome = machine.run(lower(parse(text), "test"), grid, Conditions(deadline_s=20.0))
    assert [(found.kind, found.message) for found in outcome.findings] == []
    return results


def lowered(body: str) -> object:
    """The program of a body without inputs and results."""
    return lower(parse(_kernel(body, (), (), 0)), "test")


def _kernel(body: str, inputs: Sequence[Array], results: Sequence[Array], fill: int) -> str:
    names = [f"%a{i}" for i in range(len(inputs))], [f"%d{i}" for i in range(len(results))]
    parameters = [f".param .u64 pointer{i}" for i in range(len(inputs) + len(results))]
    lines = [".version 9.0", ".target sm_90a", ".address_size 64"]
    lines += [f".visible .entry test({', '.join(parameters)}) {{", _REGISTERS]
    for name, array in zip([*names[0], *names[1]], (*inputs, *results), strict=True):
        lines.append(f".reg .b{8 * array.itemsize} {name};")
    for i, (name, array) in enumerate(zip(names[0], inputs, strict=True)):
        lines += [_address(i, array), f"ld.global.b{8 * array.itemsize} {name}, [%address];"]
    for name, array in zip(names[1], results, strict=True):
        lines.append(f"mov.b{8 * array.itemsize} {name}, {fill:#04x}{f'{fill:02x}' * (array.itemsize - 1)};")
    lines.append(body)
    for i, (name, array) in enumerate(zip(names[1], results, strict=True)):
        lines += [_address(len(inputs) + i, array), f"st.global.b{8 * array.itemsize} [%address], {name};"]
    return "\n".join([*lines, "ret;", "}"])


def _address(parameter: int, array: Array) -> str:
    return (
        f"ld.param.u64 %address, [pointer{parameter}]; mov.u32 %r0, %tid.x; mul.wide.u32 %offset, %r0, {array.itemsize};"
        " add.s64 %address, %address, %offset;"
    )
