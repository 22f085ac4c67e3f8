"""Triton: its usual matrix product over a list of configurations, the fastest by this project's timer.

The list covers what Triton's own autotuning tries for a product on Hopper; there is no split of K.
"""

import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import cupy

from benchmarks.peers.comparing import Bench, Offer
from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.contender import Operands

COMPILERS = 12


@dataclass(frozen=True)
class TritonConfiguration:
    """Compile-time choices of the kernel."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group_m: int = 8

    @property
    def name(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}, {self.stages} stages, {self.warps} warps"


CONFIGURATIONS = (
    TritonConfiguration(16, 64, 128, 5, 4),
    TritonConfiguration(16, 128, 128, 4, 4),
    TritonConfiguration(32, 32, 128, 5, 4),
    TritonConfiguration(32, 64, 64, 6, 4),
    TritonConfiguration(64, 32, 128, 5, 4),
    TritonConfiguration(64, 64, 64, 4, 4),
    TritonConfiguration(64, 64, 128, 4, 4),
    TritonConfiguration(64, 128, 64, 4, 4),
    TritonConfiguration(64, 256, 64, 3, 4),
    TritonConfiguration(128, 32, 64, 5, 4),
    TritonConfiguration(128, 64, 64, 4, 4),
    TritonConfiguration(128, 128, 64, 3, 4),
    TritonConfiguration(128, 128, 64, 4, 8),
    TritonConfiguration(128, 128, 128, 3, 8),
    TritonConfiguration(128, 256, 64, 3, 8),
    TritonConfiguration(256, 64, 64, 4, 8),
    TritonConfiguration(256, 128, 64, 3, 8),
)


class TritonPeer:
    """Configurations are compiled once, for all shapes."""

    name = "triton"

    def __init__(self) -> None:
        self._compiled: set[tuple[ElementType, bool]] = set()

    def offer(self, bench: Bench) -> Offer:
        torch, kernel = _parts()
        self._compile(torch, kernel, bench.task)
        contenders = [TritonGemm(torch, kernel, bench.task, one) for one in useful_configurations(bench.task)]
        best, tried = bench.fastest(contenders)
        assert isinstance(best, TritonGemm)
        return Offer(contender=best, tried=tried, detail=best.detail)

    def _compile(self, torch: Any, kernel: Any, task: GemmTask) -> None:
        """Compile all configurations at once. What fails here is compiled again, and fails again, where it is timed."""
        kind = task.element, task.k % 128 == 0
        if kind not in self._compiled:
            self._compiled.add(kind)
            element = _element(torch, task)
            with ThreadPoolExecutor(COMPILERS) as compilers:
                for one in CONFIGURATIONS:
                    arguments = (element, element, element, task.m, task.n, task.k)
                    compilers.submit(kernel.warmup, *arguments, grid=(1,), **constants(one, task))


class TritonGemm(LibraryContender):
    """One configuration."""

    def __init__(self, torch: Any, kernel: Any, task: GemmTask, configuration: TritonConfiguration) -> None:
        super().__init__("triton", configuration.name)
        self._torch, self._kernel, self._task, self._configuration = torch, kernel, task, configuration

    def bind(self, operands: Operands) -> "BoundTriton":
        task = self._task
        views = [self._view(array) for array in (operands.a, operands.b_nn, operands.d)]
        tiles = -(-task.m // self._configuration.block_m) * -(-task.n // self._configuration.block_n)
        launch = self._kernel[(tiles,)]
        return BoundTriton(self._torch, launch, (*views, task.m, task.n, task.k), constants(self._configuration, task))

    def _view(self, array: Any) -> Any:
        """The same memory as a tensor, exchanged as int16, a type that both libraries support."""
        return self._torch.from_dlpack(array.view(cupy.int16)).view(_element(self._torch, self._task))


class BoundTriton:
    def __init__(self, torch: Any, launch: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._torch, self._launch, self._arguments, self._options = torch, launch, arguments, options
        self._streams: dict[int, Any] = {}

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (it has none)
        external = self._streams.setdefault(stream, self._torch.cuda.ExternalStream(stream))
        with self._torch.cuda.stream(external):
            self._launch(*self._arguments, **self._options)


def useful_configurations(task: GemmTask) -> list[TritonConfiguration]:
    """Those whose tile is not more than twice as wide as D in either direction, most CTAs first up to a full GPU."""
    fitting = [one for one in CONFIGURATIONS if one.block_m < 2 * task.m and one.block_n < 2 * task.n]
    return fitting or [CONFIGURATIONS[0]]


def constants(configuration: TritonConfiguration, task: GemmTask) -> dict[str, Any]:
    return {
        "BLOCK_M": configuration.block_m,
        "BLOCK_N": configuration.block_n,
        "BLOCK_K": configuration.block_k,
        "GROUP_M": configuration.group_m,
        "WHOLE_K": task.k % configuration.block_k == 0,
        "num_stages": configuration.stages,
        "num_warps": configuration.warps,
    }


def _element(torch: Any, task: GemmTask) -> Any:
    return torch.float16 if task.element is ElementType.F16 else torch.bfloat16


def _parts() -> tuple[Any, Any]:
    """torch and the kernel. Raises: Unavailable."""
    try:
        torch, module = importlib.import_module("torch"), importlib.import_module("benchmarks.peers.triton_kernel")
    except ImportError as exc:
        raise Unavailable(f"Triton or torch is missing: {exc}") from exc
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no GPU")
    return torch, module.multiply
