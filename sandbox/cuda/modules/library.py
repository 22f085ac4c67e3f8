"""A plan's library calls, run by torch on the memory of the plan's buffers, on the launcher's stream."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import cupy
import torch

from cudal2_agent.contract.plan.library_call import LibraryCall, ResolvedCall
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.cuda.modules.tensors import allocating, view
from cudal2_agent.sandbox.cuda.tensor_map import named_buffers
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of, prepare, run_native


class TorchLibrary:
    """Binds the calls of one plan of one task. `device`: index of the GPU."""

    def __init__(self, task: ModuleTask, plan: ResolvedPlan, device: int) -> None:
        self._arithmetic, self._device = task.arithmetic, device
        self._buffers = named_buffers(task, plan.scratch)
        self._states = {buffer.name for buffer in task.buffers if buffer.role is Role.STATE}

    def bind(self, call: ResolvedCall, pointers: Mapping[str, int]) -> "BoundCall":
        names = {each.tensor for each in (*call.call.inputs, call.call.out)}
        tensors = {name: self._at(pointers[name], self._buffers[name]) for name in names}
        if call.call.out.tensor not in self._states:
            with _working(self._arithmetic):
                prepare(call.call, tensors)
        return BoundCall(call.call, tensors, self._arithmetic)

    def _at(self, pointer: int, buffer: Buffer) -> torch.Tensor:
        memory = cupy.cuda.UnownedMemory(pointer, max(buffer.bytes, 1), None, self._device)
        array = cupy.ndarray((max(buffer.bytes, 1),), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        return view(array, buffer)


class BoundCall:
    """One call with its tensors."""

    def __init__(self, call: LibraryCall, tensors: Mapping[str, torch.Tensor], arithmetic: Arithmetic) -> None:
        self._call, self._tensors, self._arithmetic = call, tensors, arithmetic

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (torch's is the worker's stream)
        with _working(self._arithmetic):
            run_native(self._call, self._tensors)


@contextmanager
def _working(arithmetic: Arithmetic) -> Iterator[None]:
    with torch.no_grad(), arithmetic_of(arithmetic), allocating():
        yield
