"""Every special opcode propagates taint: outputs that depend on old contents are tainted, or a fault is reported."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.program import Program
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Interleaving, Machine, TensorMap, pack_parameters
from tests.sandbox.emulator.golden.case import Bytes, Case
from tests.sandbox.emulator.golden.families import families, family
from tests.sandbox.emulator.golden.replay import MOST_INSTRUCTIONS
from tests.sandbox.emulator.golden.test_replay import programs_of

NAMES = [one.name for one in families()]
PIECE = 128  # bytes; no access crosses a multiple of it
INTERLEAVINGS = (Interleaving.LATEST, Interleaving.EAGER)


@dataclass(frozen=True)
class Followed:
    """`tainted`: one flag per byte of the output. `faults`: findings about old contents."""

    output: Bytes
    tainted: np.ndarray
    faults: Sequence[str]


def follow(case: Case, program: Program, given: Bytes, before: Bytes, known: int, conditions: Conditions) -> Followed:
    """A case whose input is old from byte `known` on."""
    machine, output = Machine(), before.copy()
    pointers = {
        "in": machine.add("in", given, writable=True, written_bytes=known),
        "out": machine.add("out", output, writable=True),
    }
    numbers = np.zeros(8, np.int32)
    numbers[: len(case.numbers)] = case.numbers
    maps = (
        machine.map(pointers[spec.of] + spec.offset, TensorMap(spec.element, spec.sizes, spec.strides, spec.box, spec.swizzle))
        for spec in case.maps
    )
    values = [*(pointer.to_bytes(8, "little") for pointer in pointers.values()), numbers.tobytes(), *maps]
    grid = Grid(case.grid, case.block, case.cluster, case.smem, pack_parameters(program, values))
    outcome = machine.run(program, grid, conditions)
    tainted = np.zeros(output.nbytes, bool)
    for offset, size, _, _ in machine.memory.tainted("out"):
        tainted[offset : offset + size] = True
    return Followed(output.view(np.uint8).reshape(-1), tainted, [one.message for one in outcome.findings if not one.suspect])


@pytest.mark.parametrize("name", NAMES)
def test_what_old_contents_change_is_tainted(name: str) -> None:
    one, draw = family(name), np.random.default_rng(5)
    missed, changed = [], 0
    for number, case in enumerate(one.cases):
        given, before = case.buffers()
        known = given.nbytes // 2 // PIECE * PIECE
        other = given.copy()
        flat = other.view(np.uint8).reshape(-1)
        flat[known:] = draw.integers(0, 256, flat.size - known)
        interleaving, program = INTERLEAVINGS[number % len(INTERLEAVINGS)], programs_of(name).program(case.kernel)
        first, second = (
            follow(
                case,
                program,
                data,
                before,
                known,
                Conditions(interleaving, taint=True, poison=poison, most_instructions=MOST_INSTRUCTIONS),
            )
            for data, poison in ((given, 0xFF), (other, 0x3C))
        )
        differs = first.output != second.output
        changed += int(differs.any())
        if not first.faults and (differs & ~first.tainted).any():
            missed.append(
                f"{case.name}: {int((differs & ~first.tainted).sum())} bytes from {int(np.argmax(differs & ~first.tainted))}"
            )
    assert missed == []
    assert changed or name in ("barriers", "mbarriers"), "no case depends on its input"
