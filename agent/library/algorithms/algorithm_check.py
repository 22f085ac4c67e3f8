"""Runs a stored algorithm of cuBLASLt on the GPU at hand: compares its product with one in f32, and times it beside torch.mm.

Covered: three draws of random operands, each element against a bound on its error; elements that are not written; operands that
change. Not covered: the other tiers of `verify`, which look for faults that kernels of our own have. The algorithm is NVIDIA's;
what is checked is that the one that was stored is found and is handed the right product.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.torch.gpu_platform import CudaPlatform, Platform
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.agent.library.algorithms.product_graphs import Multiply, by_torch, drawn, launches_in, operand_sets, race
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.evaluation import TORCH
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.sandbox.verification.activations import activation_bound

DRAWS = 3
ROUNDS, SAMPLE_US = 15, 1000.0
_F32_UNIT = 2.0**-24
_OURS = "algorithm"


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
        if fault := fault_of(stored.task, kernel, "cuda:0", lambda: platform.stream(0)):
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


def fault_of(task: GemmTask, kernel: LoadedKernel, device: str, stream: Callable[[], int]) -> str:
    """What is wrong with the products of a kernel, in words; empty where nothing is. Raises: LauncherError."""
    for seed in range(DRAWS):
        a, b, *bias = drawn(task, seed, device)
        kept = a.clone(), b.clone()
        out = torch.full((task.m, task.n), float("nan"), dtype=a.dtype, device=device)
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), stream(), *(one.data_ptr() for one in bias))
        if not (torch.equal(a, kept[0]) and torch.equal(b, kept[1])):
            return f"draw {seed}: an operand changed"
        if not bool(torch.isfinite(out).all()):
            return f"draw {seed}: {int((~torch.isfinite(out)).sum())} elements of D are not written, or not finite"
        if bias:  # as one more row of B
            a = torch.cat((a, torch.ones(len(a), 1, dtype=a.dtype, device=a.device)), 1)
            b = torch.cat((b, bias[0][None]))
        worst = float(((out.float() - _activated(a.float() @ b.float(), task)).abs() / _bound(a, b, task)).max())
        if worst > 1:
            return f"draw {seed}: the largest error is {worst:.3g} of its bound"
    return ""


def _activated(sums: torch.Tensor, task: GemmTask) -> torch.Tensor:
    return sums if task.activation is None else APPLIED[task.activation](sums)


def _bound(a: torch.Tensor, b: torch.Tensor, task: GemmTask) -> torch.Tensor:
    """Of the error of an element: one rounding of D, and f32 sums of K terms in any order, whose errors are independent."""
    left, right = a.float(), b.float()
    products = left @ right
    sums = 8 * a.shape[1] ** 0.5 * _F32_UNIT * (left.abs() @ right.abs())
    eps = torch.finfo(a.dtype).eps
    if task.activation is None:
        return eps * products.abs() + sums
    results = _activated(products, task)
    return eps * results.abs() + activation_bound(torch, products, results, sums)


def _times_us(stored: StoredAlgorithm, kernel: LoadedKernel, platform: Platform) -> tuple[float, float]:
    """Medians of the algorithm and of torch.mm."""
    sets = operand_sets(stored.task)
    contenders = {_OURS: by_launching(kernel, platform), TORCH: by_torch}
    times = race(contenders, sets, launches=launches_in(SAMPLE_US, stored.time_us), rounds=ROUNDS, product_us=stored.time_us)
    return median_us(times[_OURS]), median_us(times[TORCH])


def by_launching(kernel: LoadedKernel, platform: Platform) -> Multiply:
    """Products by a kernel on the current stream of the first GPU."""

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *bias: torch.Tensor) -> None:
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), platform.stream(0), *(one.data_ptr() for one in bias))

    return multiply
