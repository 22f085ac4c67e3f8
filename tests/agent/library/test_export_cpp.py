"""The folder for C++: it builds without a CUDA toolkit, and its example launches on the fake driver and checks results."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.agent.library.export.export_cpp import HEADER, export_cpp, header_text
from cudal2_agent.agent.library.library_writing import manifest_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from tests.doubles.fake_driver import fake_cubin, fake_driver_file
from tests.doubles.libraries import library_entry

POINTERS = [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]
MAPS = [{"tensor_map": {"of": of, "box": [16, 16], "swizzle": 32, "l2": 256}} for of in "ABD"]
EVERY_KIND = [*POINTERS, {"workspace": 64}, {"scalar": -5}, {"scalar": -(2**63), "type": "i64"}, {"scalar": 2, "type": "f32"}]


def exported(task: GemmTask, args: list, sizes: list[int], cubin: bytes | None = None, **more):
    """An entry whose code, on the fake driver, computes the product in host memory."""
    launch = {
        "entry": "gemm",
        "grid": [4, 1, 1],
        "block": [128, 1, 1],
        "cluster": [2, 1, 1],
        "args": args,
        "programmatic": True,
    }
    plan = resolve(plan_from_json({"arch": "sm_90a", "launches": [launch], **more}), task, LIMITS[Arch.SM_90A], 132)
    product = (task.m, task.n, task.k, int(task.layout.transposes_a), int(task.layout.transposes_b), *[1] * task.bias)
    return library_entry(task), BuiltKernel(cubin or fake_cubin({"gemm": sizes}, product), plan, task)


def task_of(m: int, n: int, k: int, layout: str = "nn", *, bias: bool = False) -> GemmTask:
    return GemmTask(m=m, n=n, k=k, layout=Layout(layout), bias=bias)


WITH_BIAS = exported(task_of(32, 48, 64, bias=True), [*POINTERS, {"tensor": "bias"}], [8, 8, 8, 8])
KERNELS = [
    WITH_BIAS,
    exported(task_of(32, 48, 64), POINTERS, [8, 8, 8]),
    exported(task_of(64, 32, 80, "tn"), MAPS, [128, 128, 128]),
    exported(
        task_of(16, 64, 128, "nt"), EVERY_KIND, [8, 8, 8, 8, 4, 8, 4], workspace={"bytes": 256, "zero": True, "zero_bytes": 64}
    ),
]


def write(kernels, folder: Path):
    return export_cpp(kernels, manifest_of(tuple(entry for entry, _ in kernels), name="small", chip="H200"), folder)


def run(*words: object, **environment: str) -> subprocess.CompletedProcess:
    told = {**os.environ, **environment}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, env=told)


def build(folder: Path) -> Path:
    """Builds the example of a folder against the fake driver: with CMake, or by hand where there is none."""
    compiler, driver = shutil.which("c++") or pytest.skip("needs a C++ compiler"), fake_driver_file(posing=True)
    program = folder / "build" / "example"
    if shutil.which("cmake") is None:
        program.parent.mkdir()
        sources = (folder / "entries.cpp", folder / "example.cpp")
        commands = [(compiler, "-std=c++17", "-Wall", "-Werror", *sources, driver, "-ldl", "-pthread", "-o", program)]
    else:
        told = (f"-DCUDA_DRIVER={driver}", "-DCMAKE_CXX_FLAGS=-Wall -Werror")
        commands = [("cmake", "-S", folder, "-B", program.parent, *told), ("cmake", "--build", program.parent)]
    for command in commands:
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    return program


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of all kernels, with its example."""
    folder = tmp_path_factory.mktemp("export") / "kernels"
    write(KERNELS, folder)
    build(folder)
    return folder


def test_the_example_builds_without_a_toolkit_and_every_kernel_is_right(built):
    done = run(built / "build" / "example", built)
    assert done.returncode == 0, done.stdout + done.stderr
    ids = {entry.task.bias: entry.id for entry, _ in KERNELS if entry.task.n == 48}
    assert done.stdout.splitlines() == [
        "16x64x128: right",
        *sorted(("32x48x64: right", "32x48x64 + bias: right"), key=lambda line: ids[" + bias" in line]),
        "64x32x80: right",
        "4 of 4 kernels are right on NVIDIA H200",
    ]


def test_a_wrong_kernel_is_seen_by_the_example(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "kernels")
    for cubin in (folder / "cubins").iterdir():
        cubin.write_bytes(cubin.read_bytes().replace(b"product 32 48 64", b"product 32 48 63"))
    done = run(folder / "build" / "example", folder)
    assert done.returncode == 1
    assert re.search(r"^D\[\d+\]\[\d+\] is -?\d+, not -?\d+\n32x48x64: WRONG$", done.stdout, re.MULTILINE)


def test_a_kernel_that_leaves_its_bias_out_is_seen_by_the_example(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "kernels")
    for cubin in (folder / "cubins").iterdir():
        cubin.write_bytes(cubin.read_bytes().replace(b"product 32 48 64 0 0 1", b"product 32 48 64 0 0"))
    done = run(folder / "build" / "example", folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "32x48x64 + bias: WRONG" in lines
    assert "32x48x64: right" in lines


# A program as it was written before there was a bias, and then one with a bias. The fake driver computes in host memory.
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include "cudal2.hpp"

cudal2::Address zeros(std::size_t words) {
  void* const memory = std::aligned_alloc(256, (words * 2 + 255) / 256 * 256);
  std::memset(memory, 0, words * 2);
  return reinterpret_cast<cudal2::Address>(memory);
}
unsigned first(cudal2::Address d) { return *reinterpret_cast<std::uint16_t*>(d); }

int main(int, char** words) {
  cudal2::KernelLibrary library(words[1], cudal2::kExportedChip, cudal2::exported_entries());
  const cudal2::Address a = zeros(64 * 80), b = zeros(80 * 48), d = zeros(64 * 48), bias = zeros(48);
  *reinterpret_cast<std::uint16_t*>(bias) = 0x3C00;
  const cudal2::Product other{64, 32, 80, cudal2::Layout::kTN, cudal2::Element::kF16, cudal2::Accumulator::kF32};
  bool served = library.multiply({32, 48, 64}, a, b, d, nullptr);
  std::printf("%d %x\n", served, first(d));
  served = library.multiply({32, 48, 64}, a, b, d, nullptr, bias);
  std::printf("%d %x\n", served, first(d));
  std::printf("%d %d\n", library.multiply(other, a, b, d, nullptr), library.multiply(other, a, b, d, nullptr, bias));
  cudal2::Product with_bias{32, 48, 64};
  with_bias.bias = true;
  std::printf("%d\n", library.find(with_bias) && library.find(with_bias) != library.find({32, 48, 64}));
  try {
    library.multiply(with_bias, a, b, d, nullptr);
  } catch (const cudal2::Error& error) {
    std::printf("%s\n", error.what());
  }
}
"""


def test_a_bias_chooses_the_entry_and_programs_without_one_compile_as_before(built, tmp_path):
    compiler, driver = shutil.which("c++") or pytest.skip("needs a C++ compiler"), fake_driver_file(posing=True)
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM)
    flags = ("-std=c++17", "-Wall", "-Werror", "-I", built)
    done = run(compiler, *flags, source, built / "entries.cpp", "-ldl", "-pthread", "-o", program)
    assert done.returncode == 0, done.stderr
    told = run(program, built, LD_LIBRARY_PATH=str(driver.parent))
    assert told.stdout.splitlines() == ["1 0", "1 3c00", "1 0", "1", "the kernel reads a third operand, and none is given"], (
        told.stderr
    )


def test_a_missing_cubin_is_told_with_its_path(built, tmp_path):
    done = run(built / "build" / "example", tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"{tmp_path}/cubins/[0-9a-f]{{64}}\.cubin cannot be read; name the folder of the kernels\n", done.stderr
    )


def test_on_another_chip_nothing_is_served_unless_asked(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "kernels", ignore=shutil.ignore_patterns("build"))
    entries = folder / "entries.cpp"
    entries.write_text(entries.read_text().replace('kExportedChip = "H200"', 'kExportedChip = "H100"'))
    program = build(folder)
    refused = run(program, folder)
    assert refused.returncode == 1
    assert "32x48x64: no kernel on this GPU" in refused.stdout
    assert run(program, folder, "any").returncode == 0


def test_the_plan_is_the_one_that_was_measured(tmp_path):
    write(KERNELS, tmp_path / "kernels")
    text = (tmp_path / "kernels" / "entries.cpp").read_text()
    assert (
        'Launch{"gemm", Dim{4, 1, 1}, Dim{128, 1, 1}, Dim{2, 1, 1}, 0, true, {pointer(kA), pointer(kB), pointer(kD)}}' in text
    )
    views = (f"{{6, {sizes}, {{16, 16}}, 32, 256}}" for sizes in ("{80, 64}, {160}", "{80, 32}, {160}", "{32, 64}, {64}"))
    maps = ", ".join(f"tensor_map(k{name}, 0, {view})" for name, view in zip("ABD", views, strict=True))
    assert f"{{{maps}}}" in text
    assert "pointer(kWorkspace, 64), scalar(4294967291u, 4), scalar(9223372036854775808u, 8), scalar(1073741824u, 4)}" in text
    assert "256, Zero::kEveryRun, 64, 132}" in text


def test_types_and_layouts_are_named(tmp_path):
    task = GemmTask(m=16, n=16, k=16, element=ElementType.BF16, layout=Layout.NT)
    half = GemmTask(m=16, n=16, k=32, accumulate=AccumulatorType.F16)
    write([exported(task, POINTERS, [8, 8, 8]), (library_entry(half), KERNELS[0][1])], tmp_path / "kernels")
    text = (tmp_path / "kernels" / "entries.cpp").read_text()
    assert "{16, 16, 16, Layout::kNT, Element::kBF16, Accumulator::kF32}" in text
    assert "{16, 16, 32, Layout::kNN, Element::kF16, Accumulator::kF16}" in text


def test_an_entry_with_a_bias_names_its_operand_and_is_told_apart(tmp_path):
    mapped = {"tensor_map": {"of": "bias", "box": [48, 1]}}
    both = exported(task_of(32, 48, 64, bias=True), [*POINTERS, {"tensor": "bias"}, mapped], [8, 8, 8, 8, 128])
    write([KERNELS[1], both], tmp_path / "kernels")
    text = (tmp_path / "kernels" / "entries.cpp").read_text()
    assert "{32, 48, 64, Layout::kNN, Element::kF16, Accumulator::kF32}" in text
    assert "{32, 48, 64, Layout::kNN, Element::kF16, Accumulator::kF32, true}" in text
    assert "pointer(kThird), tensor_map(kThird, 0, {6, {48, 1}, {96}, {48, 1}, 0, 128})" in text
    assert "| 32x48x64 + bias | nn | f16 | f32 |" in (tmp_path / "kernels" / "README.md").read_text()


def test_equal_machine_code_is_one_file(tmp_path):
    same = [exported(task_of(16, 16, k), POINTERS, [8, 8, 8], cubin=b"the same") for k in (16, 32)]
    summary = write(same, tmp_path / "kernels")
    assert (summary.entries, summary.cubins, summary.cubin_bytes) == (2, 1, 8)


def test_equal_libraries_give_equal_folders(tmp_path):
    write(KERNELS, tmp_path / "one")
    write(KERNELS[::-1], tmp_path / "two")
    for file in ("entries.cpp", HEADER, "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_header_is_one_file_that_includes_the_standard_library_only():
    text = header_text()
    assert re.findall(r'#include "', text) == []
    assert text.count("#pragma once") == 1
    assert 200 < text.count("\n") < 700


def test_the_readme_tells_chip_speedup_and_licence(tmp_path):
    write(KERNELS, tmp_path / "kernels")
    text = (tmp_path / "kernels" / "README.md").read_text()
    assert "# Kernels for H200" in text
    assert "| 32x48x64 | nn | f16 | f32 | 2.00 | 1.300 (1.290 to 1.310) |" in text
    assert "Apache-2.0" in text
    assert "$" not in text


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder; choose another with --out"):
        write(KERNELS, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_library_without_kernels_is_told(tmp_path):
    manifest = manifest_of((KERNELS[0][0],), name="small", chip="H200")
    with pytest.raises(UsageError, match="small has no kernel to export"):
        export_cpp([], manifest, tmp_path / "kernels")
