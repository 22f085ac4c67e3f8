"""nvcc as the compiler of a plan: where it is found, what is told where it is missing, and what it may read and start."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import LaunchPlan, parse_plan, render_plan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Rejected
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building import compiler as compiler_module
from cudal2_agent.sandbox.building import toolchain
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.check import check
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.building.headers import find_own_headers
from cudal2_agent.sandbox.building.toolchain import find_nvcc, toolkit_folder
from cudal2_agent.sandbox.jail.kind import Confinement
from cudal2_agent.sandbox.workers.process import ChildExit
from tests.sandbox.building.build_kernels import HOST, NAIVE, ORIGIN, TASK, candidate, host, plan
from tests.sandbox.building.test_compile_jail import HERE, INCLUSIONS, SECRET, jailed, needs_nvcc, secret

__all__ = ["jailed", "secret"]  # fixtures

BY_NVCC = plan().model_copy(update={"compiler": "nvcc"})


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path / "cache")))


def program(file: Path, text: str = "exit 0") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_a_plan_names_its_compiler() -> None:
    one = Candidate.from_source(render_plan(BY_NVCC) + NAIVE, ORIGIN)
    assert one.compiler == one.plan.compiler == "nvcc"
    assert parse_plan(render_plan(BY_NVCC)) == LaunchPlan.model_validate_json(BY_NVCC.model_dump_json()) == BY_NVCC


def test_a_plan_without_one_is_written_as_ever() -> None:
    """Ids of stored candidates are hashes of this text."""
    assert "compiler" not in plan().model_dump(mode="json")
    assert "compiler" not in render_plan(plan())
    assert candidate(NAIVE).id == "67c3308f01e62007"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """An nvcc in a package and one on the search path, with a g++ beside it."""
    packages = tmp_path / "nvidia"
    found = {"package": program(packages / "cu13/bin/nvcc"), "installed": program(tmp_path / "bin/nvcc")}
    program(packages / "cu13/nvvm/bin/cicc")
    program(tmp_path / "bin/g++")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "_TOOLKIT_BIN", tmp_path / "none")
    monkeypatch.setattr(toolchain, "_packaged", lambda name: iter([str(packages / "cu13/bin" / name)]))
    return found


def test_device_code_takes_the_package_and_host_code_the_toolkit(places: dict[str, Path]) -> None:
    assert find_nvcc(None) == str(places["package"])
    assert find_nvcc(None, host=True) == str(places["installed"])
    places["installed"].unlink()
    assert find_nvcc(None, host=True) == str(places["package"])


def test_a_package_without_its_code_generator_is_none(places: dict[str, Path]) -> None:
    (places["package"].parents[1] / "nvvm/bin/cicc").unlink()
    assert find_nvcc(None) == str(places["installed"])


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(("gone", "said"), [(("nvcc",), "there is no nvcc on this machine"), (("g++",), "needs g++")])
def test_a_plan_that_names_a_missing_nvcc_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(toolchain, "_packaged", lambda _: iter(()))
    for name in gone:
        (tmp_path / "bin" / name).unlink()
    builder = Builder(CompileOptions(cache_dir=str(tmp_path / "cache")), REFERENCE_CHIPS[Arch.SM_90A])
    assert not builder.builds_cutlass
    outcome = builder.build_one(candidate(NAIVE, compiler="nvcc", launch_plan=BY_NVCC), TASK)
    assert isinstance(outcome, Rejected)
    assert outcome.rule == "plan-compiler"
    assert said in outcome.message
    assert "pip install 'cudal2-agent[cutlass]'" in outcome.message
    assert "\n" not in outcome.message
    with pytest.raises(CompilerMissing):  # what a user trusts is a user's own
        builder._compiler.compile(host(HOST), Arch.SM_90A)


@needs_nvcc
def test_a_plan_that_names_nvcc_is_built_by_it(tmp_path: Path) -> None:
    """`__NVCC__` is defined by nvcc alone."""
    source = render_plan(BY_NVCC) + "#ifndef __NVCC__\n#error another compiler\n#endif\n" + NAIVE
    builder = Builder(CompileOptions(cache_dir=str(tmp_path / "cache")), REFERENCE_CHIPS[Arch.SM_90A])
    assert isinstance(builder.build_one(Candidate.from_source(source, ORIGIN), TASK), Built)


def test_cutlass_by_nvrtc_is_told_what_helps(compiler: Compiler) -> None:
    outcome = compiler.compile(candidate("#include <cute/no_such.hpp>\n" + NAIVE), Arch.SM_80)
    assert isinstance(outcome, CompileFailed)
    assert outcome.message.endswith('write "compiler": "nvcc" into the plan')


@needs_nvcc
def test_missing_headers_of_cutlass_name_their_package(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "cutlass_roots", tuple)
    outcome = compiler.compile(candidate("#include <cute/no_such.hpp>\n" + NAIVE, compiler="nvcc"), Arch.SM_80)
    assert isinstance(outcome, CompileFailed)
    assert outcome.message.endswith("not installed: pip install 'cudal2-agent[cutlass]'")


def test_another_toolkit_is_another_entry_of_the_cache(tmp_path: Path) -> None:
    """The package of nvcc, that of CUDA's headers and that of CCCL change one by one."""
    prints = set()
    for name in ("one", "two"):
        version = tmp_path / name / "include/cccl/cuda/std/__cccl/version.h"
        version.parent.mkdir(parents=True)
        version.write_text(f"// {name}")
        prints.add(find_own_headers(tmp_path / name).fingerprint)
    assert len(prints) == 2


FILES = [
    *INCLUSIONS[:4],
    '#if __has_include("FILE")\n#include "FILE"\n#endif\n',
    '#embed "FILE"',
    "constexpr char text[] = {\n#embed \"FILE\"\n};\n__constant__ char kept[] = {\n#embed \"FILE\"\n};",
    '#line 1 "FILE"\n#error here',
    '#pragma GCC dependency "FILE"\n#error here',
    '_Pragma("GCC dependency \\"FILE\\"")\n#error here',
    '#pragma include_alias("cuda_fp16.h", "FILE")',
    'asm(".incbin \\"FILE\\"");\n#error here',
    '__device__ void f() { asm volatile(".incbin \\"FILE\\";"); }',
    '__device__ void f() { asm volatile(".include \\"FILE\\";"); }',
]  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("text", FILES)
def test_a_file_outside_stays_unread(jailed: Compiler, secret: Path, text: str) -> None:
    """The static check, which refuses most of these, is skipped on purpose."""
    outcome = jailed.compile(candidate(text.replace("FILE", str(secret)) + "\n" + NAIVE, compiler="nvcc"), Arch.SM_90A)
    if isinstance(outcome, Compiled):
        assert SECRET.encode() not in Path(outcome.cubin_path).read_bytes() + Path(outcome.ptx_path).read_bytes()
    else:
        assert isinstance(outcome, CompileFailed)
        assert SECRET not in outcome.log


@pytest.mark.parametrize("text", [text for text in FILES if not text.startswith('asm(".incbin')])
def test_the_check_refuses_it_before(text: str) -> None:
    found = check(candidate(text.replace("FILE", "/etc/passwd") + "\n" + NAIVE, compiler="nvcc"), TASK, LIMITS[TASK.arch], 132)
    assert isinstance(found, Rejected)


@pytest.mark.parametrize(
    "flag",
    ["@/etc/passwd", "--options-file=x", "-optf=x", "-Xcompiler=-B/tmp", "-Xcompiler", "-ccbin=/tmp/g++",
     "--compiler-bindir=/x", "-include=/etc/passwd", "-I/etc", "-isystem=/etc", "-Xptxas=-o=/x", "-Xcicc=-x", "--run",
     "-ldir=/x", "--dryrun", "-E",
     "--keep-dir=/tmp", "-time=/tmp/x", "--input-drive-prefix=/", "-shared", "-x=c", "-odir=/tmp", "-M",
     "-DX=@/etc/passwd"],
)  # fmt: skip
def test_flags_that_reach_files_or_programs_are_refused(flag: str) -> None:
    found = check(candidate(NAIVE, compiler="nvcc", flags=(flag,)), TASK, LIMITS[TASK.arch], 132)
    assert isinstance(found, Rejected)
    assert found.rule == "flag"


@needs_nvcc
@pytest.mark.skipif(not HERE.landlock_abi, reason="this kernel has no Landlock")
@pytest.mark.parametrize("kind", [HERE, HERE.model_copy(update={"mount_namespace": False})], ids=["all", "landlock"])
def test_it_starts_its_own_tools_and_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Confinement
) -> None:
    """A compiler that a source has taken over: a script stands for it, and calls the real one afterwards."""
    tools = toolkit_folder(find_nvcc(None)) / "bin"
    attempts = ("/usr/bin/id", "/bin/ls /", "as --version", "env true", f"{tools}/nvlink --version")
    tries = "\n".join(f"{attempt} && echo started {attempt}" for attempt in attempts)
    script = program(tmp_path / "nvcc", f'{tries}\nexec {tools}/nvcc "$@"')
    monkeypatch.setattr(compiler_module, "confinement", lambda: kind)
    compiler = Compiler(CompileOptions(cache_dir=str(tmp_path / "cache"), nvcc=str(script)))
    outcome = compiler.compile(candidate(NAIVE, compiler="nvcc"), Arch.SM_90A)
    assert isinstance(outcome, Compiled)
    assert "started" not in outcome.log
    assert "uid=" not in outcome.log


@needs_nvcc
@pytest.mark.parametrize("name", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "NVCC_CCBIN"])
def test_the_environment_adds_nothing(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "own.h").write_text("")
    monkeypatch.setenv(name, "-DADDED" if "FLAGS" in name else str(tmp_path))
    text = "#if defined(ADDED) || __has_include(<own.h>)\n#error added\n#endif\n"
    assert isinstance(compiler.compile(candidate(text + NAIVE, compiler="nvcc"), Arch.SM_90A), Compiled)


@needs_nvcc
@pytest.mark.parametrize(
    "text",
    [
        "constexpr long f() { long i = 0; while (true) ++i; return i; }\nstatic_assert(f() == 0);\n",
        "template <int N> struct S { static constexpr int value = S<N + 1>::value; };\nstatic_assert(S<0>::value == 0);\n",
    ],
)
def test_work_without_end_while_compiling_ends(tmp_path: Path, text: str) -> None:
    limited = Compiler(CompileOptions(cache_dir=str(tmp_path / "cache"), timeout_s=20))
    assert not isinstance(limited.compile(candidate(text + NAIVE, compiler="nvcc"), Arch.SM_90A), Compiled)


@needs_nvcc
def test_host_code_of_a_device_candidate_never_runs(compiler: Compiler) -> None:
    """Only the device's half is compiled: a constructor of a global object stays text."""
    text = '#include <cstdlib>\nstruct S { S() { std::system("id"); } };\nstatic S s;\n'
    outcome = compiler.compile(candidate(text + NAIVE, compiler="nvcc"), Arch.SM_90A)
    assert isinstance(outcome, Compiled)
    assert b"system" not in Path(outcome.artifact_path).read_bytes()


@needs_nvcc
def test_no_more_of_them_work_at_once_than_memory_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected: a machine with room for two."""
    monkeypatch.setattr(compiler_module, "memory_limit", lambda: 2 * compiler_module._NVCC_BYTES + 1)
    working, most = 0, 0

    def counted(*_: object, **__: object) -> ChildExit:
        nonlocal working, most
        working += 1
        most = max(most, working)
        time.sleep(0.05)
        working -= 1
        return ChildExit(1, b"", b"kernel.cu(1): error: none", 0.05, "itself")

    monkeypatch.setattr(compiler_module, "run", counted)
    compiler = Compiler(CompileOptions(cache_dir=str(tmp_path / "cache")))
    sources = [candidate(f"// {number}\n{NAIVE}", compiler="nvcc") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda one: compiler.compile(one, Arch.SM_90A), sources))
    assert {type(outcome) for outcome in outcomes} == {CompileFailed}
    assert most == 2
