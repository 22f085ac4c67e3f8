"""The common part of the library baselines: a row-major product in a column-major library, types, and scalars."""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import cupy
import numpy as np

from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.contender import Bound, Operands

WORKSPACE_BYTES = 64 * 1024**2


class Unavailable(Exception):
    """A baseline that this machine, task or library version does not have; the message says why."""


class WrongProduct(Unavailable):
    """A library's product that is not the product of its operands."""


def bindings(module: str, library: str) -> Any:
    """nvmath's bindings of a library. Raises: Unavailable."""
    try:
        return importlib.import_module(f"nvmath.bindings.{module}")
    except ImportError as exc:
        raise Unavailable(f"{library} bindings are missing ({exc}); pip install nvmath-python") from exc


@contextmanager
def starting(library: str, error: type[Exception]) -> Iterator[None]:
    """Where a library is started. Raises: Unavailable for its own error, and where there is no driver or no library."""
    try:
        yield
    except (RuntimeError, error) as exc:
        raise Unavailable(f"{library} does not start: {exc}") from exc


@dataclass(frozen=True)
class ColumnMajor:
    """Row-major D = A B as the column-major D' = B' A', whose operands have the same memory layout.

    left is B (`rows` = N by `depth` = K, transposed where B is stored N x K), right is A (`depth` = K by `columns` = M,
    transposed where A is stored K x M).
    """

    rows: int
    columns: int
    depth: int
    transpose_left: bool
    transpose_right: bool
    lead_left: int
    lead_right: int
    lead_out: int

    @property
    def stored_left(self) -> tuple[int, int]:
        """Rows and columns of the left operand in memory, by columns."""
        return (self.depth, self.rows) if self.transpose_left else (self.rows, self.depth)

    @property
    def stored_right(self) -> tuple[int, int]:
        """Rows and columns of the right operand in memory, by columns."""
        return (self.columns, self.depth) if self.transpose_right else (self.depth, self.columns)


def column_major(task: GemmTask, layout: Layout) -> ColumnMajor:
    return ColumnMajor(
        rows=task.n,
        columns=task.m,
        depth=task.k,
        transpose_left=layout.transposes_b,
        transpose_right=layout.transposes_a,
        lead_left=task.k if layout.transposes_b else task.n,
        lead_right=task.m if layout.transposes_a else task.k,
        lead_out=task.n,
    )


def competing_layouts(task: GemmTask) -> tuple[Layout, ...]:
    """The layouts in which a library may multiply a task's numbers: both that store A by rows, and the task's own."""
    return tuple(dict.fromkeys((Layout.NN, Layout.TN, task.layout)))


def pointers(operands: Operands, layout: Layout) -> tuple[int, int, int]:
    """Addresses of left (B in the layout), right (A in the layout) and out (D). Raises: Unavailable where one is not there."""
    try:
        a, b = operands.stored(layout)
    except ValueError as exc:
        raise Unavailable(str(exc)) from exc
    return b.data.ptr, a.data.ptr, operands.d.data.ptr


class Scalars:
    """alpha 1 and a beta in the scale type of the computation, in host memory that outlives the calls."""

    def __init__(self, accumulate: AccumulatorType, beta: int = 0) -> None:
        self._values = np.array([1, beta], dtype=np.float32 if accumulate is AccumulatorType.F32 else np.float16)
        self.alpha = int(self._values.ctypes.data)
        self.beta = self.alpha + self._values.itemsize


@functools.cache
def shared_workspace() -> Any:
    """Scratch memory of all libraries on one stream; launches there do not overlap, so one per process is enough."""
    return cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)


def data_type(element: ElementType) -> int:
    """The element's cudaDataType_t."""
    from nvmath import CudaDataType

    return int(CudaDataType.CUDA_R_16F if element is ElementType.F16 else CudaDataType.CUDA_R_16BF)


def scale_type(accumulate: AccumulatorType) -> int:
    """The cudaDataType_t of alpha and beta."""
    from nvmath import CudaDataType

    return int(CudaDataType.CUDA_R_32F if accumulate is AccumulatorType.F32 else CudaDataType.CUDA_R_16F)


def compute_type(accumulate: AccumulatorType) -> int:
    """The cublasComputeType_t: sums in f32 for f32, in f16 for f16."""
    from nvmath.bindings import cublas

    return int(cublas.ComputeType.COMPUTE_32F if accumulate is AccumulatorType.F32 else cublas.ComputeType.COMPUTE_16F)


class LibraryContender(ABC):
    """A contender that brings its own workspace and keeps no state between runs."""

    workspace_bytes = 0
    zero: bool | Literal["restored"] = False
    zero_bytes = 0
    programmatic = False
    atomics = False
    local_bytes = 0
    streamed = False  # whether it is timed with the host time of its launches, outside a graph

    def __init__(self, name: str, detail: str) -> None:
        self.name = name
        self.detail = detail

    @abstractmethod
    def bind(self, operands: Any) -> Bound: ...

    def altered(self) -> tuple[str, ...]:
        return ()
