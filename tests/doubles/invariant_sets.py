"""The batch-invariant mode on the CPU: a set with invented code, and a platform that sums in order of K."""

import hashlib
from pathlib import Path

import numpy as np
import torch

import cudal2
from cudal2.library.invariant_set import cubin_path, set_path
from cudal2.library.prepared_kernels import CachedKernel
from cudal2_agent.contract.records.library import InvariantKernel, InvariantSet
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.policies.schedule.invariant_kernels import invariant_sources
from tests.doubles.host_products import HostKernel, HostPlatform, at


def invariant_set(arch: Arch = Arch.SM_90A) -> InvariantSet:
    """The kernels of an architecture as they are, with invented code."""
    kernels = tuple(
        InvariantKernel(
            layout=one.task.layout,
            element=one.task.element,
            n_step=one.n_step,
            k_step=one.k_step,
            tile=one.tile,
            wave=one.wave,
            row=one.row,
            per_sm=one.per_sm,
            plan=one.candidate.plan,
            summation=one.summation,
            source_sha256=hashlib.sha256(one.candidate.source.encode()).hexdigest(),
            cubin_sha256=hashlib.sha256(_code(one.candidate.source)).hexdigest(),
        )
        for one in invariant_sources(arch)
    )
    return InvariantSet(product=cudal2.__version__, arch=arch, compiler="nvrtc 13.0", kernels=kernels)


def write_set(folder: Path, arch: Arch = Arch.SM_90A, named: Arch | None = None) -> None:
    """What `library prepare --batch-invariant` writes. `named`: an architecture whose file it gets by mistake."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in invariant_sources(arch):
        name = hashlib.sha256(one.candidate.source.encode()).hexdigest()
        cubin_path(folder, name, named or arch).write_bytes(_code(one.candidate.source))
    set_path(folder, named or arch).write_text(invariant_set(arch).model_dump_json(), encoding="utf-8")


def _code(source: str) -> bytes:
    return hashlib.sha256(source.encode()).digest()


class OrderedKernel(HostKernel):
    """Computes D = A·B in f32, one K after the other for every element, and rounds once."""

    def __init__(self, task: GemmTask, platform: "OrderedPlatform") -> None:
        super().__init__(task, failing=False)
        self.task, self._platform = task, platform

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        if self._platform.failing:
            super().__init__(self.task, failing=True)
            super().launch(a, b, d, stream, third)
        task = self.task
        left = at(a, task.k, task.m, task.element).t() if task.layout is Layout.NT else at(a, task.m, task.k, task.element)
        right = at(b, task.n, task.k, task.element).t() if task.layout is Layout.TN else at(b, task.k, task.n, task.element)
        # The mode serves matrix products of PyTorch, so none may be used here.
        rows, columns = left.float().numpy(), right.float().numpy()
        parts = 2 if task.m < self._platform.splits_below else 1
        totals = np.zeros((parts, task.m, task.n), dtype=np.float32)
        for k in range(task.k):
            totals[k * parts // task.k] += rows[:, k, None] * columns[k]
        total = totals.sum(0)
        at(d, task.m, task.n, task.element).copy_(torch.from_numpy(total))
        self.launches.append(stream)


class OrderedPlatform(HostPlatform):
    """The CPU as a GPU for the mode. `splits_below`: the M below which kernels split K, which they must not."""

    splits_below = 0

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> OrderedKernel:  # noqa: ARG002
        assert kernel.shared
        self.kernels.append(OrderedKernel(task, self))
        return self.kernels[-1]
