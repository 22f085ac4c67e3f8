"""Finds the tools that compile and disassemble, and their versions."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.sandbox.building import compile_child
from cudal2_agent.sandbox.building.headers import cutlass_roots
from cudal2_agent.sandbox.workers.process import Limits, run

NVRTC_REMEDY = "install it with: pip install 'nvidia-cuda-nvrtc>=13.0,<14' 'cuda-bindings>=13.0,<14'"
CUTLASS_REMEDY = "pip install 'cudal2-agent[cutlass]'"
NVCC_REMEDY = (
    f"{CUTLASS_REMEDY}, beside a g++ of the system, or install the CUDA toolkit and set nvcc (CUDAL2_NVCC) to its path; "
    "kernels that NVRTC builds need none"
)
_TOOLKIT_BIN = Path("/usr/local/cuda/bin")
_TOP = re.compile(r"^#\$ TOP=(?P<folder>\S+)", re.MULTILINE)
# The host's headers, and the files of its compiler, linker and shell.
SYSTEM_HEADERS = (Path("/usr/include"), Path("/usr/local/include"), Path("/usr/lib/gcc"))
_LIBRARIES = (
    *(str(folder) for folder in SYSTEM_HEADERS),
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/libexec"),
    *("/etc/ld.so.cache", "/etc/alternatives"),
)
HOST_PROGRAMS = ("/bin", "/usr/bin")  # the assembler, the linker and what these start
_SHELL = "/bin/sh"
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


@functools.cache
def nvrtc_version() -> str:
    """Version of NVRTC, with the build number of its package where known. Raises: CompilerMissing."""
    try:
        version = compile_child.nvrtc_version()
    except (ImportError, RuntimeError, OSError) as exc:
        raise CompilerMissing(f"NVRTC cannot be loaded; {NVRTC_REMEDY}", log=str(exc)) from exc
    try:
        return f"{version} ({importlib.metadata.version(nvrtc_package(version))})"
    except importlib.metadata.PackageNotFoundError:
        return version


def nvrtc_package(version: str) -> str:
    """The package of an NVRTC of this version."""
    return "nvidia-cuda-nvrtc-cu12" if version.startswith("12.") else "nvidia-cuda-nvrtc"


def find_nvcc(setting: str | None, *, host: bool = False) -> str:
    """Path of nvcc: the setting, else its package, the search path, or the toolkit's usual place.

    `host`: for host code, which is linked with libraries that a toolkit has and the package lacks: the package comes last.
    Raises: CompilerMissing.
    """
    if setting:
        found = shutil.which(setting)
    else:
        installed = shutil.which("nvcc") or shutil.which(_TOOLKIT_BIN / "nvcc")
        packaged = next((tool for tool in _packaged("nvcc") if (Path(tool).parents[1] / "nvvm/bin/cicc").is_file()), None)
        found = installed or packaged if host else packaged or installed
    if found is None:
        where = f"at {setting!r}" if setting else "on this machine"
        raise CompilerMissing(f"there is no nvcc {where}; {NVCC_REMEDY}")
    if not _host_compilers():
        raise CompilerMissing(f"{found} needs g++, and there is none on the search path; {NVCC_REMEDY}")
    return str(Path(found).absolute())


def builds_cutlass(setting: str | None) -> bool:
    """Whether nvcc and the headers of CuTe and CUTLASS are here."""
    try:
        return bool(find_nvcc(setting) and cutlass_roots())
    except CompilerMissing:
        return False


@functools.cache
def nvcc_version(nvcc: str) -> str:
    """The versions of nvcc and of its host compiler. Raises: CompilerMissing where one does not run."""
    return f"{_said(nvcc, '--version')}\ng++ {_said(_host_compilers()[0], '-dumpfullversion')}"


def _said(*command: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        ended = run(command, scratch=Path(scratch), limits=Limits(wall_s=30))
    if ended.returncode:
        raise CompilerMissing(f"{command[0]} does not run; {NVCC_REMEDY}", log=ended.stderr.decode(errors="replace"))
    return ended.stdout.decode(errors="replace").strip()


@functools.cache
def toolkit_folder(nvcc: str) -> Path:
    """The folder of the toolkit that an nvcc belongs to. Raises: CompilerMissing where nvcc does not print it."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "none.cu").touch()
        command = [nvcc, "--dryrun", "-cubin", "none.cu"]
        ended = run(command, scratch=Path(scratch), limits=Limits(wall_s=30))
    found = _TOP.search((ended.stdout + ended.stderr).decode(errors="replace"))
    if ended.returncode or found is None:
        raise CompilerMissing(f"{nvcc} does not report where its toolkit is; {NVCC_REMEDY}")
    return Path(found["folder"]).resolve()


def nvcc_files(nvcc: str) -> tuple[str, ...]:
    """The files that nvcc and its host compiler consist of. Raises: CompilerMissing where nvcc does not run."""
    host = [Path(tool).resolve().parents[1] for tool in _host_compilers()]
    own = [folder for folder in host if folder != Path("/usr")]  # a compiler beside the system's
    return tuple(dict.fromkeys(map(str, (nvcc, Path(nvcc).resolve(), toolkit_folder(nvcc), *own, *_LIBRARIES))))


@functools.cache
def device_programs(nvcc: str) -> tuple[str, ...]:
    """The programs that nvcc starts for device code, itself included: the shell, the preprocessor, cicc and ptxas.

    A compiler that only calls the next one on the search path, such as ccache, finds that one too.
    Raises: CompilerMissing where one of them does not run.
    """
    toolkit, host = toolkit_folder(nvcc), _host_compilers()
    own = (toolkit / "bin/nvcc", toolkit / "bin/ptxas", toolkit / "nvvm/bin/cicc")
    named = (nvcc, *host, _said(host[0], "-print-prog-name=cc1plus"), _SHELL, *_LOADERS)
    started = (*own, *map(Path, named))
    return tuple(dict.fromkeys(str(form) for path in started for form in (path, path.resolve())))


def _host_compilers() -> list[str]:
    """Every g++ and gcc on the search path, the g++ that nvcc takes first; empty where there is no g++."""
    found = {name: [shutil.which(name, path=folder) for folder in os.get_exec_path()] for name in ("g++", "gcc")}
    return [tool for name in ("g++", "gcc") for tool in found[name] if tool] if any(found["g++"]) else []


@functools.cache
def find_nvdisasm() -> str | None:
    """Path of nvdisasm: its package, else the search path, else the toolkit's usual place; None where there is none."""
    found = next(_packaged("nvdisasm"), None)
    return found or shutil.which("nvdisasm") or shutil.which(_TOOLKIT_BIN / "nvdisasm")


def _packaged(tool: str) -> Iterator[str]:
    """Where NVIDIA's packages have a tool."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    return (found for folder in folders for file in sorted(folder.glob(f"*/bin/{tool}")) if (found := shutil.which(file)))
