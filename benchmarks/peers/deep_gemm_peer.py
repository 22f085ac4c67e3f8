"""DeepGEMM in BF16, from a folder that the command line names. It compiles for the shape when it is first called.

The folder holds the package `deep_gemm` with its extension, built against the torch that is installed: a checkout after its
build, or a wheel unpacked. Nothing of it belongs into this repository.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import cupy

from benchmarks.peers.comparing import Bench, Offer
from cudal2_agent.contract.records.task import ElementType
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.contender import Operands

FUNCTIONS = {False: "bf16_gemm_nn", True: "bf16_gemm_nt"}  # by whether B is stored transposed
CACHE, CACHE_VARIABLE = "compiled-kernels", "DG_JIT_CACHE_DIR"  # where DeepGEMM keeps its kernels, and how it is told


class DeepGemmPeer:
    """The faster of the two layouts of B, as AutoTuning may choose too."""

    name = "deepgemm"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def offer(self, bench: Bench) -> Offer:
        if bench.task.element is not ElementType.BF16:
            raise Unavailable("it is timed in BF16")
        torch, module, version = deep_gemm(self._folder)
        contenders = [DeepGemm(torch, module, version, transposed=transposed) for transposed in FUNCTIONS]
        best, tried = bench.fastest(contenders)
        assert isinstance(best, DeepGemm)
        return Offer(contender=best, tried=tried, detail=best.detail)


class DeepGemm(LibraryContender):
    """Its product with B in one layout."""

    def __init__(self, torch: Any, module: Any, version: str, *, transposed: bool) -> None:
        super().__init__("deepgemm", f"DeepGEMM {version}, {FUNCTIONS[transposed]}")
        self._torch, self._transposed = torch, transposed
        self._multiply = getattr(module, FUNCTIONS[transposed])

    def bind(self, operands: Operands) -> "BoundDeepGemm":
        b = operands.b_tn if self._transposed else operands.b_nn
        return BoundDeepGemm(self._torch, self._multiply, tuple(self._view(array) for array in (operands.a, b, operands.d)))

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
    """torch, the package and its version. Its kernels are kept beside it. Raises: Unavailable."""
    if folder is None:
        raise Unavailable("no folder is named; see --deepgemm")
    if not folder.is_dir():
        raise Unavailable(f"{folder} does not exist")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    os.environ.setdefault(CACHE_VARIABLE, str(folder.resolve() / CACHE))
    try:
        torch, module = importlib.import_module("torch"), importlib.import_module("deep_gemm")
        for function in FUNCTIONS.values():
            getattr(module, function)
        return torch, module, str(getattr(module, "__version__", "of unknown version"))
    except Exception as exc:
        raise Unavailable(f"it does not start from {folder}: {type(exc).__name__}: {exc}") from exc
