"""DeepGEMM in BF16, from a checkout that the command line names. It compiles for the shape when it is first called."""

import importlib
import sys
from pathlib import Path
from typing import Any

import cupy

from benchmarks.peers.comparing import Bench, Offer
from contract.task import ElementType
from sandbox.cuda.baselines.library import LibraryContender, Unavailable
from sandbox.cuda.contender import Operands

FUNCTION = "bf16_gemm_nn"


class DeepGemmPeer:
    name = "deepgemm"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def offer(self, bench: Bench) -> Offer:
        if bench.task.element is not ElementType.BF16:
            raise Unavailable("it is timed in BF16")
        contender = DeepGemm(*deep_gemm(self._folder))
        bench.brief_us(contender)
        return Offer(contender=contender, tried=1, detail=contender.detail)


class DeepGemm(LibraryContender):
    def __init__(self, torch: Any, multiply: Any, version: str) -> None:
        super().__init__("deepgemm", f"DeepGEMM {version}, {FUNCTION}")
        self._torch, self._multiply = torch, multiply

    def bind(self, operands: Operands) -> "BoundDeepGemm":
        arrays = (operands.a, operands.b_nn, operands.d)
        return BoundDeepGemm(self._torch, self._multiply, tuple(self._view(array) for array in arrays))

    def _view(self, array: Any) -> Any:
        return self._torch.from_dlpack(array.view(cupy.int16)).view(self._torch.bfloat16)


class BoundDeepGemm:
    def __init__(self, torch: Any, multiply: Any, tensors: tuple[Any, ...]) -> None:
        self._torch, self._multiply, self._tensors = torch, multiply, tensors
        self._streams: dict[int, Any] = {}

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (how it launches is its own)
        external = self._streams.setdefault(stream, self._torch.cuda.ExternalStream(stream))
        with self._torch.cuda.stream(external):
            self._multiply(*self._tensors)


def deep_gemm(folder: Path | None) -> tuple[Any, Any, str]:
    """torch, the function and the version. Raises: Unavailable."""
    if folder is None:
        raise Unavailable("no checkout is named; see --deepgemm")
    if not folder.is_dir():
        raise Unavailable(f"{folder} does not exist")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        torch, module = importlib.import_module("torch"), importlib.import_module("deep_gemm")
        return torch, getattr(module, FUNCTION), str(getattr(module, "__version__", "of unknown version"))
    except Exception as exc:
        raise Unavailable(f"it does not start from {folder}: {type(exc).__name__}: {exc}") from exc
