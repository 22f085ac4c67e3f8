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
) -> Launched:
    """Run entry `k` of a module on arrays, which its parameters point to and which it may write unless `read_only`."""
    program = lower(parse(HEADER + text), "k")
    machine = Machine()
    addresses = [
        machine.add(f"b{i}", array, writable=i not in read_only, written_bytes=0 if i in unwritten else None)
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
