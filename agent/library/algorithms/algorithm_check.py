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
        operands = a, b, *third = drawn(task, seed, device)
        kept = [one.clone() for one in operands]
        out = torch.full((task.m, task.n), float("nan"), dtype=a.dtype, device=device)
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), stream(), *(one.data_ptr() for one in third))
        if not all(torch.equal(one, other) for one, other in zip(operands, kept, strict=True)):
            return f"draw {seed}: an operand changed"
        if not bool(torch.isfinite(out).all()):
            return f"draw {seed}: {int((~torch.isfinite(out)).sum())} elements of D are not written, or not finite"
        wanted, bound = _wanted(task, a, b, *third)
        worst = float(((out.float() - wanted).abs() / bound).max())
        if worst > 1:
            return f"draw {seed}: the largest error is {worst:.3g} of its bound"
    return ""


class _BoundedSums(NamedTuple):
    """Sums in f32, and the bound of their errors: f32 sums of K terms in any order, whose errors are independent."""

    values: torch.Tensor
    bound: torch.Tensor


def _wanted(
    task: GemmTask, a: torch.Tensor, b: torch.Tensor, third: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """D before it is rounded, and the bound of the error of each element, one rounding included."""
    if task.bias and third is not None:  # as one more row of B
        a = torch.cat((a, torch.ones(len(a), 1, dtype=a.dtype, device=a.device)), 1)
        b = torch.cat((b, third[None]))
    finfo = torch.finfo(a.dtype)
    found = _activated(_sums(a, b), task)
    if task.gated and third is not None:
        up = _sums(a, third)
        error = found.values.abs() * up.bound + (up.values.abs() + up.bound) * found.bound
        smallest = finfo.smallest_normal * finfo.eps / 2  # a product of two small sums may be subnormal
        found = _BoundedSums(found.values * up.values, error + smallest)
    return found.values, finfo.eps * found.values.abs() + found.bound


def _sums(a: torch.Tensor, b: torch.Tensor) -> _BoundedSums:
    left, right = a.float(), b.float()
    return _BoundedSums(left @ right, 8 * a.shape[1] ** 0.5 * _F32_UNIT * (left.abs() @ right.abs()))


def _activated(sums: _BoundedSums, task: GemmTask) -> _BoundedSums:
    if task.activation is None:
        return sums
    results = APPLIED[task.activation](sums.values)
    return _BoundedSums(results, activation_bound(torch, sums.values, results, sums.bound))


def _times_us(stored: StoredAlgorithm, kernel: LoadedKernel, platform: Platform) -> tuple[float, float]:
    """Medians of the algorithm and of torch.mm."""
    sets = operand_sets(stored.task)
    contenders = {_OURS: by_launching(kernel, platform), TORCH: by_torch}
    times = race(contenders, sets, launches=launches_in(SAMPLE_US, stored.time_us), rounds=ROUNDS, product_us=stored.time_us)
    return median_us(times[_OURS]), median_us(times[TORCH])


def by_launching(kernel: LoadedKernel, platform: Platform) -> Multiply:
    """Products by a kernel on the current stream of the first GPU."""

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *third: torch.Tensor) -> None:
        kernel.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), platform.stream(0), *(one.data_ptr() for one in third))

    return multiply
