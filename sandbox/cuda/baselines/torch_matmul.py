"""torch.matmul over views of the same buffers, torch.addmm for a task with a bias.

torch is imported where it is used, and may be missing.
"""

from typing import Any

import cupy

from cudal2_agent.contract.records.evaluation import TORCH
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.contender import Operands


def _torch() -> Any:
    """torch with a GPU. Raises: Unavailable."""
    try:
        import torch
    except ImportError as exc:
        raise Unavailable(f"torch is missing ({exc})") from exc
    if not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} is built without CUDA or finds no GPU")
    return torch


class TorchMatmul(LibraryContender):
    """`torch.matmul(a, b, out=d)` in the task's layout, `torch.addmm(bias, a, b, out=d)` with a bias.

    f32: sums between splits of K may not be rounded to half precision. f16: torch is allowed f16 accumulators, which it
    offers from 2.7 on; it chooses whether to use them. Raises: Unavailable.
    """

    def __init__(self, task: GemmTask) -> None:
        self._task, self._torch = task, _torch()
        matmul = self._torch.backends.cuda.matmul
        narrow = task.accumulate is AccumulatorType.F16
        if narrow and not hasattr(matmul, "allow_fp16_accumulation"):
            raise Unavailable(f"torch {self._torch.__version__} has no f16 accumulation; it came with 2.7")
        if hasattr(matmul, "allow_fp16_accumulation"):
            matmul.allow_fp16_accumulation = narrow
        matmul.allow_fp16_reduced_precision_reduction = narrow
        matmul.allow_bf16_reduced_precision_reduction = False
        super().__init__(TORCH, f"torch {self._torch.__version__}, layout {task.layout}")

    def bind(self, operands: Operands) -> "BoundTorch":
        layout = self._task.layout
        a, b = (self._view(array) for array in operands.stored(layout))
        bias = self._view(operands.bias).reshape(-1) if self._task.bias else None
        return BoundTorch(
            self._torch, a.T if layout.transposes_a else a, b.T if layout.transposes_b else b, self._view(operands.d), bias
        )

    def _view(self, array: Any) -> Any:
        """The same memory as a tensor, exchanged as int16, a type that both libraries support."""
        kind = self._torch.float16 if self._task.element is ElementType.F16 else self._torch.bfloat16
        return self._torch.from_dlpack(array.view(cupy.int16)).view(kind)


class BoundTorch:
    def __init__(self, torch: Any, a: Any, b: Any, d: Any, bias: Any | None) -> None:
        self._torch, self._a, self._b, self._d, self._bias = torch, a, b, d, bias
        self._streams: dict[int, Any] = {}

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        external = self._streams.setdefault(stream, self._torch.cuda.ExternalStream(stream))
        with self._torch.cuda.stream(external):
            if self._bias is None:
                self._torch.matmul(self._a, self._b, out=self._d)
            else:
                self._torch.addmm(self._bias, self._a, self._b, out=self._d)
