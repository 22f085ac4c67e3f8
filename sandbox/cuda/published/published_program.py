"""An instance of a published module as a program: input tensors in, output tensors out, on torch's current stream."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from cudal2_agent.sandbox.cuda.modules.tensors import allocating
from cudal2_agent.sandbox.cuda.modules.torch_baselines import BoundProgram, tensors_of
from cudal2_agent.sandbox.cuda.published.instances import Instance, with_tensors
from cudal2_agent.sandbox.cuda.published.switches import Switches

CALL, GRAPH = "published", "published-cuda-graph"


class InstanceProgram:
    """Calls a module with the problem's arguments. `joins`: whether a call ends when no stream has work left."""

    def __init__(self, model: torch.nn.Module, arguments: Sequence[Any], *, joins: bool = False) -> None:
        self._model, self._arguments, self._joins = model, arguments, joins
        self._plain = all(isinstance(each, torch.Tensor) for each in arguments)

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        result = self._model(*(inputs if self._plain else with_tensors(self._arguments, inputs)))
        if self._joins and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        if isinstance(result, torch.Tensor):
            return (result,)
        return [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]


class PublishedContender(LibraryContender):
    """One instance for every set of values. `streamed`: as `ModuleBaseline` has it."""

    def __init__(
        self,
        task: ModuleTask,
        programs: Callable[[Instance], InstanceProgram],
        instances: Sequence[Instance],
        switches: Switches,
        *,
        streamed: bool,
    ) -> None:
        super().__init__(CALL if streamed else GRAPH, "each call alone" if streamed else "in a CUDA graph")
        self.streamed = streamed
        self._task, self._switches = task, switches
        self._programs = [programs(each) for each in instances]

    def bind(self, operands: NamedOperands) -> BoundProgram:
        inputs = tensors_of(self._task, operands.arrays, input_names(self._task))
        targets = tensors_of(self._task, operands.arrays, output_names(self._task))
        program = self._programs[operands.number]
        return BoundProgram(program, inputs, targets, self._switches.calling, _allocating_in_capture)


def _allocating_in_capture() -> contextlib.AbstractContextManager[Any]:
    """The pool of graphs while one is captured. Elsewhere a module may capture a graph of its own, whose memory must stay."""
    return allocating() if torch.cuda.is_current_stream_capturing() else contextlib.nullcontext()


def input_names(task: ModuleTask) -> list[str]:
    return [buffer.name for buffer in task.buffers if buffer.role is Role.INPUT]


def output_names(task: ModuleTask) -> list[str]:
    return [buffer.name for buffer in task.buffers if buffer.role is Role.OUTPUT]


def without_states(task: ModuleTask) -> ModuleTask:
    """The task whose states are only read: what an unknown module keeps of them cannot be told from outside."""
    buffers = tuple(
        buffer.model_copy(update={"role": Role.PARAMETER}) if buffer.role is Role.STATE else buffer for buffer in task.buffers
    )
    names = {buffer.name for buffer in buffers if buffer.role.written}
    outputs = {name: value for name, value in task.graph.outputs.items() if name in names}
    return task.model_copy(update={"buffers": buffers, "graph": task.graph.model_copy(update={"outputs": outputs})})
