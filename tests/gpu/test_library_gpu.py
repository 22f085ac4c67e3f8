"""The kernel library on a GPU, and a kernel built as the Hugging Face hub builds it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cudal2.library.kernel_library import shipped_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.export.export_hub import PACKAGE
from cudal2_agent.agent.library.export.exporting import export_to_hub
from cudal2_agent.agent.library.library_writing import manifest_of
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.contract.settings.settings import load_settings
from tests.doubles.libraries import library_entry

# ---- a library on a GPU: its shipped entries are verified and timed anew, and its kernels are built ------------------------
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_shipped_entries_hold_and_are_timed_again(tmp_path: Path) -> None:
    words = ["library", "check", "--sample", "4", "--max-gflop", "1", "--device", "cuda:0"]
    assert main(words) == 0
    text = (tmp_path / "library-check.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["status"] for row in rows] == ["passed"] * 4
    assert all(row["time_us"] > 0.5 for row in rows)
    kernels = [row["speedup"] for row in rows if row["torch_us"] is None]
    assert all(0.5 < speedup["low"] <= speedup["ratio"] for speedup in kernels)
    algorithms = [row["torch_us"] / row["time_us"] for row in rows if row["torch_us"] is not None]
    assert all(gain > 0.5 for gain in algorithms), (
        "one of cuBLASLt is timed beside torch.mm, and has no speedup over AutoTuning"
    )
    assert main(words) == 0
    assert (tmp_path / "library-check.jsonl").read_text() == text, "nothing is checked twice"


def test_kernels_are_prepared_for_the_gpu_at_hand(home: Path) -> None:
    from cudal2_agent.agent.wiring.gpus import visible_sms

    library = shipped_library("H200")
    assert library is not None
    entry = next(iter(library))
    assert main(["library", "prepare", "--entry", entry.id]) == 0
    kernel = PreparedKernels(home / "cache" / "library").find(entry, visible_sms(Arch.SM_90A))
    assert kernel is not None
    assert kernel.cubin.startswith(b"\x7fELF")


# ---- the source of a kernel for the Hugging Face hub, built against this machine's PyTorch as its builder would ------------
NAME = "cudal2_gemm_of_test"
REGISTRATION = """#pragma once
#include <torch/library.h>
#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define REGISTER_EXTENSION(NAME)
"""
SIZES = (256, 128, 128)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The exported package with its operator. Entries are marked as of the GPU at hand, in all layouts, with a bias too."""
    import torch
    from torch.utils.cpp_extension import load

    m, n, k = SIZES
    tasks = (GemmTask(m=m, n=n, k=k, layout=layout, bias=bias) for layout in Layout for bias in (False, True))
    entries = tuple(library_entry(task) for task in tasks)
    chip = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    manifest = manifest_of(entries, name="small", chip=chip)
    root = tmp_path_factory.mktemp("hub")
    folder = root / "kernel"
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    export_to_hub(manifest, entries, folder, load_settings(home=root / "home"), sms)
    (root / "registration.h").write_text(REGISTRATION)
    sources = [str(folder / "torch-ext" / "torch_binding.cpp"), str(folder / "cudal2" / "entries.cpp")]
    load(name=NAME, sources=sources, extra_include_paths=[str(root)], with_cuda=True, is_python_module=False)
    operators = ModuleType(f"{PACKAGE}._ops")
    operators.ops = getattr(torch.ops, NAME)
    operators.add_op_namespace_prefix = lambda name: f"{NAME}::{name}"
    sys.modules[f"{PACKAGE}._ops"] = operators
    where = folder / "torch-ext" / PACKAGE
    spec = importlib.util.spec_from_file_location(PACKAGE, where / "__init__.py", submodule_search_locations=[str(where)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return module


def matrices(layout: Layout):
    """A and B of whole numbers, as views of what lies in memory."""
    import torch

    m, n, k = SIZES
    a = torch.randint(-2, 3, (k, m) if layout.transposes_a else (m, k), device="cuda").half()
    b = torch.randint(-2, 3, (n, k) if layout.transposes_b else (k, n), device="cuda").half()
    return a.t() if layout.transposes_a else a, b.t() if layout.transposes_b else b


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "a bias"])
@pytest.mark.parametrize("layout", Layout)
def test_products_are_served_by_the_entries_and_right(hub, layout, with_bias):
    import torch

    a, b = matrices(layout)
    bias = torch.randint(-2, 3, (SIZES[1],), device="cuda").half() if with_bias else None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        d = hub.matmul(a, b, bias)
        torch.cuda.synchronize()
    assert torch.equal(d, (a.double() @ b.double() + (0 if bias is None else bias.double())).half())
    assert not any("cublas" in event.key or "nvjet" in event.key or "cutlass" in event.key for event in seen.key_averages())


def test_other_products_go_to_pytorch(hub):
    import torch

    a, b = torch.randn(100, 60, device="cuda").half(), torch.randn(60, 20, device="cuda").half()
    assert torch.equal(hub.matmul(a, b), torch.mm(a, b))
    assert torch.equal(hub.matmul(a.float(), b.float()), torch.mm(a.float(), b.float()))


def test_gradients_and_graphs(hub):
    import torch

    a, b = matrices(Layout.NN)
    a, b = a.requires_grad_(), b.requires_grad_()
    hub.matmul(a, b).sum().backward()
    ones = torch.ones(SIZES[0], SIZES[1], device="cuda", dtype=torch.half)
    assert torch.equal(a.grad, ones @ b.detach().t())
    assert torch.equal(b.grad, a.detach().t() @ ones)
    left, right, graph = a.detach(), b.detach(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = hub.matmul(left, right)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, left @ right)
