"""Small kernels run on the emulated machine: PTX text and numpy arrays in, findings out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Interleaving, Machine, Triple, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.parser import parse

Array = np.ndarray[Any, Any]
HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"
_REGISTERS = (
    ".reg .pred %p<4>; .reg .b16 %h<20>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<20>; .reg .f64 %fd<20>;"
    ".reg .b32 %me; .reg .b64 %wide, %a<4>;"
)


@dataclass(frozen=True)
class Launched:
    """The result of a run. `stopped`: whether it ended early. `tainted`: tainted ranges of the first buffer."""

    findings: tuple[Any, ...]
    stopped: bool
    tainted: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.findings]


def kernel(body: str, buffers: int, variables: str = "") -> str:
    """An entry `k`: %a0, %a1 … are the addresses of the buffers, %me and %wide the thread."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(buffers))
    loads = "".join(f"ld.param.u64 %a{i}, [p{i}];" for i in range(buffers))
    prologue = f"{_REGISTERS}{variables}{loads} mov.u32 %me, %tid.x; cvt.u64.u32 %wide, %me;"
    return f".visible .entry k({parameters})\n{{\n{prologue}\n{body}\nret;\n}}\n"


def launch(
    text: str,
    *arrays: Array,
    read_only: Sequence[int] = (),
    unwritten: Sequence[int] = (),
    grid: Triple = (1, 1, 1),
    block: Triple = (32, 1, 1),
    cluster: Triple = (1, 1, 1),
    dynamic_smem: int = 0,
    races: bool = True,
    taint: bool = False,
    interleaving: Interleaving = Interleaving.LATEST,
    seed: int = 0,
    most_instructions: int = 1_000_000,
    deadline_s: float = 0.0,
    sms: int = 132,
    piece_bytes: int = 2,
) -> Launched:
    """Run entry `k` of a module on arrays, which its parameters point to and which it may write unless `read_only`."""
    program = lower(parse(HEADER + text), "k")
    machine = Machine()
    addresses = [
        machine.add(
            f"b{i}",
            array,
            writable=i not in read_only,
            written_bytes=0 if i in unwritten else None,
            piece_bytes=piece_bytes,
        )
        for i, array in enumerate(arrays)
    ]
    parameters = pack_parameters(program, [address.to_bytes(8, "little") for address in addresses])
    outcome = machine.run(
        program,
        Grid(grid=grid, block=block, cluster=cluster, dynamic_smem=dynamic_smem, parameters=parameters, sms=sms),
        Conditions(
            interleaving=interleaving,
            seed=seed,
            races=races,
            taint=taint,
            most_instructions=most_instructions,
            deadline_s=deadline_s,
        ),
    )
    return Launched(tuple(outcome.findings), outcome.stopped, tuple(machine.memory.tainted("b0")))


# Small kernels: each thread loads one element of every input, executes a body of PTX, and stores its results.
_LANE_REGISTERS = (
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
    text = _lane_kernel(body, inputs, results, fill)
    grid = Grid((1, 1, 1), (threads, 1, 1), parameters=np.array(addresses, np.uint64).tobytes())
    outcome = machine.run(lower(parse(text), "test"), grid, Conditions(deadline_s=20.0))
    assert [(found.kind, found.message) for found in outcome.findings] == []
    return results


def lowered(body: str) -> object:
    """The program of a body without inputs and results."""
    return lower(parse(_lane_kernel(body, (), (), 0)), "test")


def _lane_kernel(body: str, inputs: Sequence[Array], results: Sequence[Array], fill: int) -> str:
    names = [f"%a{i}" for i in range(len(inputs))], [f"%d{i}" for i in range(len(results))]
    parameters = [f".param .u64 pointer{i}" for i in range(len(inputs) + len(results))]
    lines = [".version 9.0", ".target sm_90a", ".address_size 64"]
    lines += [f".visible .entry test({', '.join(parameters)}) {{", _LANE_REGISTERS]
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
