"""The compiler with the real NVRTC (and nvcc, if present): limits, the cache, missing tools, logs."""

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cudal2_agent.contract import file_system
from cudal2_agent.contract.errors import CompilerMissing, MachineError, WorkerError
from cudal2_agent.contract.records.evaluation import CompileFailed, TimedOut
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building import compile_child, headers, toolchain
from cudal2_agent.sandbox.building import compiler as compiler_module
from cudal2_agent.sandbox.building.compile_log import ELSEWHERE, first_error, shown_log
from cudal2_agent.sandbox.building.compiler import Cancelled, Compiled, Compiler
from cudal2_agent.sandbox.building.toolchain import find_nvcc, nvrtc_version
from tests.sandbox.building.build_kernels import HOST, NAIVE, body, candidate, host

# A tree of 2^40 instantiations: the front end does not finish.
ENDLESS = (
    "template <long a, long b> struct T { static constexpr long v = T<2 * a, b - 1>::v + T<2 * a + 1, b - 1>::v; };\n"
    "template <long a> struct T<a, 0> { static constexpr long v = a; };\n"
    "constexpr long kV = T<1, 40>::v;\n"
) + body("d[0] = kV;")


@pytest.fixture
def options(tmp_path: Path) -> CompileOptions:
    return CompileOptions(cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def compiler(options: CompileOptions) -> Compiler:
    return Compiler(options)


def compiled(compiler: Compiler, source: str, arch: Arch = Arch.SM_90A) -> Compiled:
    outcome = compiler.compile(candidate(source), arch)
    assert isinstance(outcome, Compiled), outcome
    return outcome


@pytest.mark.parametrize("arch", Arch)
def test_a_kernel_compiles_for_every_architecture(compiler: Compiler, arch: Arch) -> None:
    outcome = compiled(compiler, NAIVE, arch)
    assert Path(outcome.artifact_path).read_bytes()[:4] == b"\x7fELF"
    assert f".target {arch}" in Path(outcome.ptx_path).read_text()
    assert "registers" in outcome.log


def test_allowed_headers_compile(compiler: Compiler) -> None:
    text = (
        "#include <cstdint>\n#include <stdint.h>\n#include <type_traits>\n#include <utility>\n#include <algorithm>\n"
        "#include <limits>\n#include <cuda.h>\n#include <cuda_bf16.h>\n#include <cooperative_groups.h>\n#include <cassert>\n"
        "static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64);\n"
        "static_assert(std::is_same_v<std::uint32_t, uint32_t>);\n"
        "static_assert(std::numeric_limits<int>::max() == std::max(0, ~(1 << 31)));\n"
    )
    assert Path(compiled(compiler, text + NAIVE).artifact_path).read_bytes()[:4] == b"\x7fELF"


def test_assertions_are_off_so_that_they_cannot_serialise_wgmma(compiler: Compiler) -> None:
    outcome = compiled(compiler, "#include <assert.h>\n" + body("assert(m == 77); d[0] = 1;"))
    assert "__assertfail" not in Path(outcome.ptx_path).read_text()


def test_the_second_time_it_comes_from_the_cache(compiler: Compiler, options: CompileOptions) -> None:
    first = compiled(compiler, NAIVE)
    again = compiled(Compiler(options), NAIVE)
    assert (first.cached, again.cached) == (False, True)
    assert again == first.model_copy(update={"cached": True})


def test_source_flags_and_architecture_are_part_of_the_key(compiler: Compiler) -> None:
    paths = {
        compiled(compiler, NAIVE).artifact_path,
        compiled(compiler, NAIVE + "//").artifact_path,
        compiled(compiler, NAIVE, Arch.SM_80).artifact_path,
    }
    flagged = compiler.compile(candidate(NAIVE, flags=("-use_fast_math",)), Arch.SM_90A)
    assert isinstance(flagged, Compiled)
    assert len(paths | {flagged.artifact_path}) == 4


def test_the_version_of_nvrtc_is_part_of_the_key(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(compiler, NAIVE)
    monkeypatch.setattr(compiler_module, "nvrtc_version", lambda: "13.2 (13.2.86)")
    other = compiled(compiler, NAIVE)
    assert not other.cached
    assert other.artifact_path != first.artifact_path


def test_our_headers_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "OWN_ROOT", tmp_path)
    (tmp_path / "a.cuh").write_text("1")
    before = headers.find_headers().fingerprint
    (tmp_path / "a.cuh").write_text("2")
    assert headers.find_headers().fingerprint != before


def test_an_error_is_told_by_its_first_line_and_cached(compiler: Compiler, options: CompileOptions) -> None:
    source = "\n#warning not an error\n" + NAIVE.replace("float sum", "flaot sum")
    first = compiler.compile(candidate(source), Arch.SM_90A)
    assert isinstance(first, CompileFailed)
    assert first.message.startswith("kernel.cu(")
    assert "flaot" in first.message
    entry = next(Path(options.cache_dir).glob("*/*/entry.json"))
    assert json.loads(entry.read_text())["compiled"] is False
    assert compiler.compile(candidate(source), Arch.SM_90A) == first
    assert "site-packages" not in first.log


def test_a_huge_log_is_shortened(compiler: Compiler) -> None:
    source = "\n".join(f"#warning {i} {'x' * 200}" for i in range(900)) + "\n#error the end\n"
    failed = compiler.compile(candidate(source), Arch.SM_90A)
    assert isinstance(failed, CompileFailed)
    assert len(failed.log) < 70_000
    assert len(failed.message) <= 300


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "kernel.log", "entry.json"])
@pytest.mark.parametrize("damage", ["change", "remove", "truncate"])
def test_a_damaged_entry_is_built_again(compiler: Compiler, name: str, damage: str) -> None:
    folder = Path(compiled(compiler, NAIVE).artifact_path).parent
    file = folder / name
    content = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if damage == "truncate" else bytes(255 - byte for byte in content))
    again = compiled(compiler, NAIVE)
    assert not again.cached
    assert compiled(compiler, NAIVE).cached
    assert not list(folder.parents[1].glob("building-*"))


def test_a_time_out_is_not_cached(options: CompileOptions) -> None:
    slow = Compiler(options.model_copy(update={"timeout_s": 0.02}))
    assert slow.compile(candidate(NAIVE), Arch.SM_90A) == TimedOut(stage="compile", limit_s=0.02)
    assert not compiled(Compiler(options), NAIVE).cached


def test_a_compilation_without_end_is_stopped(options: CompileOptions) -> None:
    endless = Compiler(options.model_copy(update={"timeout_s": 3.0}))
    started = time.monotonic()
    outcome = endless.compile(candidate(ENDLESS), Arch.SM_90A)
    assert isinstance(outcome, TimedOut)
    assert time.monotonic() - started < 20


def test_too_little_memory_is_no_verdict_that_stays(options: CompileOptions) -> None:
    cramped = Compiler(options.model_copy(update={"memory_bytes": 160 * 2**20}))
    outcome = cramped.compile(candidate(ENDLESS), Arch.SM_90A)
    assert isinstance(outcome, CompileFailed)
    assert re.search("out of memory|died with SIG", outcome.message)
    assert not list(Path(options.cache_dir).glob("*/*/entry.json"))


def test_what_a_killed_process_left_is_swept_after_a_day(options: CompileOptions) -> None:
    for name, age_s in (("building-old", 2 * 86400), ("building-new", 60)):
        folder = Path(options.cache_dir) / name
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    Compiler(options)
    assert [folder.name for folder in Path(options.cache_dir).iterdir()] == ["building-new"]


def test_many_threads_compile_one_source(compiler: Compiler) -> None:
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: compiled(compiler, NAIVE), range(4)))
    assert len({outcome.artifact_path for outcome in outcomes}) == 1
    assert compiled(compiler, NAIVE).cached


def test_a_compilation_can_be_cancelled(compiler: Compiler, options: CompileOptions) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        compiler.compile(candidate(NAIVE), Arch.SM_90A, cancel)
    assert not list(Path(options.cache_dir).glob("building-*"))


def test_an_unusable_cache_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MachineError, match="not writable") as caught:
        Compiler(CompileOptions(cache_dir=str(tmp_path / "file"))).compile(candidate(NAIVE), Arch.SM_90A)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", [ImportError("no module"), RuntimeError("no library"), OSError("not loadable")])
def test_a_missing_nvrtc_names_its_remedy(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def missing() -> str:
        raise fault

    monkeypatch.setattr(compile_child, "nvrtc_version", missing)
    nvrtc_version.cache_clear()
    try:
        with pytest.raises(CompilerMissing, match="pip install"):
            compiler.compile(candidate(NAIVE), Arch.SM_90A)
    finally:
        nvrtc_version.cache_clear()


def test_missing_headers_name_their_remedy(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_candidate_roots", list)
    with pytest.raises(CompilerMissing, match="pip install"):
        compiler.compile(candidate(NAIVE), Arch.SM_90A)


def test_a_missing_nvcc_is_told_only_when_it_is_needed(tmp_path: Path) -> None:
    options = CompileOptions(cache_dir=str(tmp_path), nvcc=str(tmp_path / "nvcc"))
    assert isinstance(Compiler(options).compile(candidate(NAIVE), Arch.SM_90A), Compiled)
    for wanting in (host(HOST), candidate(NAIVE, compiler="nvcc")):
        with pytest.raises(CompilerMissing, match="there is no nvcc at"):
            Compiler(options).compile(wanting, Arch.SM_90A)


def _has_nvcc() -> bool:
    try:
        return bool(find_nvcc(None))
    except CompilerMissing:
        return False


needs_nvcc = pytest.mark.skipif(not _has_nvcc(), reason="there is no nvcc here")


@needs_nvcc
def test_nvcc_builds_device_and_host_candidates(compiler: Compiler) -> None:
    device = compiler.compile(candidate(NAIVE, compiler="nvcc"), Arch.SM_90A)
    shared = compiler.compile(host(HOST), Arch.SM_90A)
    assert isinstance(device, Compiled)
    assert isinstance(shared, Compiled)
    assert device.artifact_path == device.cubin_path
    assert shared.artifact_path.endswith(".so")
    assert b"launch" in Path(shared.artifact_path).read_bytes()
    assert ".target sm_90a" in Path(shared.ptx_path).read_text()


@needs_nvcc
def test_nvcc_tells_its_errors(compiler: Compiler) -> None:
    failed = compiler.compile(host(HOST.replace("fill<<<", "flil<<<")), Arch.SM_90A)
    assert isinstance(failed, CompileFailed)
    assert "flil" in failed.message


def test_the_first_error_is_found_below_warnings() -> None:
    log = "kernel.cu(1): warning #177-D: unused\n\nkernel.cu(7): error: no\nkernel.cu(9): error: also no\n"
    assert first_error(log) == "kernel.cu(7): error: no"
    assert first_error("nothing of the kind") == "nothing of the kind"
    assert first_error("") == "the compiler gave no reason"


def test_nvdisasm_is_found_beside_the_compiler() -> None:
    assert toolchain.find_nvdisasm() is not None


ROOT, SCRATCH = Path("/opt/headers"), Path("/tmp/build")
SOURCE = '#include "/named/in/source.h"\n'


def shown(text: str) -> str:
    return shown_log(text, SOURCE, SCRATCH, (ROOT,))


@pytest.mark.parametrize(
    "text",
    [
        '/etc/passwd(1): error: identifier "root" is undefined\n  root:x:0:0\n      ^\n',
        '/opt/headers/../secret/passwd(1): error: identifier "root" is undefined\n  root:x:0:0\n      ^\n',
        "../../etc/passwd(1): error: expected a declaration\n  root:x:0:0\n  ^\n",
        '"/etc/passwd", line 1: error: identifier "root" is undefined\n  root:x:0:0\n',
        "/etc/passwd:1:5: error: 'root' does not name a type\n    1 | root:x:0:0:root\n      | ^~~~\n",
        "In file included from kernel.cu:3:\n/etc/passwd:1:5: error: 'root' does not name a type\n    1 | root:x:0:0:root\n",
        "/etc/passwd(1): warning #12-D: parsing restarts here after root\n  root:x:0:0\n",
    ],
)
def test_a_file_outside_is_not_quoted(text: str) -> None:
    said = shown(text + "\nkernel.cu(7): error: mine\n  flaot x;\n")
    assert "root" not in said
    assert "passwd" not in said
    assert ELSEWHERE in said
    assert said.endswith("kernel.cu(7): error: mine\n  flaot x;\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/opt/headers/cuda/std/array(3): error: no\n  int x\n", "cuda/std/array(3): error: no\n  int x\n"),
        ("/tmp/build/kernel.cu(3): error: no\n  a / b / c;\n", "kernel.cu(3): error: no\n  a / b / c;\n"),
        ("kernel.cu(3): warning #177-D: unused\n", "kernel.cu(3): warning #177-D: unused\n"),
        ("ptxas info    : Used 32 registers\n", "ptxas info    : Used 32 registers\n"),
        ("see https://example.org/a/b for more\n", "see https://example.org/a/b for more\n"),
    ],
)
def test_the_source_and_the_headers_are_shown(text: str, said: str) -> None:
    assert shown(text) == said


def test_a_file_that_exists_and_one_that_does_not_read_alike() -> None:
    told = 'kernel.cu(1): catastrophic error: cannot open source file "x.h"'
    assert shown(f"{told}: Permission denied\n") == shown(f"{told}\n") == f"{told}\n"
    gcc = "kernel.cu:1:10: fatal error: x.h"
    assert shown(f"{gcc}: Permission denied\n") == shown(f"{gcc}: No such file or directory\n")


def test_paths_that_the_source_does_not_name_are_blanked() -> None:
    said = shown("nvcc: /home/somebody/tools/bin/cicc died; see /named/in/source.h\n")
    assert said == f"nvcc: {ELSEWHERE} died; see /named/in/source.h\n"


def test_an_error_elsewhere_is_still_the_first_error() -> None:
    assert first_error(shown("/etc/passwd(1): error: identifier\n  x\n")) == f"{ELSEWHERE}: error: not shown"


@pytest.mark.parametrize("options", ["rw,nosuid,noexec", "rw"])
def test_a_host_candidate_on_a_disk_without_execution_is_no_fault_of_it(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are data for the driver, and need no execution."""
    (tmp_path / "mounts").write_text(
        f"27 1 254:0 / / rw - ext4 d rw\n30 27 0:3 / {tmp_path.resolve()} {options} - tmpfs t rw\n"
    )
    monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(compiler_module, "find_nvcc", lambda *_, **__: "/no/such/nvcc")
    building = Compiler(CompileOptions(cache_dir=str(tmp_path / "cache")))
    with pytest.raises(MachineError if "noexec" in options else WorkerError) as caught:
        building.compile(host(HOST), Arch.SM_90A)
    assert ("mounted without execution" in str(caught.value)) is ("noexec" in options)


def test_headers_of_cuda_12_lie_in_a_folder_for_each_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of CUDA 13's packages lie in one."""
    parts = {"cuda_runtime": "cuda_fp16.h", "cuda_cccl": "cuda/std/cstdint", "cuda_nvcc": "crt/host_defines.h"}
    for part, header in parts.items():
        (tmp_path / part / "include" / header).parent.mkdir(parents=True)
        (tmp_path / part / "include" / header).touch()
    monkeypatch.setattr(headers, "_package_folders", lambda name: [tmp_path] if name == "nvidia" else [])
    assert headers.find_headers().roots == (headers.OWN_ROOT, *(tmp_path / part / "include" for part in parts))
