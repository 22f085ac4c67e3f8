"""torch.matmul over views of the same buffers, torch.addmm for a task with a bias; with an activation, that behind it."""

from typing import Any

from cudal2_agent.contract.records.evaluation import TORCH
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.baselines.torch_tensors import activate, tensor_of, torch_stream, torch_with_gpu
from cudal2_agent.sandbox.cuda.contender import Operands


class TorchMatmul(LibraryContender):
    """`torch.matmul(a, b, out=d)` in the task's layout, `torch.addmm(bias, a, b, out=d)` with a bias.

    f32: sums between splits of K may not be rounded to half precision. f16: torch is allowed f16 accumulators, which it
    offers from 2.7 on; it chooses whether to use them. An activation is a kernel of its own, in place: two launches, and sums
    that are rounded before it. Raises: Unavailable.
    """

    def __init__(self, task: GemmTask) -> None:
        self._task, self._torch = task, torch_with_gpu()
        matmul = self._torch.backends.cuda.matmul
        narrow = task.accumulate is AccumulatorType.F16
        if narrow and not hasattr(matmul, "allow_fp16_accumulation"):
            raise Unavailable(f"torch {self._torch.__version__} has no f16 accumulation; it came with 2.7")
        if hasattr(matmul, "allow_fp16_accumulation"):
            matmul.allow_fp16_accumulation = narrow
        matmul.allow_fp16_reduced_precision_reduction = narrow
        matmul.allow_bf16_reduced_precision_reduction = False
        then = "" if task.activation is None else f", then {task.activation}"
        super().__init__(TORCH, f"torch {self._torch.__version__}, layout {task.layout}{then}")

    def bind(self, operands: Operands) -> "BoundTorch":
        layout = self._task.layout
        a, b = (self._view(array) for array in operands.stored(layout))
        bias = self._view(operands.bias).reshape(-1) if self._task.bias else None
        a, b = a.T if layout.transposes_a else a, b.T if layout.transposes_b else b
        return BoundTorch(self._task, self._torch, a, b, self._view(operands.d), bias)

    def _view(self, array: Any) -> Any:
        return tensor_of(self._torch, array, self._task.element)


class BoundTorch:
    def __init__(self, task: GemmTask, torch: Any, a: Any, b: Any, d: Any, bias: Any | None) -> None:
        self._task, self._torch, self._a, self._b, self._d, self._bias = task, torch, a, b, d, bias

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        with self._torch.cuda.stream(torch_stream(self._torch, stream)):
            if self._bias is None:
                self._torch.matmul(self._a, self._b, out=self._d)
            else:
                self._torch.addmm(self._bias, self._a, self._b, out=self._d)
            if self._task.activation is not None:
                activate(self._torch, self._task.activation, self._d)
