"""Finds the tools that compile and disassemble, and their versions."""

import functools
import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.sandbox.building import compile_child
from cudal2_agent.sandbox.workers.process import Limits, run

NVRTC_REMEDY = "install it with: pip install 'nvidia-cuda-nvrtc>=13.0,<14' 'cuda-bindings>=13.0,<14'"
NVCC_REMEDY = "install the CUDA toolkit or set nvcc (CUDAL2_NVCC) to its path; candidates built by NVRTC need none"
_TOOLKIT_BIN = Path("/usr/local/cuda/bin")
_TOP = re.compile(r"^#\$ TOP=(?P<folder>\S+)", re.MULTILINE)
# The host's headers, and the files of its compiler, linker and shell.
SYSTEM_HEADERS = (Path("/usr/include"), Path("/usr/local/include"), Path("/usr/lib/gcc"))
_SYSTEM = (
    *(str(folder) for folder in SYSTEM_HEADERS),
    *("/bin", "/usr/bin", "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/libexec"),
    *("/etc/ld.so.cache", "/etc/alternatives"),
)


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


def find_nvcc(setting: str | None) -> str:
    """Path of nvcc: the setting, else the search path, else the toolkit's usual place. Raises: CompilerMissing."""
    found = shutil.which(setting) if setting else shutil.which("nvcc") or shutil.which(_TOOLKIT_BIN / "nvcc")
    if found is None:
        where = f"at {setting!r}" if setting else "on this machine"
        raise CompilerMissing(f"there is no nvcc {where}; {NVCC_REMEDY}")
    return str(Path(found).absolute())


@functools.cache
def nvcc_version(nvcc: str) -> str:
    """The output of `nvcc --version`. Raises: CompilerMissing where it does not run."""
    with tempfile.TemporaryDirectory() as scratch:
        ended = run([nvcc, "--version"], scratch=Path(scratch), limits=Limits(wall_s=30))
    if ended.returncode:
        raise CompilerMissing(f"{nvcc} does not run; {NVCC_REMEDY}", log=ended.stderr.decode(errors="replace"))
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
    host = [Path(tool).resolve().parents[1] for name in ("gcc", "g++") if (tool := shutil.which(name))]
    own = [folder for folder in host if folder != Path("/usr")]  # a compiler beside the system's
    return tuple(dict.fromkeys(map(str, (nvcc, Path(nvcc).resolve(), toolkit_folder(nvcc), *own, *_SYSTEM))))


@functools.cache
def find_nvdisasm() -> str | None:
    """Path of nvdisasm: its package, else the search path, else the toolkit's usual place; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    packaged = (shutil.which(tool) for folder in folders for tool in sorted(folder.glob("*/bin/nvdisasm")))
    found = next((tool for tool in packaged if tool), None)
    return found or shutil.which("nvdisasm") or shutil.which(_TOOLKIT_BIN / "nvdisasm")
