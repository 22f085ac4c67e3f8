"""cuBLAS through cublasGemmEx: the algorithm that it chooses by itself, for one layout."""

from functools import cache

from cudal2_agent.contract.records.evaluation import CUBLAS
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.baselines.library import (
    WORKSPACE_BYTES,
    LibraryContender,
    Scalars,
    Unavailable,
    bindings,
    column_major,
    compute_type,
    data_type,
    pointers,
    shared_workspace,
    starting,
)
from cudal2_agent.sandbox.cuda.contender import Operands

# cublasMath_t
DEFAULT = 0
DISALLOW_REDUCED_PRECISION_REDUCTION = 16


@cache
def _handle(math_mode: int) -> int:
    """One cuBLAS handle per process and math mode. Raises: Unavailable."""
    cublas = bindings("cublas", "cuBLAS")
    with starting("cuBLAS", cublas.cuBLASError):
        handle: int = cublas.create()
        cublas.set_math_mode(handle, math_mode)
    return handle


class CublasGemm(LibraryContender):
    """`strict`: sums between splits of K in the accumulator's type too, as candidates must; else cuBLAS chooses.

    For a task with a bias it adds what D holds, which the caller has to be a bias in every row. An activation is left out,
    and the `up` of a gated one. Raises: Unavailable.
    """

    def __init__(self, task: GemmTask, layout: Layout, *, strict: bool = False) -> None:
        super().__init__(CUBLAS, f"layout {layout}")
        self.layout = layout
        self._task, self._cublas = task, bindings("cublas", "cuBLAS")
        narrow_splits = not strict or task.accumulate is AccumulatorType.F16
        self._handle = _handle(DEFAULT if narrow_splits else DISALLOW_REDUCED_PRECISION_REDUCTION)
        self._shape, self._scalars = column_major(task, layout), Scalars(task.accumulate, beta=int(task.bias))
        self._data_type, self._compute_type = data_type(task.element), compute_type(task.accumulate)
        self._workspace = shared_workspace()

    def bind(self, operands: Operands) -> "BoundCublas":
        return BoundCublas(self, pointers(operands, self.layout))

    def multiply(self, addresses: tuple[int, int, int], stream: int) -> None:
        """Enqueue D = A B. Raises: Unavailable where cuBLAS refuses the product."""
        cublas, shape, kind = self._cublas, self._shape, self._data_type
        left, right, out = addresses
        try:
            cublas.set_stream(self._handle, stream)  # this resets the workspace
            cublas.set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)
            cublas.gemm_ex(
                self._handle,
                int(shape.transpose_left),
                int(shape.transpose_right),
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
                self._compute_type,
                int(cublas.GemmAlgo.DEFAULT),
            )
        except cublas.cuBLASError as exc:
            raise Unavailable(f"cuBLAS refuses {self._task.shape} in layout {self.layout}: {exc}") from exc


class BoundCublas:
    def __init__(self, gemm: CublasGemm, addresses: tuple[int, int, int]) -> None:
        self._gemm, self._addresses = gemm, addresses

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        self._gemm.multiply(self._addresses, stream)
