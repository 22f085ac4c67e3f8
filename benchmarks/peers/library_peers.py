"""Peers in shared libraries that `libraries/` built: CUTLASS's collective builder, and the CUDA-L2 paper's kernels."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cupy

from benchmarks.peers.comparing import Bench, Offer
from benchmarks.peers.kernel_lane import TimesItself
from benchmarks.peers.libraries.jobs import CUTLASS, PAPER
from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.contender import Operands

WORKSPACE_BYTES = 64 * 1024**2
# What the entry of a published kernel returns; see libraries/published_launch.cu.
THREW, TIMES_ITSELF, NOT_LAUNCHED = 1, 2, 3
REFUSALS = {
    THREW: "its launcher threw an exception; the worker's stderr has the message",
    NOT_LAUNCHED: "its kernel was not launched",
}
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int


class CutlassPeer:
    """The fastest of the configurations that were built."""

    name = "cutlass"

    def __init__(self, folder: Path | None) -> None:
        self._files = sorted(folder.glob(f"{CUTLASS}*.so")) if folder else []

    def offer(self, bench: Bench) -> Offer:
        if bench.task.element is not ElementType.F16:
            raise Unavailable("its libraries are built for FP16")
        if not self._files:
            raise Unavailable("no library is built; run `python -m benchmarks.peers.libraries` and name its folder")
        best, tried = bench.fastest([CutlassGemm(file, bench.task) for file in self._files])
        assert isinstance(best, CutlassGemm)
        return Offer(contender=best, tried=tried, detail=best.detail)


class PaperPeer:
    """The paper's own kernel for the shape. It is timed even where its sums are narrower than it says."""

    name = "cuda-l2-paper"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def offer(self, bench: Bench) -> Offer:
        file = self._folder / f"{PAPER}{bench.task.shape}.so" if self._folder else None
        if bench.task.element is not ElementType.F16 or file is None or not file.is_file():
            raise Unavailable("its kernel for this shape is not built; see `python -m benchmarks.peers.libraries --paper`")
        return Offer(contender=PaperGemm(file, bench.task), tried=1, detail=file.stem, lenient=True)


class CutlassGemm(LibraryContender):
    """One configuration; its workspace is its own, because launches on one stream do not overlap."""

    def __init__(self, file: Path, task: GemmTask) -> None:
        super().__init__("cutlass", file.stem.removeprefix(CUTLASS))
        self._entry = _entry(file, (_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, ctypes.c_size_t, _POINTER))
        self._sizes = task.m, task.n, task.k

    def bind(self, operands: Operands) -> "BoundLibrary":
        pointers = [array.data.ptr for array in (operands.a, _given(operands.b_nn), operands.d)]
        return BoundLibrary(self._entry, (*pointers, *self._sizes, _workspace().data.ptr, WORKSPACE_BYTES))


class PaperGemm(LibraryContender):
    """A published kernel, which reads B as it is stored or transposed, as it likes."""

    def __init__(self, file: Path, task: GemmTask) -> None:
        super().__init__("cuda-l2-paper", file.stem)
        self._entry = _entry(file, (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER))
        self._sizes = task.m, task.n, task.k

    def bind(self, operands: Operands) -> "BoundLibrary":
        arrays = (operands.a, _given(operands.b_nn), _given(operands.b_tn), operands.d)
        return BoundPaper(self._entry, (*[array.data.ptr for array in arrays], *self._sizes))


class BoundLibrary:
    def __init__(self, entry: Any, arguments: tuple[int, ...]) -> None:
        self._entry, self._arguments = entry, arguments

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (how it launches is its own)
        """Raises: Unavailable with the code that the library returned."""
        code = self._entry(*self._arguments, stream)
        if code:
            raise Unavailable(f"launch() returned {code}")


class BoundPaper(BoundLibrary):
    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (how it launches is its own)
        """Raises: Unavailable; TimesItself."""
        code = self._entry(*self._arguments, stream)
        if code == TIMES_ITSELF:
            raise TimesItself("its launcher measures its kernels in every call, so that no call is one product")
        if code:
            raise Unavailable(REFUSALS.get(code, f"launch() returned {code}"))


def _entry(file: Path, arguments: Sequence[Any]) -> Any:
    """Raises: Unavailable where the library does not load."""
    try:
        entry = ctypes.CDLL(str(file.resolve()))["launch"]
    except (OSError, AttributeError) as exc:
        raise Unavailable(f"{file.name} does not load: {exc}") from exc
    entry.argtypes, entry.restype = arguments, ctypes.c_int
    return entry


def _given(array: Any) -> Any:
    if array is None:
        raise Unavailable("the operands hold no B in the layout that it reads")
    return array


@cache
def _workspace() -> Any:
    return cupy.zeros(WORKSPACE_BYTES, dtype=cupy.uint8)
