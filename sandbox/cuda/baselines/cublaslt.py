"""cuBLASLt through nvmath's bindings: its suggestions for a product, each a separate contender."""

from functools import cache
from typing import Any

import numpy as np

from contract.task import GemmTask, Layout
from sandbox.cuda.baselines.library import (
    WORKSPACE_BYTES,
    LibraryContender,
    Scalars,
    Unavailable,
    bindings,
    column_major,
    compute_type,
    data_type,
    new_workspace,
    pointers,
    scale_type,
    starting,
)
from sandbox.cuda.contender import Operands

MAX_SUGGESTIONS = 100


@cache
def _handle() -> int:
    """One cuBLASLt handle per process. Raises: Unavailable."""
    lt = bindings("cublasLt", "cuBLASLt")
    with starting("cuBLASLt", lt.cuBLASLtError):
        handle: int = lt.create()
    return handle


class LtProduct:
    """One product in one layout of B: descriptors, workspace and the library's suggestions, in its own order.

    The preference is as wide as cuBLASLt's default, including reductions of split K in the output type; the baseline gets
    that gain. Raises: Unavailable where there is no library or no suggestion.
    """

    def __init__(self, task: GemmTask, layout: Layout) -> None:
        self.layout, self._task, self._lt = layout, task, bindings("cublasLt", "cuBLASLt")
        self._handle, self._scalars = _handle(), Scalars(task.accumulate)
        try:
            self._describe(task, layout)
            self._results, self.suggestions = self._ask()
        except self._lt.cuBLASLtError as exc:
            raise Unavailable(f"cuBLASLt has nothing for {task.shape} in layout {layout}: {exc}") from exc
        if not self.suggestions:
            raise Unavailable(f"cuBLASLt suggests nothing for {task.shape} in layout {layout}")
        self._workspace = new_workspace()

    def _describe(self, task: GemmTask, layout: Layout) -> None:
        lt, shape, kind = self._lt, column_major(task, layout), data_type(task.element)
        self._operation = lt.matmul_desc_create(compute_type(task.accumulate), scale_type(task.accumulate))
        transpose = np.array([int(shape.transpose_left)], dtype=np.int32)
        attribute = int(lt.MatmulDescAttribute.TRANSA)
        lt.matmul_desc_set_attribute(self._operation, attribute, transpose.ctypes.data, transpose.nbytes)
        rows, columns = (shape.depth, shape.rows) if shape.transpose_left else (shape.rows, shape.depth)
        self._left = lt.matrix_layout_create(kind, rows, columns, shape.lead_left)
        self._right = lt.matrix_layout_create(kind, shape.depth, shape.columns, shape.lead_right)
        self._out = lt.matrix_layout_create(kind, shape.rows, shape.columns, shape.lead_out)

    def _ask(self) -> tuple[Any, list[int]]:
        """The library's suggestions, and the addresses of those it can run."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        limit = np.array([WORKSPACE_BYTES], dtype=np.uint64)
        attribute = int(lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES)
        lt.matmul_preference_set_attribute(preference, attribute, limit.ctypes.data, limit.nbytes)
        results = lt.MatmulHeuristicResult(MAX_SUGGESTIONS)
        found = np.zeros(1, dtype=np.int32)
        layouts = (self._left, self._right, self._out, self._out)
        lt.matmul_algo_get_heuristic(
            self._handle, self._operation, *layouts, preference, MAX_SUGGESTIONS, results.ptr, found.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        # An algorithm is the first field of its result, so the result's address is the algorithm's.
        size = lt.matmul_heuristic_result_dtype.itemsize
        states = np.atleast_1d(results.state)[: int(found[0])]
        return results, [results.ptr + size * index for index, state in enumerate(states) if state == 0]

    def multiply(self, algorithm: int, addresses: tuple[int, int, int], stream: int) -> None:
        """Enqueue D = A B by one algorithm. Raises: Unavailable where the algorithm does not run."""
        left, right, out = addresses
        try:
            self._lt.matmul(
                self._handle,
                self._operation,
                self._scalars.alpha,
                left,
                self._left,
                right,
                self._right,
                self._scalars.beta,
                out,
                self._out,
                out,
                self._out,
                algorithm,
                self._workspace.data.ptr,
                WORKSPACE_BYTES,
                stream,
            )
        except self._lt.cuBLASLtError as exc:
            raise Unavailable(f"{self.describe(algorithm)} does not run: {exc}") from exc

    def describe(self, algorithm: int) -> str:
        """An algorithm's configuration in words that replay it: layout, id, tile, stages, split K, reduction, cluster."""
        names = ("ID", "TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CLUSTER_SHAPE_ID")
        values = {name: self._configuration(algorithm, getattr(self._lt.MatmulAlgoConfigAttribute, name)) for name in names}
        tile, stages = self._name("MatmulTile", values["TILE_ID"]), self._name("MatmulStages", values["STAGES_ID"])
        scheme, cluster = (
            self._name("ReductionScheme", values["REDUCTION_SCHEME"]),
            self._name("ClusterShape", values["CLUSTER_SHAPE_ID"]),
        )
        return (
            f"layout {self.layout}, algorithm {values['ID']}, tile {tile}, stages {stages}, "
            f"split-K {values['SPLITK_NUM']}, reduction {scheme}, cluster {cluster}"
        )

    def _configuration(self, algorithm: int, attribute: Any) -> int:
        value = np.zeros(1, dtype=self._lt.get_matmul_algo_config_attribute_dtype(int(attribute)))
        written = np.zeros(1, dtype=np.uint64)
        self._lt.matmul_algo_config_get_attribute(
            algorithm, int(attribute), value.ctypes.data, value.nbytes, written.ctypes.data
        )
        return int(value[0])

    def _name(self, enumeration: str, value: int) -> str:
        """The library's name of a value, or its number where these bindings are older than the library."""
        members: dict[int, str] = {int(member): name for name, member in getattr(self._lt, enumeration).__members__.items()}
        return members.get(value, str(value)).lower()


class LtGemm(LibraryContender):
    """One of a product's suggestions."""

    def __init__(self, name: str, product: LtProduct, algorithm: int) -> None:
        super().__init__(name, product.describe(algorithm))
        self._product, self._algorithm = product, algorithm

    def bind(self, operands: Operands) -> "BoundLt":
        return BoundLt(self._product, self._algorithm, pointers(operands, self._product.layout))


class BoundLt:
    def __init__(self, product: LtProduct, algorithm: int, addresses: tuple[int, int, int]) -> None:
        self._product, self._algorithm, self._addresses = product, algorithm, addresses

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        self._product.multiply(self._algorithm, self._addresses, stream)
