"""A candidate on the emulated machine: its plan's launches and library calls, over named buffers in emulated memory."""

import copy
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.launching import argument_bytes, pack_argument, programmatic_edges, zeroes_every_run
from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan, TensorMapSpec
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.chain import OTHERS, Chain
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine, Order, SuspectRead, TensorMap, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.emulator.ptx.parser import parse

WORKSPACE = "workspace"  # beside the names of buffers
WARP_LANES = 32

# As PTX names the elements of a tensor map, where a buffer's element has another name.
_TENSOR_MAP_TYPES = {BufferElement.BOOL: "u8", BufferElement.I32: "s32", BufferElement.I64: "s64"}
MAX_NUMBER = 31  # of a launch in the core; later launches of a plan share it

Arrays = Mapping[str, np.ndarray]  # by buffer, in host memory, as the task and the plan lay them out; used in place
RunCall = Callable[[LibraryCall, Arrays], None]


class LaunchRefused(Exception):
    """A launch that a driver would refuse."""


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

    def __init__(self, name: str, ptx: str, plan: ResolvedPlan, task: Task, *, atomics: bool = False) -> None:
        self.name = name
        self.plan, self.task = plan, task
        self.atomics = atomics
        self.edges = programmatic_edges(plan)
        self.programmatic = any(self.edges)
        if any((2 * self.edges if self.edges[0] else self.edges)[MAX_NUMBER:]):
            raise Unsupported(f"programmatic launches behind the first {MAX_NUMBER} of a plan", 0)
        self.scratch = tuple(
            Buffer(name=each.name, shape=tuple(map(int, each.shape)), element=each.element, role=Role.OUTPUT)
            for each in plan.scratch
        )
        self.buffers = {each.name: each for each in (*task.buffers, *self.scratch)}
        self.outputs = tuple(each for each in task.buffers if each.role.written)
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

    @property
    def product(self) -> GemmTask:
        """The task of a kernel that is known to be a matrix product's."""
        assert isinstance(self.task, GemmTask)
        return self.task

    def bind(self, arrays: Arrays, seed: int | None = None, call: RunCall | None = None) -> "BoundKernel":
        """Fix the arrays, which are used in place. `seed`: of their addresses. `call`: runs the plan's library calls."""
        return BoundKernel(self, arrays, seed, call)


class BoundKernel:
    """Launches ready to run on a machine of their own; not to be run from two threads at once."""

    def __init__(self, kernel: EmulatedKernel, arrays: Arrays, seed: int | None = None, call: RunCall | None = None) -> None:
        """`arrays`: of every buffer of the task and the plan's scratch, and `WORKSPACE` where it has a size."""
        self.arrays = arrays
        self.machine = Machine(seed)
        self.kernel = kernel
        self._call = call
        for name, buffer in kernel.buffers.items():
            if buffer.role.written:
                piece_bytes = min(buffer.element.bytes, 2)
                self.machine.add(name, arrays[name], writable=True, written_bytes=_kept_bytes(buffer), piece_bytes=piece_bytes)
            else:
                self.machine.add(name, arrays[name])
        if arrays[WORKSPACE].size:
            self.machine.add(WORKSPACE, arrays[WORKSPACE], writable=True, written_bytes=0)
        self.called: dict[str, int] = {}  # how many launches preceded the last library call that wrote a buffer
        self._maps: dict[TensorMapSpec, bytes] = {}
        self._pack()

    def _pack(self) -> None:
        """The parameters for the buffers' present addresses."""
        plan, programs = self.kernel.plan, self.kernel.programs
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
        """Zero what the plan requires, then run every launch and call until one fails. Outputs, scratch and workspace count
        as unwritten.

        The buffers' addresses are drawn by the seed of the conditions. Preceding kernels may still run when a first launch
        with a programmatic edge begins.

        `ctas`: by launch, those whose clusters are run, none of a launch that is left out; all where empty. `poisoned`: by
        launch, reads that give poison. If a launch may outlive the run, because a later one does not wait, the run is
        followed by another, which leaves the outputs as they were.
        """
        self.machine.place(conditions.seed)
        self._pack()
        plan, launched, chain = self.kernel.plan, list[Launched](), Chain()
        if zeroes_every_run(plan):
            self.arrays[WORKSPACE][: plan.zero_bytes] = 0
        self.renew()
        left: dict[str, np.ndarray] = {}
        for index in range(2 * len(plan.launches)):
            at, again = index % len(plan.launches), index >= len(plan.launches)
            if not at and again:
                chain = self._calls(len(plan.launches), len(launched)) or chain
                if ctas or not self.kernel.edges[0] or not chain.left & ~OTHERS:
                    break
                if any(each.role is Role.STATE for each in self.kernel.outputs):
                    left = {each.name: self.arrays[each.name].copy() for each in self.kernel.outputs}
            chain = self._calls(at, len(launched)) or chain
            order = chain.next(min(index + 1, MAX_NUMBER), programmatic=self.kernel.edges[at])
            if ctas and not ctas[at]:
                chain.ended(order, waited=True, held=True)
                continue
            reads = poisoned[index] if poisoned is not None and index < len(poisoned) else ()
            outcome = self.machine.run(
                self.kernel.programs[at], self._grid(at, order), conditions, ctas=ctas[at] if ctas else (), poisoned=reads
            )
            # CTAs that were not run may have waited.
            chain.ended(order, waited=outcome.waited or bool(ctas), held=outcome.held or bool(ctas))
            launched.append(Launched(plan.launches[at], self.kernel.programs[at], outcome, again))
            if outcome.stopped:
                break
        for name, array in left.items():
            self.arrays[name][...] = array
        return tuple(launched)

    def _calls(self, before: int, launched: int) -> Chain | None:
        """Run the library calls that so many launches of the plan precede. Returns the order after them, None without any."""
        calls = [each.call for each in self.kernel.plan.calls if each.before == before]
        for call in calls:
            assert self._call is not None
            self._call(call, self.arrays)
            name = call.out.tensor
            self.machine.memory.renew(name, self.arrays[name].nbytes)
            self.called[name] = launched
        return Chain() if calls else None

    def run_part(self, index: int, conditions: Conditions, ctas: Sequence[int], *, traced: int = 0) -> core.RunReport:
        """The report of some CTAs of one launch, run alone on the present memory. `traced`: as for `Machine.run`."""
        program = self.kernel.programs[index]
        return self.machine.run(program, self._grid(index, Order(index + 1)), conditions, ctas=ctas, traced=traced)

    def renew(self) -> None:
        """Forget what was written to outputs, scratch and the workspace."""
        for name, buffer in self.kernel.buffers.items():
            if buffer.role.written:
                self.machine.memory.renew(name, _kept_bytes(buffer))
        self.machine.memory.renew(WORKSPACE, self.kernel.plan.zero_bytes)
        self.called = {}

    def _grid(self, index: int, order: Order) -> Grid:
        launch, arch = self.kernel.plan.launches[index], self.kernel.task.arch
        return Grid(
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_smem=launch.dynamic_smem,
            parameters=self._parameters[index],
            order=order,
            sms=self.kernel.plan.sms or REFERENCE_CHIPS[arch].sms,
            warp_slots=LIMITS[arch].max_threads_per_sm // WARP_LANES,
        )

    def _encode(self, spec: TensorMapSpec) -> bytes:
        """A tensor map follows its buffer, so that it is encoded once."""
        if spec not in self._maps:
            layout = map_layout(spec, self.kernel.buffers)
            element = _TENSOR_MAP_TYPES.get(layout.element, layout.element.value)
            tensor = TensorMap(element, layout.sizes, layout.strides, spec.box, spec.swizzle)
            self._maps[spec] = self.machine.map(self.machine.addresses[spec.of] + layout.offset_bytes, tensor)
        return self._maps[spec]


def _kept_bytes(buffer: Buffer) -> int:
    """How much of a buffer that may be written holds something before a run."""
    return buffer.bytes if buffer.role is Role.STATE else 0


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
