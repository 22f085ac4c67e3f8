"""The source of a kernel for the Hugging Face hub: its files, and its Python face on a double of the operator."""

import importlib.util
import itertools
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.agent.cli.library import app
from cudal2_agent.agent.library.export.export_hub import KERNEL, PACKAGE, export_hub
from cudal2_agent.agent.library.library_writing import manifest_of
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask
from tests.agent.library.test_export_cpp import KERNELS
from tests.agent.library.test_export_cpp import write as write_cpp
from tests.doubles.libraries import library_entry, small_tasks, write_entries

_NUMBERS = itertools.count()  # PyTorch keeps an operator's gradients, so each test has operators of its own


def write(kernels, folder: Path):
    return export_hub(kernels, manifest_of(tuple(entry for entry, _ in kernels), name="small", chip="H200"), folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    write(KERNELS, tmp_path / "hub")
    return tmp_path / "hub"


def test_the_build_file_names_files_that_are_there(folder):
    told = tomllib.loads((folder / "build.toml").read_text())
    assert told["general"] == {
        "name": KERNEL,
        "version": 2,
        "edition": 5,
        "license": "Apache-2.0",
        "backends": ["cuda"],
    }
    named = [*told["torch"]["src"], *told["kernel"][PACKAGE]["src"]]
    assert [name for name in named if not (folder / name).is_file()] == []
    assert told["torch"]["pyext"] == ["py", "cubin"]


def test_machine_code_lies_beside_the_python_file_under_the_names_of_the_entries(folder):
    package = folder / "torch-ext" / PACKAGE
    entries = (folder / "cudal2" / "entries.cpp").read_text()
    cubins = sorted(package.glob("*.cubin"))
    assert len(cubins) == len(KERNELS)
    for cubin in cubins:
        assert f'"{cubin.name}"' in entries
        assert cubin.read_bytes() in {kernel.cubin for _, kernel in KERNELS}


def test_entries_with_f16_sums_are_left_out(tmp_path):
    half = library_entry(GemmTask(m=16, n=16, k=32, accumulate=AccumulatorType.F16))
    mixed = [*KERNELS, (half, BuiltKernel(b"half", KERNELS[0][1].plan, half.task))]
    assert write(mixed, tmp_path / "hub").entries == len(KERNELS)
    with pytest.raises(UsageError, match="no kernel with f32 sums"):
        write(mixed[-1:], tmp_path / "other")


@pytest.mark.parametrize("export", [write, write_cpp])
def test_entries_with_an_activation_are_left_out(tmp_path, export):
    """Nothing that asks for a product alone may get one of them."""
    entry = library_entry(GemmTask(m=16, n=16, k=32, bias=True, activation="gelu"))
    mixed = [*KERNELS, (entry, BuiltKernel(b"gelu", KERNELS[0][1].plan, entry.task))]
    assert export(mixed, tmp_path / "out").entries == len(KERNELS)
    assert all(file.read_bytes() != b"gelu" for file in (tmp_path / "out").rglob("*.cubin"))
    with pytest.raises(UsageError, match="no kernel"):
        export(mixed[-1:], tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def package(folder, monkeypatch):
    """The exported Python package, with an operator that multiplies by PyTorch in place of the compiled one."""
    calls: list[str] = []
    namespace = f"cudal2_hub_{next(_NUMBERS)}"
    library = torch.library.Library(namespace, "DEF")
    library.define("mm(Tensor a, Tensor b, Tensor? bias=None) -> Tensor")

    def multiply(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        calls.append("mm")
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)

    library.impl("mm", multiply, "CPU")
    doubled = ModuleType(f"{PACKAGE}._ops")
    mm = getattr(torch.ops, namespace).mm
    doubled.ops = SimpleNamespace(mm=mm, open_folder=calls.append)
    doubled.add_op_namespace_prefix = lambda name: f"{namespace}::{name}"
    monkeypatch.setitem(sys.modules, f"{PACKAGE}._ops", doubled)
    where = folder / "torch-ext" / PACKAGE
    spec = importlib.util.spec_from_file_location(PACKAGE, where / "__init__.py", submodule_search_locations=[str(where)])
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, PACKAGE, module)
    spec.loader.exec_module(module)
    assert calls == [str(where)], "the operator is told where the machine code lies"
    calls.clear()
    yield SimpleNamespace(matmul=module.matmul, mm=mm, calls=calls)
    library._destroy()


def test_a_product_on_the_cpu_and_one_of_more_dimensions_go_to_pytorch(package):
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    assert torch.equal(package.matmul(a, b), torch.matmul(a, b))
    assert torch.equal(package.matmul(a[0], b), torch.matmul(a[0], b))
    bias = torch.randn(5)
    assert torch.equal(package.matmul(a, b, bias), torch.matmul(a, b) + bias)
    assert package.calls == []


def test_the_operator_has_gradients_and_a_fake(package):
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    weight = torch.randn(3, 5)
    (package.mm(a, b) * weight).sum().backward()
    assert package.calls == ["mm"]
    assert torch.allclose(a.grad, weight @ b.detach().t())
    assert torch.allclose(b.grad, a.detach().t() @ weight)
    mode = torch._subclasses.FakeTensorMode()
    fakes = mode.from_tensor(a.detach()), mode.from_tensor(b.detach())
    with mode:
        d = package.mm(*fakes)
    assert d.shape == (3, 5)


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1)], ids=["a row", "one number", "a column"])
def test_the_operator_has_the_gradient_of_a_bias(package, shape):
    a, b, bias = (torch.randn(*size, requires_grad=True) for size in ((3, 4), (4, 5), shape))
    weight = torch.randn(3, 5)
    (package.mm(a, b, bias) * weight).sum().backward()
    found = a.grad, b.grad, bias.grad
    a.grad = b.grad = bias.grad = None
    ((a @ b + bias) * weight).sum().backward()
    for one, other in zip(found, (a.grad, b.grad, bias.grad), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(package.mm(a, b, bias=bias), a @ b + bias, atol=1e-6)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    return tmp_path


def export(*words: object):
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_library_becomes_a_folder_for_cpp(home):
    library = write_entries(home / "library", [library_entry(task) for task in small_tasks(2)])
    done = export("--library", library, "--out", home / "kernels", "--json")
    summary = json.loads(done.stdout)
    assert summary["entries"] == 2
    cubins = list((home / "kernels" / "cubins").iterdir())
    assert summary["cubin_bytes"] == sum(file.stat().st_size for file in cubins)
    assert all(file.read_bytes().startswith(b"\x7fELF") for file in cubins)
    assert 'Launch{"' in (home / "kernels" / "entries.cpp").read_text()


def test_a_plain_entry_is_launched_plainly(home):
    library = write_entries(home / "library", [library_entry(small_tasks(1)[0], programmatic=False)])
    assert "1 entries, 1 cubins" in export("--library", library, "--out", home / "plain").stdout
    [launch] = [line for line in (home / "plain" / "entries.cpp").read_text().splitlines() if "Launch{" in line]
    assert ", false, {" in launch


def test_the_same_library_becomes_solutions_of_flashinfer_bench(home):
    library = write_entries(home / "library", [library_entry(task) for task in small_tasks(2)])
    done = export("--library", library, "--format", "flashinfer-bench", "--out", home / "set")
    assert "2 definitions, 2 workloads, 2 solutions written to" in done.stdout
    [first, _] = sorted((home / "set").rglob("solutions/**/*.json"))
    solution = json.loads(first.read_text())
    assert solution["spec"]["target_hardware"] == ["cuda", "H200", "sm_90a"]
    assert {source["path"] for source in solution["sources"]} >= {"kernel.cuh", "kernel.cu", "launch.cu"}


def test_the_same_library_becomes_a_kernel_for_the_hub(home):
    library = write_entries(home / "library", [library_entry(small_tasks(1)[0])])
    assert "1 entries, 1 cubins" in export("--library", library, "--format", "kernels", "--out", home / "hub").stdout
    [cubin] = (home / "hub").rglob("*.cubin")
    assert cubin.read_bytes().startswith(b"\x7fELF")


def test_only_entries_that_beat_autotuning_are_written(home):
    won, lost = (library_entry(task, ratio=ratio) for task, ratio in zip(small_tasks(2), (1.2, 1.005), strict=True))
    library = write_entries(home / "library", [won, lost])
    assert json.loads(export("--library", library, "--out", home / "kernels", "--json").stdout)["entries"] == 1
    with pytest.raises(UsageError, match="no such entry that is faster than AutoTuning"):
        export("--library", library, "--entry", lost.id, "--out", home / "other")


def test_an_entry_that_cannot_be_built_is_told_and_nothing_is_written(home):
    stale = library_entry(GemmTask(m=16, n=16, k=64), source_sha256="0" * 64)
    library = write_entries(home / "library", [stale, library_entry(GemmTask(m=16, n=32, k=64))])
    with pytest.raises(LibraryError, match=rf"1 of 2 entries cannot be built; the first is {stale.id[:8]}: .*stale"):
        export("--library", library, "--out", home / "kernels")
    assert not (home / "kernels").exists()
