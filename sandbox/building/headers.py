"""What a candidate may include: this project's device headers, CUDA's and CCCL's from their packages, CUTLASS if installed."""

import functools
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import CompilerMissing

OWN_ROOT = Path(__file__).parents[1] / "include"
_TOOLKITS = (Path("/usr/local/cuda/include"), Path("/opt/cuda/include"))
_REMEDY = (
    "install them with: pip install 'nvidia-cuda-runtime>=13.0,<14' 'nvidia-cuda-cccl>=13.0,<14' 'nvidia-cuda-crt>=13.0,<14'"
)
# Files that change with every release of their tree; hashing whole toolkits would take longer than a compilation.
_RELEASE_MARKS = (
    "cuda_runtime_api.h",
    "cuda_fp16.hpp",
    "cuda_bf16.hpp",
    "crt/mma.h",
    "cuda/std/__cccl/version.h",
    "cutlass/version.h",
)

_INTEGERS = "".join(f"using ::cuda::std::{sign}int{bits}_t;\n" for sign in ("", "u") for bits in (8, 16, 32, 64))
_STDINT = "#pragma once\n#include <cuda/std/cstdint>\n" + _INTEGERS + "using ::cuda::std::uintptr_t;\n"
_STD = "#pragma once\n#include <cuda/std/{name}>\nnamespace std {{\nusing namespace ::cuda::std;\n}}\n"
_STD_NAMES = ("algorithm", "array", "cmath", "cstddef", "initializer_list", "limits", "tuple", "type_traits", "utility")

# NVRTC has no host headers; these replace the few that device code commonly includes. CUDA's `cuda.h` declares host
# functions and does not compile there; kernels need one type of it.
NVRTC_HEADERS: dict[str, str] = {
    "stdint.h": _STDINT,
    "cstdint": _STDINT + _STD.format(name="cstdint").removeprefix("#pragma once\n"),
    "stddef.h": "#pragma once\n#include <cuda/std/cstddef>\n",
    "assert.h": "#pragma once\n#include <cuda/std/cassert>\n",
    "cassert": "#pragma once\n#include <cuda/std/cassert>\n",
    "cuda.h": "#pragma once\nstruct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };\n"
    "typedef struct CUtensorMap_st CUtensorMap;\n",
    **{name: _STD.format(name=name) for name in _STD_NAMES},
}


@dataclass(frozen=True)
class Headers:
    """Include roots in search order, and a hash that changes with everything a candidate can include from them."""

    roots: tuple[Path, ...]
    fingerprint: str


def find_headers() -> Headers:
    """The include roots for NVRTC. Raises: CompilerMissing where CUDA's headers are not installed."""
    found = _candidate_roots()
    # CUDA 13's packages share one folder. Of CUDA 12's, the compiler's has what the runtime's includes.
    parts = [_first_with(header, found) for header in ("cuda_fp16.h", "cuda/std/cstdint", "crt/host_defines.h")]
    roots = tuple(dict.fromkeys((OWN_ROOT, *parts, *cutlass_roots())))
    return Headers(roots=roots, fingerprint=_fingerprint(roots))


@functools.cache
def find_own_headers(toolkit: Path) -> Headers:
    """The include roots for nvcc, which brings CUDA's own: those of its toolkit count in the fingerprint only."""
    roots = (OWN_ROOT, *cutlass_roots())
    return Headers(roots=roots, fingerprint=_fingerprint((*roots, toolkit / "include", toolkit / "include/cccl")))


def cutlass_roots() -> tuple[Path, ...]:
    """The include folder of the nvidia-cutlass package, where it is installed."""
    return tuple(
        package / "source" / "include"
        for package in _package_folders("cutlass_library")
        if (package / "source" / "include" / "cute").is_dir()
    )


def _package_folders(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def _candidate_roots() -> list[Path]:
    """Folders that may hold CUDA's headers: packages first (`nvidia/<part>/include`), then an installed toolkit."""
    includes = [include for package in _package_folders("nvidia") for include in sorted(package.glob("*/include"))]
    return [root for include in (*includes, *_TOOLKITS) for root in (include, include / "cccl")]


def _first_with(header: str, roots: list[Path]) -> Path:
    for root in roots:
        if (root / header).is_file():
            return root
    raise CompilerMissing(f"CUDA's headers are missing ({header}); {_REMEDY}")


def _fingerprint(roots: tuple[Path, ...]) -> str:
    """Hash of our own headers by content and of every other tree by its release marks."""
    state = hashlib.sha256(repr(sorted(NVRTC_HEADERS.items())).encode())
    own = sorted(path for path in OWN_ROOT.rglob("*") if path.is_file())
    marks = [root / mark for root in roots if root != OWN_ROOT for mark in _RELEASE_MARKS if (root / mark).is_file()]
    for path in (*own, *marks):
        name = path.relative_to(OWN_ROOT).as_posix() if path.is_relative_to(OWN_ROOT) else path.name
        content = path.read_bytes()
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    return state.hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """Hash of a folder's file names, sizes and times of change, for include folders that a user names."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            state.update(f"{path.relative_to(folder)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return state.hexdigest()
