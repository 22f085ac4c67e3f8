"""Races the kernels of a model's products against PyTorch's own product, on the GPU at hand.

A library's entry beat cuBLASLt-AutoTuning where it was searched. What a program replaces is `torch.mm`, on this GPU, today;
with an activation, `torch.mm` and the activation after it; of a gated layer, one joined product and one elementwise kernel.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cudal2.dispatch.decision import GpuIdentity
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.agent.library.algorithms.algorithm_check import by_launching, fault_of
from cudal2_agent.agent.library.algorithms.product_graphs import ProductGraph, by_torch_for, launches_in, operand_sets, race
from cudal2_agent.agent.library.algorithms.suggested_algorithms import environment_of
from cudal2_agent.agent.model_tuning.tune_records import JudgedProduct
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.evaluation import TORCH
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup, median_us, paired_speedup

ROUNDS, SAMPLE_US = 20, 1500.0
_OURS = "kernel"


class TimesBesideTorch(NamedTuple):
    """Medians in microseconds, and the ratio of paired times."""

    speedup: Speedup
    time_us: float
    torch_us: float


def judge_products(
    entries: Sequence[LibraryEntry], prepared: PreparedKernels, platform: CudaPlatform, identity: GpuIdentity
) -> Iterator[JudgedProduct]:
    """A row for each entry, in order; one that cannot be run is a row with its fault."""
    for entry in entries:
        try:
            yield _judged(entry, prepared, platform, identity)
        except Cudal2Error as exc:
            yield _row(entry, identity, fault=" ".join(str(exc).split()))


def _judged(entry: LibraryEntry, prepared: PreparedKernels, platform: CudaPlatform, identity: GpuIdentity) -> JudgedProduct:
    """Raises: Cudal2Error where the kernel is not built, or is refused."""
    task = entry.task
    built = prepared.find(entry, identity.sms)
    if built is None:
        return _row(entry, identity, fault="its kernel is not built; see `cudal2-agent library prepare`")
    kernel = platform.load(0, built, task)
    found = beside_torch(kernel, task, platform)
    if isinstance(found, str):
        return _row(entry, identity, fault=found)
    return _row(entry, identity).model_copy(update=found._asdict())


def beside_torch(kernel: LoadedKernel, task: GemmTask, platform: CudaPlatform) -> TimesBesideTorch | str:
    """The kernel and PyTorch's own product in the same rounds; what was wrong where its results are."""
    if fault := fault_of(task, kernel, "cuda:0", lambda: platform.stream(0)):
        return fault
    sets, rival = operand_sets(task), by_torch_for(task)
    torch_us = ProductGraph(rival, sets, 2).sample_us()
    launches = launches_in(SAMPLE_US, torch_us)
    both = {_OURS: by_launching(kernel, platform), TORCH: rival}
    times = race(both, sets, launches=launches, rounds=ROUNDS, product_us=torch_us)
    return TimesBesideTorch(paired_speedup(times[_OURS], times[TORCH]), median_us(times[_OURS]), median_us(times[TORCH]))


def _row(entry: LibraryEntry, identity: GpuIdentity, fault: str = "") -> JudgedProduct:
    return JudgedProduct(
        task=entry.task,
        entry=entry.id,
        chip=identity.gpu,
        environment=environment_of(identity),
        speedup=None,
        fault=fault,
        measured_at=datetime.now(UTC),
    )
