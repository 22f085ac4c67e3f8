"""Sources that make the compiler read, or probe for, forbidden files. The static check is skipped on purpose."""

import os
import re
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import CompilerMissing, MachineError
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building import compile_child
from cudal2_agent.sandbox.building import compiler as compiler_module
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.building.headers import cutlass_roots
from cudal2_agent.sandbox.building.toolchain import find_nvcc
from cudal2_agent.sandbox.jail.entering import NOT_JAILED, Layers
from cudal2_agent.sandbox.jail.kind import Confinement, confinement
from cudal2_agent.sandbox.workers.fork_servers import ForkServers
from cudal2_agent.sandbox.workers.process import ChildExit
from tests.sandbox.building.build_kernels import HOST, NAIVE, candidate, host

HERE = confinement()
SECRET = "verysecretword"
KINDS = [
    pytest.param(HERE, id="all", marks=pytest.mark.skipif(HERE.kind == "none", reason="there is no jail here")),
    pytest.param(
        HERE.model_copy(update={"mount_namespace": False}),
        id="landlock",
        marks=pytest.mark.skipif(not HERE.landlock_abi, reason="this kernel has no Landlock"),
    ),
    pytest.param(
        HERE.model_copy(update={"landlock_abi": 0}),
        id="mounts",
        marks=pytest.mark.skipif(not HERE.mount_namespace, reason="this system has no user namespaces"),
    ),
]
needs_cutlass = pytest.mark.skipif(not cutlass_roots(), reason="CUTLASS is not installed")


def _has_nvcc() -> bool:
    try:
        return bool(find_nvcc(None))
    except CompilerMissing:
        return False


needs_nvcc = pytest.mark.skipif(not _has_nvcc(), reason="there is no nvcc here")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "secret.h"
    file.parent.mkdir()
    file.write_text(f"{SECRET} = 1;\n")
    return file


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path / "cache")))


@pytest.fixture(params=KINDS)
def jailed(request: pytest.FixtureRequest, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler in each kind of jail of this machine."""
    monkeypatch.setattr(compiler_module, "confinement", lambda: request.param)
    return compiler


# Each includes the file FILE; the last are ways through the macros of allowed headers.
INCLUSIONS = [
    '#include "FILE"',
    "#include <FILE>",
    '#define NAME "FILE"\n#include NAME',
    "#define PASTED(x) <x>\n#include PASTED(FILE)",
    pytest.param(
        "#include <cute/util/type_traits.hpp>\n#undef CUDA_STD_HEADER\n#define CUDA_STD_HEADER(x) <FILE>\n"
        "#include <cute/container/type_list.hpp>",
        marks=needs_cutlass,
    ),
    pytest.param(
        "#define type_traits ../../../../../../../../../../../../../../../../FILE\n#include <cute/util/type_traits.hpp>",
        marks=needs_cutlass,
    ),
]


@pytest.mark.parametrize("text", INCLUSIONS)
def test_a_file_outside_is_not_read(jailed: Compiler, secret: Path, text: str) -> None:
    outcome = jailed.compile(candidate(text.replace("FILE", str(secret)) + NAIVE), Arch.SM_90A)
    assert isinstance(outcome, CompileFailed)
    assert SECRET not in outcome.log
    assert "Permission denied" not in outcome.log


def test_without_a_jail_it_would_be_read_but_not_quoted(
    compiler: Compiler, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any jail (injected), the log still quotes only the source and the headers."""
    monkeypatch.setattr(compiler_module, "confinement", Confinement)
    outcome = compiler.compile(candidate(f'#include "{secret}"' + NAIVE), Arch.SM_90A)
    assert isinstance(outcome, CompileFailed)
    assert "not shown" in outcome.log
    assert SECRET not in outcome.log
    secret.write_text("static_assert(true);\n")
    assert isinstance(compiler.compile(candidate(f'#include "{secret}"\n' + NAIVE), Arch.SM_90A), Compiled)


PLACES = ("FILE", "/etc/passwd", "/dev/null", "/proc/self/environ", "/proc/driver", "/sys/devices", "DOTS/etc/passwd")
ASKS = (
    "__has_include({name})",
    "P(__has_, include)({name})",
    "__has_inc\\\nlude({name})",
    "__has_include_next({name})",
)


def _places(secret: Path) -> list[str]:
    return [place.replace("FILE", str(secret)).replace("DOTS", "/".join([".."] * 20)) for place in PLACES]


def test_asking_whether_a_file_exists_finds_none(jailed: Compiler, secret: Path) -> None:
    """A source cannot detect a GPU, a driver or a user name."""
    names = [f"{opening}{place}{end}" for place in _places(secret) for opening, end in ('""', "<>")]
    asked = [f"#if {ask.format(name=name)}\n#error found\n#endif" for ask in ASKS for name in names]
    known = "#if !__has_include(<cuda_fp16.h>)\n#error the question itself does not work\n#endif"
    text = "\n".join(["#define P(a, b) a##b", known, *asked, NAIVE])
    assert isinstance(jailed.compile(candidate(text), Arch.SM_90A), Compiled)


@pytest.mark.parametrize("place", ["FILE", "/dev/null", "DOTS/etc/passwd"])
def test_including_what_exists_reads_like_including_what_does_not(jailed: Compiler, secret: Path, place: str) -> None:
    there = _places(secret)[PLACES.index(place)]
    logs = []
    for name in (there, f"{there}-absent"):
        outcome = jailed.compile(candidate(f'#include "{name}"\n'), Arch.SM_90A)
        assert isinstance(outcome, CompileFailed)
        logs.append(re.sub(r" *\^", "^", outcome.log.replace(name, "NAME")))
    assert logs[0] == logs[1]


def test_another_entry_of_the_cache_is_not_read(jailed: Compiler) -> None:
    other = jailed.compile(candidate(f"// {SECRET}\n" + NAIVE), Arch.SM_90A)
    assert isinstance(other, Compiled)
    source = Path(other.artifact_path).with_name("kernel.cu")
    outcome = jailed.compile(candidate(f'#include "{source}"\n'), Arch.SM_90A)
    assert isinstance(outcome, CompileFailed)
    assert "cannot open" in outcome.message


@needs_cutlass
def test_what_is_allowed_still_compiles(jailed: Compiler) -> None:
    text = "#include <cudal2/mma.cuh>\n#include <cuda_fp16.h>\n#include <cute/util/type_traits.hpp>\n"
    text += "#include <cuda/std/array>\n#include <cstdint>\n"
    assert isinstance(jailed.compile(candidate(text + NAIVE), Arch.SM_90A), Compiled)


@needs_nvcc
@pytest.mark.parametrize("text", ['#include "FILE"', '#if __has_include("FILE")\n#include "FILE"\n#endif'])
def test_nvcc_does_not_read_it_either(jailed: Compiler, secret: Path, text: str) -> None:
    outcome = jailed.compile(host(text.replace("FILE", str(secret)) + HOST), Arch.SM_90A)
    assert SECRET not in outcome.log
    assert not isinstance(outcome, Compiled) or "__has_include" in text


@needs_nvcc
@pytest.mark.skipif(not HERE.mount_namespace, reason="this system has no user namespaces")
def test_nvcc_cannot_tell_what_exists(compiler: Compiler, secret: Path) -> None:
    outcomes = [
        compiler.compile(host(f'#if __has_include("{name}")\n#error found\n#endif\n{HOST}'), Arch.SM_90A)
        for name in (secret, f"{secret}-absent")
    ]
    assert [type(outcome) for outcome in outcomes] == [Compiled, Compiled]


@needs_nvcc
def test_nvcc_reads_the_folders_that_a_host_candidate_names(jailed: Compiler, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.h").write_text("#define VALUE 1\n")
    source = HOST.replace("#include <vector>", "#include <own.h>\nstatic_assert(VALUE == 1);")
    assert isinstance(jailed.compile(host(source, include_dirs=(str(tmp_path / "mine"),)), Arch.SM_90A), Compiled)


def test_a_compiler_is_told_of_no_gpu(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def spy(*_: object, **arguments: object) -> ChildExit:
        seen.update(arguments)
        return ChildExit(compile_child.REFUSED, b"", b"error: none", 0.1, "itself")

    monkeypatch.setattr(ForkServers, "run", spy)
    compiler.compile(candidate(NAIVE), Arch.SM_90A)
    limits = seen["limits"]
    assert isinstance(limits, compiler_module.Limits)
    assert not limits.devices


def test_a_jail_that_is_refused_is_our_fault(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected: layers that worked in the probe are refused to the compiler."""
    ended = ChildExit(NOT_JAILED, b"", b"error: Landlock: not now", 0.1, "itself")
    monkeypatch.setattr(ForkServers, "run", lambda *_, **__: ended)
    with pytest.raises(MachineError, match="jail") as caught:
        compiler.compile(candidate(NAIVE), Arch.SM_90A)
    assert "not now" in caught.value.log


@pytest.mark.parametrize("layers", [Layers(), HERE.layers])
def test_a_disk_that_is_full_is_told_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: Layers) -> None:
    """A file-size limit simulates a full disk: writes fail at the same place."""
    options = CompileOptions(cache_dir=str(tmp_path / "cache"), max_output_bytes=64 * 1024)
    large = "#include <cuda_fp16.h>\n__device__ int table[1 << 16] = {1};\n" + NAIVE.replace(
        "float sum = 0;", "float sum = table[m];"
    )
    cramped = Compiler(options)
    monkeypatch.setattr(compiler_module, "confinement", lambda: _confinement(layers))
    outcome = cramped.compile(candidate(large), Arch.SM_90A)
    assert isinstance(outcome, CompileFailed)
    assert "cannot be written: File too large" in outcome.message
    assert not list(Path(options.cache_dir).glob("*/*/entry.json"))
    roomy = Compiler(options.model_copy(update={"max_output_bytes": 2**28}))
    assert isinstance(roomy.compile(candidate(large), Arch.SM_90A), Compiled)


def _confinement(layers: Layers) -> Confinement:
    return HERE if layers.landlock or layers.mounts else Confinement()


def test_a_disk_too_full_for_the_source_is_our_fault(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(ForkServers, "run", full)
    with pytest.raises(MachineError, match="No space left on device"):
        compiler.compile(candidate(NAIVE), Arch.SM_90A)


def test_what_a_compiler_left_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    """A compromised compiler could leave a link to a file that it may not read."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "kernel.cubin").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "kernel.ptx")
    assert compiler_module._plain(tmp_path / "kernel.cubin") == b""
    assert compiler_module._plain(tmp_path / "kernel.ptx") == b""
    assert compiler_module._plain(tmp_path / "secret") == SECRET.encode()
