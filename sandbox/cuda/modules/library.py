"""A plan's library calls, run by torch on the memory of the plan's buffers, on the launcher's stream."""

from collections.abc import Mapping

import cupy
import torch

from cudal2_agent.contract.plan.library_call import LibraryCall, ResolvedCall
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer
from cudal2_agent.sandbox.cuda.modules.tensors import allocating, view
from cudal2_agent.sandbox.cuda.tensor_map import named_buffers
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of, operands_of, run_native


class TorchLibrary:
    """Binds the calls of one plan of one task. `device`: index of the GPU."""

    def __init__(self, task: ModuleTask, plan: ResolvedPlan, device: int) -> None:
        self._arithmetic, self._device = task.arithmetic, device
        self._buffers = named_buffers(task, plan.scratch)

    def bind(self, call: ResolvedCall, pointers: Mapping[str, int]) -> "BoundCall":
        names = {each.tensor for each in (*call.call.inputs, call.call.out)}
        tensors = {name: self._at(pointers[name], self._buffers[name]) for name in names}
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
        with torch.no_grad(), arithmetic_of(self._arithmetic), allocating():
            if not _by_cudnn(self._call, self._tensors, tf32=self._arithmetic is Arithmetic.TF32):
                run_native(self._call, self._tensors)


def _by_cudnn(call: LibraryCall, tensors: Mapping[str, torch.Tensor], *, tf32: bool) -> bool:
    """A convolution straight into `out`, where PyTorch takes cuDNN for it too; elsewhere False, and nothing was done.

    PyTorch's own function would allocate the result, and it would have to be copied.
    """
    if call.call != "conv" or not hasattr(torch.ops.aten.cudnn_convolution, "out"):
        return False
    (x, weight, *bias), out = operands_of(call, tensors)
    spatial = x.dim() - 2
    stride, dilation = call.stride or (1,) * spatial, call.dilation or (1,) * spatial
    padding = call.padding or (0,) * spatial
    chosen = torch._C._select_conv_backend(
        x, weight, bias[0] if bias else None, stride, padding, dilation, False, (0,) * spatial, call.groups
    )
    if chosen is not torch._C._ConvBackend.Cudnn:
        return False
    torch.ops.aten.cudnn_convolution.out(x, weight, padding, stride, dilation, call.groups, False, False, tf32, out=out)
    if bias:
        out.add_(bias[0].reshape(1, -1, *[1] * spatial))
    return True
