"""A cuBLASLt library without a GPU (`fake_cublaslt.cpp`), compiled once per process, and its controls."""

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_suffix(".cpp")
RECORD_BYTES = 64
# What `CONFIGURATION` of tests/doubles/libraries.py says, as cublasLt.h numbers it.
NUMBERS = (66, 20, 35, 1, 0, 3)


@cache
def fake_cublaslt_file() -> Path:
    """Skips the test where there is no compiler."""
    compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
    file = Path(tempfile.mkdtemp(prefix="cudal2-fake-cublaslt-")) / "libfake_cublaslt.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(file)], check=True, capture_output=True)
    return file


class FakeCublasLt:
    """The controls of a loaded fake."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self._library = ctypes.CDLL(self.file)
        self._library.fake_events.restype = ctypes.c_char_p
        self._library.fake_version.argtypes = (ctypes.c_size_t,)
        numbers = ctypes.POINTER(ctypes.c_int32)
        self._library.fake_suggest.argtypes = (numbers, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)
        self.reset()

    def reset(self) -> None:
        self._library.fake_reset()

    def suggest(self, numbers: Sequence[int] = NUMBERS, *, workspace: int = 0, mark: int = 0, state: int = 0) -> None:
        """Suggest one algorithm more. `mark`: what tells it from others of the same configuration."""
        self._library.fake_suggest((ctypes.c_int32 * 6)(*numbers), workspace, mark, state, None)

    def record(self, numbers: Sequence[int] = NUMBERS, *, workspace: int = 0, mark: int = 0) -> str:
        """The record of an algorithm, which need not be suggested."""
        written = ctypes.create_string_buffer(RECORD_BYTES)
        self._library.fake_suggest((ctypes.c_int32 * 6)(*numbers), workspace, mark, 0, written)
        return written.raw.hex()

    def version(self, packed: int) -> None:
        self._library.fake_version(packed)

    def compute(self) -> None:
        """Multiply in host memory from now on."""
        self._library.fake_compute(1)

    def fail(self, function: str, status: int) -> None:
        self._library.fake_fail(function.encode(), status)

    def events(self, *calls: str) -> list[dict[str, Any]]:
        """The calls since the last time they were asked for, of the named kinds."""
        found = [json.loads(line) for line in self._library.fake_events().decode().splitlines()]
        return [event for event in found if not calls or event["call"] in calls]
