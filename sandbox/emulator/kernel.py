"""A candidate on the emulated machine: its plan's launches, over operands that lie in emulated memory."""

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.launching import argument_bytes, pack_argument, programmatic_edges, zeroes_every_run
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan, TensorMapSpec
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.emulator.chain import OTHERS, Chain
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine, Order, SuspectRead, TensorMap, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.emulator.ptx.parser import parse

_ELEMENT = {ElementType.F16: "f16", ElementType.BF16: "bf16"}
ELEMENT_BYTES = 2
WARP_LANES = 32


class LaunchRefused(Exception):
    """A launch that a driver would refuse."""


@dataclass(frozen=True)
class Operands:
    """Operands in host memory as bit patterns, laid out as the task says. Shape: a (M, K), b (K, N) or (N, K), d (M, N).

    `workspace`: bytes; of size 0 where the plan asks for none.
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray
    workspace: np.ndarray


@dataclass(frozen=True)
class Launched:
    """One launch that was run. `outcome`: the core's report. `again`: in the run that follows."""

    launch: ResolvedLaunch
    program: Program
    outcome: core.RunReport
    again: bool = False


class EmulatedKernel:
    """A candidate's programs and plan.

    Raises: PtxError, Unsupported where the emulator cannot read or execute the PTX; LaunchRefused where an entry takes other
    parameters than its plan passes.
    """

    def __init__(self, name: str, ptx: str, plan: ResolvedPlan, task: GemmTask, *, atomics: bool = False) -> None:
        self.name = name
        self.plan, self.task = plan, task
        self.atomics = atomics
        self.programmatic = any(programmatic_edges(plan))
        self.zero: bool | Literal["restored"] = plan.zero
        entries = dict.fromkeys(launch.entry for launch in plan.launches)
        with _collector_paused():
            module = parse(ptx)
            try:
                programs = {entry: lower(module, entry) for entry in entries}
            except ValueError as exc:  # the core's: more memory than it gives a program
                raise Unsupported(f"a kernel that does not fit: {exc}", 0) from exc
        self.programs = tuple(programs[launch.entry] for launch in plan.launches)
        for launch, program in zip(plan.launches, self.programs, strict=True):
            _check_parameters(launch, program)

    def launched_by(self, plan: ResolvedPlan) -> "EmulatedKernel":
        """The same programs under another resolution of their plan."""
        other = copy.copy(self)
        other.plan = plan
        return other

    def bind(self, operands: Operands, seed: int | None = None) -> "BoundKernel":
        """Fix the operands; arrays are used in place. `seed`: of their addresses."""
        return BoundKernel(self, operands, seed)


class BoundKernel:
    """Launches ready to run on a machine of their own; not to be run from two threads at once."""

    def __init__(self, kernel: EmulatedKernel, operands: Operands, seed: int | None = None) -> None:
        self.operands = operands
        self.machine = Machine(seed)
        self._kernel = kernel
        self._edges = programmatic_edges(kernel.plan)
        self.machine.add("A", operands.a)
        self.machine.add("B", operands.b)
        self.machine.add("D", operands.d, writable=True, written_bytes=0)
        if operands.workspace.size:
            self.machine.add("workspace", operands.workspace, writable=True, written_bytes=0)
        self._maps: dict[TensorMapSpec, bytes] = {}
        self._pack()

    def _pack(self) -> None:
        """The parameters for the buffers' present addresses."""
        plan, programs = self._kernel.plan, self._kernel.programs
        self._parameters = [
            pack_parameters(program, [pack_argument(arg, self.machine.addresses, self._encode) for arg in launch.args])
            for launch, program in zip(plan.launches, programs, strict=True)
        ]

    def run(
        self,
        conditions: Conditions,
        *,
        ctas: Sequence[Sequence[int]] = (),
        poisoned: Sequence[Sequence[SuspectRead]] | None = None,
    ) -> tuple[Launched, ...]:
        """Zero what the plan requires, then run every launch until one fails. D and workspace count as unwritten.

        The buffers' addresses are drawn by the seed of the conditions. Preceding kernels may still run when a first launch
        with a programmatic edge begins.

        `ctas`: by launch, those whose clusters are run, none of a launch that is left out; all where empty. `poisoned`: by
        launch, reads that give poison. If a launch may outlive the run, because a later one does not wait, the run is
        followed by another.
        """
        self.machine.place(conditions.seed)
        self._pack()
        plan, launched, chain = self._kernel.plan, list[Launched](), Chain()
        if zeroes_every_run(plan):
            self.operands.workspace[: plan.zero_bytes] = 0
        self.renew()
        for index in range(2 * len(plan.launches)):
            at, again = index % len(plan.launches), index >= len(plan.launches)
            if again and not (at or (not ctas and self._edges[0] and chain.left & ~OTHERS)):
                break
            order = chain.next(index + 1, programmatic=self._edges[at])
            if ctas and not ctas[at]:
                chain.ended(order, waited=True, held=True)
                continue
            reads = poisoned[index] if poisoned is not None and index < len(poisoned) else ()
            outcome = self.machine.run(
                self._kernel.programs[at], self._grid(at, order), conditions, ctas=ctas[at] if ctas else (), poisoned=reads
            )
            # CTAs that were not run may have waited.
            chain.ended(order, waited=outcome.waited or bool(ctas), held=outcome.held or bool(ctas))
            launched.append(Launched(plan.launches[at], self._kernel.programs[at], outcome, again))
            if outcome.stopped:
                break
        return tuple(launched)

    def run_part(self, index: int, conditions: Conditions, ctas: Sequence[int], *, traced: int = 0) -> core.RunReport:
        """The report of some CTAs of one launch, run alone on the present memory. `traced`: as for `Machine.run`."""
        program = self._kernel.programs[index]
        return self.machine.run(program, self._grid(index, Order(index + 1)), conditions, ctas=ctas, traced=traced)

    def renew(self) -> None:
        """Forget what was written to D and the workspace."""
        self.machine.memory.renew("D", 0)
        self.machine.memory.renew("workspace", self._kernel.plan.zero_bytes)

    def _grid(self, index: int, order: Order) -> Grid:
        launch, arch = self._kernel.plan.launches[index], self._kernel.task.arch
        return Grid(
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_smem=launch.dynamic_smem,
            parameters=self._parameters[index],
            order=order,
            sms=self._kernel.plan.sms or REFERENCE_CHIPS[arch].sms,
            warp_slots=LIMITS[arch].max_threads_per_sm // WARP_LANES,
        )

    def _encode(self, spec: TensorMapSpec) -> bytes:
        """A tensor map follows its buffer, so that it is encoded once."""
        if spec not in self._maps:
            rows, columns = operand_shape(self._kernel.task, spec.of)
            element = _ELEMENT[self._kernel.task.element]
            sizes, strides = [columns, rows], [columns * ELEMENT_BYTES]
            tensor = TensorMap(element, sizes, strides, spec.box, spec.swizzle)
            self._maps[spec] = self.machine.map(self.machine.addresses[spec.of], tensor)
        return self._maps[spec]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Reading PTX makes many thousand objects at once, for which the collector would look through the process several times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_parameters(launch: ResolvedLaunch, program: Program) -> None:
    planned, declared = [argument_bytes(arg) for arg in launch.args], [size for _, size in program.parameters]
    if planned != declared:
        raise LaunchRefused(f"{launch.entry} takes parameters of {declared} bytes; its plan passes {planned}")
