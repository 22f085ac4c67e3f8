"""A golden case on the emulated machine."""

import functools
from dataclasses import dataclass

import numpy as np

from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Interleaving, Machine, TensorMap, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.module import Module
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.sandbox.emulator.golden.case import Bytes, Case, Family
from tests.sandbox.emulator.golden.compiled import compile_family

MOST_INSTRUCTIONS = 1 << 20
_NUMBERS = 8


@dataclass(frozen=True)
class Replayed:
    """A case's output and the detectors' findings."""

    output: Bytes
    findings: tuple[str, ...]


class Programs:
    """The kernels of a family, each lowered on first use."""

    def __init__(self, family: Family) -> None:
        self._module: Module = parse(compile_family(family, "compute_90a").ptx)
        self.program = functools.cache(self._lower)

    def _lower(self, kernel: str) -> Program:
        return lower(self._module, kernel)


def run_case(case: Case, program: Program, given: Bytes, before: Bytes, interleaving: Interleaving) -> Replayed:
    """The output after a launch, from `before` on; all of it counts as written, as the recording copied it to the GPU."""
    machine, output = Machine(), before.copy()
    pointers = {"in": machine.add("in", given), "out": machine.add("out", output, writable=True)}
    numbers = np.zeros(_NUMBERS, np.int32)
    numbers[: len(case.numbers)] = case.numbers
    maps = (
        machine.map(pointers[spec.of] + spec.offset, TensorMap(spec.element, spec.sizes, spec.strides, spec.box, spec.swizzle))
        for spec in case.maps
    )
    values = [*(pointer.to_bytes(8, "little") for pointer in pointers.values()), numbers.tobytes(), *maps]
    grid = Grid(case.grid, case.block, case.cluster, case.smem, pack_parameters(program, values))
    outcome = machine.run(program, grid, Conditions(interleaving, most_instructions=MOST_INSTRUCTIONS))
    findings = tuple(f"{'suspect ' if one.suspect else ''}{one.kind}: {one.message}" for one in outcome.findings)
    return Replayed(output, findings)
