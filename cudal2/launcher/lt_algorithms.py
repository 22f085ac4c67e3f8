"""Algorithms of cuBLASLt as the launcher in C++ takes them: a configuration in words as numbers, and the library's version.

`cublaslt_names.json` numbers the names as cublasLt.h of CUDA 13 does. They are spelled as in nvmath's bindings, from which the
words come.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError

_NAMES = Path(__file__).with_name("cublaslt_names.json")
_FIELDS = ("algorithm", "tile", "stages", "split-K", "reduction", "cluster")  # in the order of the words, and of C++
_MAJORS = (13, 12)  # of the libraries that are looked for


def library_files(cuda: str | None) -> tuple[str, ...]:
    """Names of cuBLASLt for the loader, that of a CUDA version such as `13.0` first."""
    own = int((cuda or "0").partition(".")[0])
    return tuple(f"libcublasLt.so.{major}" for major in sorted(_MAJORS, key=lambda one: one != own))


def cublas_version(files: Sequence[str]) -> str:
    """The version of the cuBLASLt that this process has loaded, or can load, as `Environment.cublas` has it.

    Empty where there is none, and where the launcher in C++, which alone runs algorithms, was not built.
    """
    try:
        import cudal2.launcher._native as native

        packed = native.cublaslt_version(list(files))
    except (ImportError, DeviceUnavailable):
        return ""
    return f"{packed // 10000}.{packed % 10000 // 100}.{packed % 100}"


def configuration_of(words: str) -> list[int]:
    """Id, tile, stages, split K, reduction and cluster of an algorithm in the words of `TunedBaseline.detail`, as numbers.

    A value that has no name in the words stands there as its number. Raises: LauncherError for other words.
    """
    found = dict(part.split(" ", 1) for part in words.split(", ") if " " in part)
    try:
        return [_number(field, found[field]) for field in _FIELDS]
    except (KeyError, ValueError) as exc:
        raise LauncherError(
            f"{words!r} is not the configuration of an algorithm of cuBLASLt: {exc}", "CUBLAS_STATUS_INVALID_VALUE"
        ) from exc


def _number(field: str, value: str) -> int:
    known = _names().get(field, {}).get(value)
    return int(value) if known is None else known


@cache
def _names() -> Mapping[str, Mapping[str, int]]:
    found: Mapping[str, Mapping[str, int]] = json.loads(_NAMES.read_text("utf-8"))
    return found
