"""One product on the first GPU, with cuBLASLt's suggestions for it: what `algorithm_tuning` measures.

nvmath's bindings list the suggestions and run them in the first passes; in races the launcher runs them, as a program does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cached_property
from importlib.util import find_spec

import torch

from cudal2.dispatch.decision import GpuIdentity
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.agent.library.algorithms.algorithm_check import by_launching, fault_of
from cudal2_agent.agent.library.algorithms.algorithm_choice import why_not_run
from cudal2_agent.agent.library.algorithms.algorithm_tuning import Suggestion
from cudal2_agent.agent.library.algorithms.product_graphs import (
    Multiply,
    Operands,
    ProductGraph,
    by_torch,
    launches_in,
    operand_sets,
    race,
)
from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError, UsageError
from cudal2_agent.contract.records.evaluation import TORCH, Timing
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask


def open_platform() -> tuple[CudaPlatform, GpuIdentity]:
    """The first GPU that PyTorch sees.

    Raises: DeviceUnavailable where it, cuBLASLt, its bindings or the launcher in C++ is missing.
    """
    platform = CudaPlatform()
    if missing := platform.missing():
        raise DeviceUnavailable(f"measuring products needs a GPU: {missing}")
    absent = next((name for name in ("nvmath", "cupy") if find_spec(name) is None), None)
    if absent:
        raise DeviceUnavailable(f"cuBLASLt's suggestions are read by nvmath and cupy, of which {absent} is missing")
    identity = platform.identity(0)
    if not identity.cublas:
        raise DeviceUnavailable("stored algorithms need cuBLASLt and the launcher in C++; see: cudal2-agent doctor")
    return platform, identity


def environment_of(identity: GpuIdentity) -> str:
    """As `Environment.key` has it."""
    return f"{identity.gpu} driver-{identity.driver} toolkit-{torch.version.cuda} cublas-{identity.cublas}"


class CudaProductBench:
    """A `ProductBench`, on a machine that `open_platform` has found fit. Raises: UsageError where memory is short."""

    def __init__(self, task: GemmTask, platform: CudaPlatform, identity: GpuIdentity) -> None:
        from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtProduct
        from cudal2_agent.sandbox.cuda.baselines.library import Unavailable

        self._task, self._platform, self._identity, self._unavailable = task, platform, identity, Unavailable
        try:
            self._product = LtProduct(task, task.layout)
            self._addresses = {
                Suggestion(words, self._product.record(one)): one
                for one in self._product.suggestions
                if not why_not_run(task, words := self._product.describe(one))
            }
        except Unavailable:
            self._addresses = {}

    def suggestions(self) -> Sequence[Suggestion]:
        return list(self._addresses)

    def sample_us(self, suggestion: Suggestion, duration_us: float) -> float | None:
        """The shorter of two samples."""
        address = self._addresses[suggestion]

        def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
            # Row-major D = A B is column-major D' = B' A'.
            stream = torch.cuda.current_stream().cuda_stream
            self._product.multiply(address, (b.data_ptr(), a.data_ptr(), out.data_ptr()), stream)

        try:
            with _enough_memory():
                graph = ProductGraph(multiply, self._sets, launches_in(duration_us, self._torch_us))
        except self._unavailable:
            return None
        return min(graph.sample_us() for _ in range(2))

    def fault(self, suggestion: Suggestion) -> str:
        stored = self.stored(suggestion)
        try:
            kernel = self._platform.load_algorithm(0, stored)
            with _enough_memory():
                return fault_of(self._task, kernel, "cuda:0", lambda: self._platform.stream(0))
        except LauncherError as exc:
            return str(exc)

    def race(self, suggestions: Sequence[Suggestion], duration_us: float, rounds: int) -> Mapping[str, Timing]:
        contenders: dict[str, Multiply] = {
            one.opaque: by_launching(self._platform.load_algorithm(0, self.stored(one)), self._platform) for one in suggestions
        }
        launches = launches_in(duration_us, self._torch_us)
        with _enough_memory():
            both = {**contenders, TORCH: by_torch}
            return race(both, self._sets, launches=launches, rounds=rounds, product_us=self._torch_us)

    def stored(self, suggestion: Suggestion) -> StoredAlgorithm:
        """As a library would hold it; its time is PyTorch's, since none of its own is known yet."""
        return StoredAlgorithm(
            task=self._task,
            chip=self._identity.gpu,
            words=suggestion.words,
            opaque=suggestion.opaque,
            time_us=self._torch_us,
            torch_us=self._torch_us,
            heuristic_us=None,
            environment=environment_of(self._identity),
            run_id="",
            measured=date.min,
        )

    @cached_property
    def _sets(self) -> list[Operands]:
        with _enough_memory():
            return operand_sets(self._task)

    @cached_property
    def _torch_us(self) -> float:
        """Of torch.mm, roughly."""
        with _enough_memory():
            return ProductGraph(by_torch, self._sets, 2).sample_us()


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Raises: UsageError where the GPU's memory is short."""
    try:
        yield
    except torch.OutOfMemoryError as exc:
        raise UsageError("its operands do not fit into the GPU's memory") from exc
