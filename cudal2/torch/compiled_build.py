"""Compiles `native/aten_kernels.cpp` for the PyTorch at hand, into the cache of prepared kernels, and finds it there.

The file is named `aten-<dispatch key>-<hash>.so`. The hash is of all that it depends on: source, PyTorch, Python, compiler
options. A record beside it holds the hash of its content, so that a damaged file is never loaded.
Covered: several processes at once; a process killed at any moment; another PyTorch in the same home folder.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
from pydantic import ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.whole_file import whole_file

COMPILERS = ("c++", "g++", "clang++")
_OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_LIBRARIES = {"CUDA": ("c10", "torch_cpu", "torch_cuda"), "CPU": ("c10", "torch_cpu")}
_TIMEOUT_S = 600.0
_AGAIN = "`cudal2-agent library prepare` builds it again"


class CompiledFile(Record):
    """What is known of a compiled file. `sha256`: of its content. `compiler`: the first line that it says of its version."""

    torch: str
    compiler: str
    sha256: str


def compiled_file(folder: Path, key: str) -> Path:
    """Where the kernels for a dispatch key and this PyTorch are, once they are built."""
    depends = {
        "source": hashlib.sha256(_source().encode()).hexdigest(),
        "torch": (torch.__version__, torch.version.git_version, torch.version.cuda, torch.compiled_with_cxx11_abi()),
        "python": (sys.implementation.cache_tag, platform.machine()),
        "options": (_OPTIONS, _LIBRARIES[key]),
    }
    text = json.dumps(depends, sort_keys=True)
    return folder / f"aten-{key.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"


def find(folder: Path, key: str) -> Path | None:
    """The compiled file; None where it was not built. Raises: LibraryError where it is damaged."""
    file = compiled_file(folder, key)
    record = _record_of(file)
    if not file.is_file() or not record.is_file():
        return None
    try:
        known = CompiledFile.model_validate_json(record.read_bytes())
        content = file.read_bytes()
    except (OSError, ValidationError) as exc:
        raise LibraryError(f"{file} or its record is damaged ({type(exc).__name__}); {_AGAIN}") from exc
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise LibraryError(f"{file} is damaged: its content is not what was built; {_AGAIN}")
    return file


def build(folder: Path, key: str) -> Path:
    """Compile the kernels, in a minute or less, and keep them.

    Raises: LibraryError, in one line, where there is no compiler, where PyTorch has no headers, where the source does not
    compile, or where the folder cannot be written.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise LibraryError(f"there is no C++ compiler: none of {', '.join(COMPILERS)} is in the path; install one")
    root = Path(torch.__file__).parent
    if not (root / "include" / "torch" / "library.h").is_file():
        raise LibraryError(f"PyTorch {torch.__version__} has no C++ headers in {root / 'include'}; install its wheel")
    file = compiled_file(folder, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            source, out = Path(scratch, "aten_kernels.cpp"), Path(scratch, file.name)
            source.write_text(_source(), encoding="utf-8")
            _run([compiler, *_arguments(key, root), str(source), "-o", str(out), *_linked(key, root)])
            content = out.read_bytes()
        _keep(file, content, _version_of(compiler))
    except OSError as exc:
        raise LibraryError(f"{folder} cannot be written ({exc.strerror or exc}); set CUDAL2_HOME to another folder") from exc
    return file


def _source() -> str:
    return files("cudal2.torch").joinpath("native", "aten_kernels.cpp").read_text(encoding="utf-8")


def _record_of(file: Path) -> Path:
    return file.with_suffix(".json")


def _arguments(key: str, root: Path) -> list[str]:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [*_OPTIONS, abi, *(["-DCUDAL2_CUDA"] if key == "CUDA" else []), "-isystem", str(root / "include")]


def _linked(key: str, root: Path) -> list[str]:
    """Every symbol has to be found now, not when a program loads the file."""
    return ["-L", str(root / "lib"), *(f"-l{name}" for name in _LIBRARIES[key]), "-Wl,-z,defs"]


def _run(command: list[str]) -> None:
    """Raises: LibraryError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise LibraryError(f"{command[0]} did not end within {_TIMEOUT_S:g} s") from exc
    if done.returncode:
        errors = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower() or "undefined" in line]
        why = errors[0] if errors else f"exit code {done.returncode}"
        raise LibraryError(f"{command[0]} cannot compile against PyTorch {torch.__version__}: {why}", log=done.stderr)


def _version_of(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    return (done.stdout.splitlines() or ["unknown"])[0]


def _keep(file: Path, content: bytes, compiler: str) -> None:
    """The record is written last: a process killed between the two leaves a file that is damaged or not built."""
    record = CompiledFile(torch=str(torch.__version__), compiler=compiler, sha256=hashlib.sha256(content).hexdigest())
    with whole_file(file) as temporary:
        temporary.write_bytes(content)
    with whole_file(_record_of(file)) as temporary:
        temporary.write_text(record.model_dump_json(), encoding="utf-8")
