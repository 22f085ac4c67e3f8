"""Kernels of schedules written by hand, as a library that was measured on the GPU at hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.library.kernel_library import open_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch import torch_session
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.agent.library.algorithms.suggested_algorithms import environment_of
from cudal2_agent.agent.library.library_writing import manifest_of, write_library
from cudal2_agent.agent.library.preparing import library_cache, prepare
from cudal2_agent.agent.model_tuning.judged_products import judge_products
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import load_settings
from tests.doubles.libraries import library_entry


@contextmanager
def library_of(tasks: Sequence[GemmTask], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With its kernels built. The session of PyTorch is as before afterwards."""
    monkeypatch.setenv("CUDAL2_HOME", str(folder / "home"))
    before, identity = torch_session.service(), CudaPlatform().identity(0)
    entries = []
    for task in tasks:
        entry = library_entry(task.model_copy(update={"arch": identity.arch}), chip=identity.gpu)
        here = entry.evaluation.model_copy(update={"environment": environment_of(identity)})
        entries.append(entry.model_copy(update={"evaluation": here}))
    ordered = tuple(sorted(entries, key=lambda one: one.id))
    for one in prepare(ordered, load_settings(), identity.sms):
        assert one.status == "built", one.message
    path = folder / "library.jsonl.gz"
    write_library(path, manifest_of(ordered, name="by-hand", chip=identity.gpu), ordered)
    torch._dynamo.reset()
    yield path
    torch_session.disable()
    torch_session.use_service(before)
    torch._dynamo.reset()


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """One rounding to bfloat16, and sums in f32 of values of about 1."""
    assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-3).all(), (found.double() - wanted).abs().max()


def served() -> int:
    return sum(cudal2.status().served.values())


def assert_judged_right(library: Path) -> None:
    """Beside PyTorch's own, whose ratios are printed."""
    held, platform = open_library(library), CudaPlatform()
    prepared = PreparedKernels(library_cache(load_settings()))
    rows = list(judge_products(list(held), prepared, platform, platform.identity(0)))
    assert [row.fault for row in rows] == [""] * len(held)
    for row in rows:
        print(f"{row.task.shape}{row.task.epilogue}: {row.time_us:.2f} us, {row.speedup.ratio:.3f} of PyTorch's")
