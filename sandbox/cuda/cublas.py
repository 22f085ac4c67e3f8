"""cuBLAS through cublasGemmEx: the algorithm it picks by itself, for one layout of B."""

from typing import Any

from contract.evaluation import CUBLAS
from contract.task import AccumulatorType, GemmTask, Layout
from sandbox.cuda.contender import Operands
from sandbox.cuda.library import (
    WORKSPACE_BYTES,
    LibraryContender,
    Scalars,
    Unavailable,
    column_major,
    compute_type,
    data_type,
    new_workspace,
    pointers,
)


def _bindings() -> Any:
    """nvmath's cuBLAS bindings. Raises: Unavailable."""
    try:
        from nvmath.bindings import cublas
    except ImportError as exc:
        raise Unavailable(f"cuBLAS bindings are missing ({exc}); pip install nvmath-python") from exc
    return cublas


class CublasGemm(LibraryContender):
    """`strict`: sums between splits of K in the accumulator's type too, as candidates must; else whatever cuBLAS likes.

    Raises: Unavailable.
    """

    def __init__(self, task: GemmTask, layout: Layout, *, strict: bool = False) -> None:
        super().__init__(CUBLAS, f"layout {layout}")
        self.layout = layout
        self._task, self._cublas = task, _bindings()
        self._scalars = Scalars(task.accumulate)
        self._stream: int | None = None
        try:
            self._handle = self._cublas.create()
            if strict and task.accumulate is AccumulatorType.F32:
                self._cublas.set_math_mode(self._handle, int(self._cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION))
        except (self._cublas.cuBLASError, RuntimeError) as exc:
            raise Unavailable(f"cuBLAS does not start: {exc}") from exc
        self._workspace = new_workspace()

    def bind(self, operands: Operands) -> "BoundCublas":
        return BoundCublas(self, pointers(operands, self.layout))

    def multiply(self, addresses: tuple[int, int, int], stream: int) -> None:
        """Enqueue D = A B. Raises: Unavailable where cuBLAS refuses the product."""
        cublas, shape = self._cublas, column_major(self._task, self.layout)
        kind, (left, right, out) = data_type(self._task.element), addresses
        try:
            if stream != self._stream:
                cublas.set_stream(self._handle, stream)
                cublas.set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)
                self._stream = stream
            cublas.gemm_ex(
                self._handle,
                int(shape.transpose_left),
                0,
                shape.rows,
                shape.columns,
                shape.depth,
                self._scalars.alpha,
                left,
                kind,
                shape.lead_left,
                right,
                kind,
                shape.lead_right,
                self._scalars.beta,
                out,
                kind,
                shape.lead_out,
                compute_type(self._task.accumulate),
                int(cublas.GemmAlgo.DEFAULT),
            )
        except cublas.cuBLASError as exc:
            raise Unavailable(f"cuBLAS refuses {self._task.shape} in layout {self.layout}: {exc}") from exc


class BoundCublas:
    def __init__(self, gemm: CublasGemm, addresses: tuple[int, int, int]) -> None:
        self._gemm, self._addresses = gemm, addresses

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        self._gemm.multiply(self._addresses, stream)
