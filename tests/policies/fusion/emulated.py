"""Runs a candidate for a small module on the emulator, in numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.launching import pack_argument
from cudal2_agent.contract.plan.library_call import LibraryCall, View
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.sandbox.emulator.compiled import PtxCompiler

Array = np.ndarray[Any, Any]
_TYPES = {
    BufferElement.F16: np.float16,
    BufferElement.F32: np.float32,
    BufferElement.F64: np.float64,
    BufferElement.I64: np.int64,
    BufferElement.I32: np.int32,
    BufferElement.BOOL: np.uint8,
}


def inputs_of(task: ModuleTask, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every buffer but the output."""
    random = np.random.default_rng(seed)
    return {
        each.name: random.normal(size=each.shape).astype(_TYPES[each.element]) for each in task.buffers if each.name != "out"
    }


def emulated(
    candidate: Candidate, task: ModuleTask, inputs: Mapping[str, Array], compiler: PtxCompiler, seed: int = 0
) -> dict[str, Array]:
    """The buffers after the plan, with races detected; of the library with `mm` and `bmm`. `seed`: of the order of CTAs."""
    plan = resolve(candidate.plan, task, LIMITS[task.arch], sms=132)
    module, machine, arrays = parse(compiler.compile(candidate, task.arch)), Machine(1), dict[str, Array]()
    for buffer in (*task.buffers, *plan.scratch):
        shape = tuple(int(size) for size in buffer.shape)
        array = np.array(inputs[buffer.name]) if buffer.name in inputs else np.full(shape, 7, _TYPES[buffer.element])
        arrays[buffer.name] = np.ascontiguousarray(array.reshape(shape or (1,)))
        written = None if buffer.name in inputs else 0
        machine.add(buffer.name, arrays[buffer.name], writable=buffer.name not in inputs, written_bytes=written)
    calls = list(plan.calls)
    for at, launch in enumerate(plan.launches):
        while calls and calls[0].before <= at:
            _call(calls.pop(0).call, arrays)
            machine.memory.renew(plan.calls[len(plan.calls) - len(calls) - 1].call.out.tensor, 1 << 40)
        program = lower(module, launch.entry)
        packed = pack_parameters(program, [pack_argument(arg, machine.addresses, lambda _: b"") for arg in launch.args])
        report = machine.run(
            program,
            Grid(launch.grid, launch.block, cluster=launch.cluster, dynamic_smem=launch.dynamic_smem, parameters=packed),
            Conditions(seed=seed + at),
        )
        assert not report.findings, report.findings[0].message
    for each in calls:
        _call(each.call, arrays)
    return arrays


def _call(call: LibraryCall, arrays: Mapping[str, Array]) -> None:
    assert call.call in ("mm", "bmm")
    left, right = (_viewed(view, arrays).astype(np.float64) for view in call.inputs)
    out = arrays[call.out.tensor]
    out[...] = (left @ right).reshape(out.shape)


def _viewed(view: View, arrays: Mapping[str, Array]) -> Array:
    array = arrays[view.tensor].reshape([int(size) for size in view.shape or arrays[view.tensor].shape])
    return array.transpose(view.permute) if view.permute else array
