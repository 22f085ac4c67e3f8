"""cuBLASLt through nvmath's bindings: its suggestions for a product, each a separate contender."""

import ctypes
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np

from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
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
    scale_type,
    shared_workspace,
    starting,
)
from cudal2_agent.sandbox.cuda.baselines.torch_tensors import activate, tensor_of, torch_stream, torch_with_gpu
from cudal2_agent.sandbox.cuda.contender import Operands

FUSED = {Activation.RELU: "RELU", Activation.GELU_TANH: "GELU"}  # epilogues; cuBLASLt's GELU is the approximation by tanh
MAX_SUGGESTIONS = 100
ALGORITHM_BYTES = 64  # of a cublasLtMatmulAlgo_t


@cache
def _handle() -> int:
    """One cuBLASLt handle per process. Raises: Unavailable."""
    lt = bindings("cublasLt", "cuBLASLt")
    with starting("cuBLASLt", lt.cuBLASLtError):
        handle: int = lt.create()
    return handle


class LtProduct:
    """One product in one layout: descriptors, workspace and the library's suggestions, in its own order.

    The preference is as wide as cuBLASLt's default, including reductions of split K in the output type; the baseline gets
    that gain. A bias is added by cuBLASLt's own epilogue, and an activation computed by it, where it has one: `FUSED`. Another
    activation is PyTorch's kernel behind the product, in place; that pair is not tried where there is an epilogue. Raises:
    Unavailable where there is no library, or no PyTorch for an activation.
    """

    def __init__(self, task: GemmTask, layout: Layout) -> None:
        self.layout, self._task, self._lt = layout, task, bindings("cublasLt", "cuBLASLt")
        self._handle, self._scalars = _handle(), Scalars(task.accumulate)
        fused = FUSED.get(task.activation) if task.activation is not None else None
        self._epilogue = "_".join([*([fused] if fused else []), *(["BIAS"] if task.bias else [])])
        self._torch = torch_with_gpu() if task.activation is not None and not fused else None
        try:
            self._describe(task, layout)
        except self._lt.cuBLASLtError as exc:
            raise Unavailable(f"cuBLASLt has nothing for {task.shape} in layout {layout}: {exc}") from exc
        self._workspace = shared_workspace()
        self._results: Any = None  # of the suggestions, whose addresses lie in it
        self._restored: list[Any] = []

    @cached_property
    def suggestions(self) -> list[int]:
        """Addresses of the algorithms that the library suggests and can run. Raises: Unavailable where there is none."""
        where = f"{self._task.shape} in layout {self.layout}"
        try:
            self._results, found = self._ask()
        except self._lt.cuBLASLtError as exc:
            raise Unavailable(f"cuBLASLt has nothing for {where}: {exc}") from exc
        if not found:
            raise Unavailable(f"cuBLASLt suggests nothing for {where}")
        return found

    @staticmethod
    def record(algorithm: int) -> str:
        """The library's record of an algorithm as hexadecimal digits."""
        return ctypes.string_at(algorithm, ALGORITHM_BYTES).hex()

    def restore(self, record: str) -> int:
        """The address of a recorded algorithm. Raises: Unavailable where the record is not one."""
        try:
            content = bytes.fromhex(record)
        except ValueError as exc:
            raise Unavailable(f"{record[:20]!r} is not a record of an algorithm") from exc
        if len(content) != ALGORITHM_BYTES:
            raise Unavailable(f"a record of {len(content)} bytes is not one of an algorithm, which has {ALGORITHM_BYTES}")
        self._restored.append(np.frombuffer(content, dtype=np.uint64).copy())
        return int(self._restored[-1].ctypes.data)

    def _describe(self, task: GemmTask, layout: Layout) -> None:
        lt, shape, kind = self._lt, column_major(task, layout), data_type(task.element)
        self._operation = lt.matmul_desc_create(compute_type(task.accumulate), scale_type(task.accumulate))
        for name, transposed in (("TRANSA", shape.transpose_left), ("TRANSB", shape.transpose_right)):
            self._attribute(name, np.array([int(transposed)], dtype=np.int32))
        if self._epilogue:
            self._attribute("EPILOGUE", np.array([int(lt.Epilogue[self._epilogue])], dtype=np.int32))
        if task.bias:
            self._point_to(int(shared_workspace().data.ptr))  # so that algorithms are suggested for an aligned one
        self._left = lt.matrix_layout_create(kind, *shape.stored_left, shape.lead_left)
        self._right = lt.matrix_layout_create(kind, *shape.stored_right, shape.lead_right)
        self._out = lt.matrix_layout_create(kind, shape.rows, shape.columns, shape.lead_out)

    def _attribute(self, name: str, value: np.ndarray) -> None:
        attribute = int(getattr(self._lt.MatmulDescAttribute, name))
        self._lt.matmul_desc_set_attribute(self._operation, attribute, value.ctypes.data, value.nbytes)

    def _point_to(self, bias: int) -> None:
        self._attribute("BIAS_POINTER", np.array([bias], dtype=np.uint64))

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

    def activation_of(self, d: Any) -> Callable[[int], None] | None:
        """Enqueues, on a stream, what cuBLASLt leaves out of the activation of D; None where it leaves out nothing."""
        torch, wanted = self._torch, self._task.activation
        if torch is None or wanted is None:
            return None
        tensor = tensor_of(torch, d, self._task.element)

        def enqueue(stream: int) -> None:
            with torch.cuda.stream(torch_stream(torch, stream)):
                activate(torch, wanted, tensor)

        return enqueue

    def multiply(self, algorithm: int, addresses: tuple[int, int, int], stream: int, bias: int | None = None) -> None:
        """Enqueue D = A B by one algorithm, with a bias at an address. Raises: Unavailable where the algorithm does not run."""
        left, right, out = addresses
        try:
            if bias is not None:
                self._point_to(bias)
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
        """An algorithm's configuration in words that replay it: layout, id, tile, stages, split K, reduction, cluster.

        Behind a semicolon stands how an activation is computed, where there is one.
        Raises: Unavailable where the library does not know it.
        """
        names = ("ID", "TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CLUSTER_SHAPE_ID")
        attributes = self._lt.MatmulAlgoConfigAttribute
        try:
            values = {name: self._configuration(algorithm, getattr(attributes, name)) for name in names}
        except self._lt.cuBLASLtError as exc:
            raise Unavailable(f"cuBLASLt does not know this algorithm: {exc}") from exc
        tile, stages = self._name("MatmulTile", values["TILE_ID"]), self._name("MatmulStages", values["STAGES_ID"])
        scheme, cluster = (
            self._name("ReductionScheme", values["REDUCTION_SCHEME"]),
            self._name("ClusterShape", values["CLUSTER_SHAPE_ID"]),
        )
        return (
            f"layout {self.layout}, algorithm {values['ID']}, tile {tile}, stages {stages}, "
            f"split-K {values['SPLITK_NUM']}, reduction {scheme}, cluster {cluster}{self._activation()}"
        )

    def _activation(self) -> str:
        if self._task.activation is None:
            return ""
        return f"; then {self._task.activation} by PyTorch" if self._torch else f"; epilogue {self._epilogue.lower()}"

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
        self.layout = product.layout

    def record(self) -> str:
        """The library's record of the algorithm as hexadecimal digits."""
        return self._product.record(self._algorithm)

    def bind(self, operands: Operands) -> "BoundLt":
        bias = None if operands.bias is None else int(operands.bias.data.ptr)
        rest = self._product.activation_of(operands.d)
        return BoundLt(self._product, self._algorithm, pointers(operands, self._product.layout), bias, rest)


class BoundLt:
    """`rest`: enqueues what follows the product."""

    def __init__(
        self,
        product: LtProduct,
        algorithm: int,
        addresses: tuple[int, int, int],
        bias: int | None = None,
        rest: Callable[[int], None] | None = None,
    ) -> None:
        self._product, self._algorithm, self._addresses, self._bias, self._rest = product, algorithm, addresses, bias, rest

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        self._product.multiply(self._algorithm, self._addresses, stream, self._bias)
        if self._rest is not None:
            self._rest(stream)


def suggestion(task: GemmTask, detail: str) -> LtGemm:
    """The suggestion whose configuration is recorded in words. Raises: Unavailable where the library has no such one now."""
    if task.gated:
        raise Unavailable("a baseline of a gated product has two kernels; the profiler takes one")
    words = detail.partition(";")[0]  # behind it stands how it was chosen
    layout = words.removeprefix("layout ").partition(",")[0]
    if layout not in set(Layout):
        raise Unavailable(f"{detail[:60]!r} is not the configuration of an algorithm")
    product = LtProduct(task, Layout(layout))
    algorithm = next((one for one in product.suggestions if product.describe(one).partition(";")[0] == words), None)
    if algorithm is None:
        raise Unavailable(f"cuBLASLt does not suggest {words!r} for {task.shape} here")
    return LtGemm(AUTOTUNED, product, algorithm)
