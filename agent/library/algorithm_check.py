"""Runs a stored algorithm of cuBLASLt on the GPU at hand: compares its product with one in f32, and times it beside torch.mm.

Covered: three draws of random operands, each element against a bound on its error; elements that are not written; operands that
change. Not covered: the other tiers of `verify`, which look for faults that kernels of our own have. The algorithm is NVIDIA's;
what is checked is that the one that was stored is found and is handed the right product.
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

from contract.errors import Cudal2Error
from contract.library import StoredAlgorithm
from contract.task import ElementType, GemmTask, Layout
from cudal2.launcher.launcher import LoadedKernel
from cudal2.torch.gpu_platform import CudaPlatform, Platform

DRAWS = 3
ROUNDS, LAUNCHES = 15, 20
MAX_SET_BYTES = 2**30  # of all operand sets; several sets keep the cache from holding a product's operands
SETS = 8
_TYPES = {ElementType.F16: torch.float16, ElementType.BF16: torch.bfloat16}
_F32_UNIT = 2.0**-24

Operands = tuple[torch.Tensor, torch.Tensor]


class AlgorithmOutcome(NamedTuple):
    """`fault`: what was wrong; empty where the product was right. `absent`: why nothing ran. Times are medians of a launch.

    `torch_us`: of torch.mm, in the same rounds. Unit: microseconds.
    """

    fault: str = ""
    absent: str = ""
    time_us: float | None = None
    torch_us: float | None = None


def run_algorithm(stored: StoredAlgorithm) -> AlgorithmOutcome:
    """On the first GPU that PyTorch sees."""
    platform = CudaPlatform()
    try:
        if absent := _absent(stored, platform):
            return AlgorithmOutcome(absent=absent)
        kernel = platform.load_algorithm(0, stored)
        if fault := fault_of(stored, kernel, "cuda:0", lambda: platform.stream(0)):
            return AlgorithmOutcome(fault=fault)
    except Cudal2Error as exc:
        return AlgorithmOutcome(fault=str(exc))
    time_us, torch_us = _times_us(stored, kernel, platform)
    return AlgorithmOutcome(time_us=time_us, torch_us=torch_us)


def _absent(stored: StoredAlgorithm, platform: Platform) -> str:
    if missing := platform.missing():
        return missing
    loaded = platform.identity(0).cublas
    return "" if loaded == stored.cublas else f"it belongs to cuBLAS {stored.cublas}; loaded is {loaded or 'none'}"


def fault_of(stored: StoredAlgorithm, kernel: LoadedKernel, device: str, stream: Callable[[], int]) -> str:
    """What is wrong with the products of an algorithm, in words; empty where nothing is. Raises: LauncherError."""
    task = stored.task
    for seed in range(DRAWS):
        a, b = drawn(task, seed, device)
        kept = a.clone(), b.clone()
        out = torch.full((task.m, task.n), float("nan"), dtype=a.dtype, device=device)
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), stream())
        if not (torch.equal(a, kept[0]) and torch.equal(b, kept[1])):
            return f"draw {seed}: an operand changed"
        if not bool(torch.isfinite(out).all()):
            return f"draw {seed}: {int((~torch.isfinite(out)).sum())} elements of D are not written, or not finite"
        worst = float(((out.float() - a.float() @ b.float()).abs() / _bound(a, b)).max())
        if worst > 1:
            return f"draw {seed}: the largest error is {worst:.3g} of its bound"
    return ""


def drawn(task: GemmTask, seed: int, device: str) -> Operands:
    """Random operands in the layout of the task, as M×K and K×N matrices."""
    dtype = _TYPES[task.element]
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, device=device).to(dtype)

    a = normal(task.k, task.m).t() if task.layout is Layout.NT else normal(task.m, task.k)
    b = normal(task.n, task.k).t() if task.layout is Layout.TN else normal(task.k, task.n)
    return a, b


def _bound(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of the error of an element: one rounding of D, and f32 sums of K terms in any order, whose errors are independent."""
    left, right = a.float(), b.float()
    sums = 8 * a.shape[1] ** 0.5 * _F32_UNIT * (left.abs() @ right.abs())
    return torch.finfo(a.dtype).eps * (left @ right).abs() + sums


def _times_us(stored: StoredAlgorithm, kernel: LoadedKernel, platform: Platform) -> tuple[float, float]:
    """Medians of the algorithm and of torch.mm: samples in graphs, so that the host's cost is in neither, in turns."""
    task = stored.task
    bytes_per_set = 2 * (task.m * task.k + task.k * task.n + task.m * task.n)
    sets = [drawn(task, seed, "cuda:0") for seed in range(max(1, min(SETS, MAX_SET_BYTES // bytes_per_set)))]
    out = torch.empty(task.m, task.n, dtype=sets[0][0].dtype, device="cuda:0")

    def by_algorithm(a: torch.Tensor, b: torch.Tensor) -> None:
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), platform.stream(0))

    def by_torch(a: torch.Tensor, b: torch.Tensor) -> None:
        torch.mm(a, b, out=out)

    graphs = [_graph(multiply, sets) for multiply in (by_algorithm, by_torch)]
    samples: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for graph, times in zip(graphs, samples, strict=True):
            times.append(_sample_us(graph))
    algorithm_us, torch_us = map(statistics.median, samples)
    return algorithm_us, torch_us


def _graph(multiply: Callable[[torch.Tensor, torch.Tensor], None], sets: list[Operands]) -> torch.cuda.CUDAGraph:
    """`LAUNCHES` products as one graph, over the operand sets in turn."""
    multiply(*sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(LAUNCHES):
            multiply(*sets[index % len(sets)])
    graph.replay()
    return graph


def _sample_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / LAUNCHES
