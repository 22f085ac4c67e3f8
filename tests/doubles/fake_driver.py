"""A CUDA driver library without a GPU (`fake_driver.cpp`), compiled once per process, and its controls."""

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.sandbox.building.headers import find_headers

SOURCE = Path(__file__).with_suffix(".cpp")
REAL_NAME = "libcuda.so.1"


@cache
def fake_driver_file(*, old: bool = False, posing: bool = False) -> Path:
    """The library, built against CUDA's own header. Skips the test where there is no compiler.

    `old`: without what came with CUDA 12.4. `posing`: under the name of the real one, for programs of their own: in the process
    of the tests every later search for a driver would find it.
    """
    compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
    include = next(root for root in (*find_headers().roots, Path("/usr/local/cuda/include")) if (root / "cuda.h").exists())
    file = Path(tempfile.mkdtemp(prefix="cudal2-fake-driver-")) / (REAL_NAME if posing else "libfake_driver.so")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall"]
    flags += ["-DOLD_DRIVER"] * old + [f"-Wl,-soname,{REAL_NAME}"] * posing
    subprocess.run([compiler, *flags, "-I", str(include), str(SOURCE), "-o", str(file)], check=True, capture_output=True)
    return file


def fake_cubin(kernels: Mapping[str, Sequence[int]], product: Sequence[int] = ()) -> bytes:
    """A "cubin" for the fake: parameter sizes by kernel. `product`: M, N, K, whether A and B lie transposed, 1 for a bias."""
    computes = f" product {' '.join(map(str, product))}" if product else ""
    lines = (f"{name} {' '.join(map(str, sizes))}{computes}" for name, sizes in kernels.items())
    return "\n".join(["FAKE", *lines, ""]).encode()


class FakeDriver:
    """The controls of a loaded fake driver."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self._library = ctypes.CDLL(self.file)
        self._library.fake_events.restype = ctypes.c_char_p
        self._library.fake_stream.argtypes = (ctypes.c_uint64,) * 3
        self.reset()

    def reset(self) -> None:
        self._library.fake_reset()

    def events(self, *calls: str) -> list[dict[str, Any]]:
        """The calls since the last time they were asked for, of the named kinds."""
        found = [json.loads(line) for line in self._library.fake_events().decode().splitlines()]
        return [event for event in found if not calls or event["call"] in calls]

    def fail(self, function: str, status: int, skip: int = 0) -> None:
        """From the call after `skip` more on, a function returns a status."""
        self._library.fake_fail(function.encode(), status, skip)

    def machine(self, devices: int, sms: int = 132) -> None:
        self._library.fake_machine(devices, sms)

    def stream(self, handle: int, identity: int, capture: int = 0) -> None:
        """A stream's id, and the id of the capture on it; 0 for none."""
        self._library.fake_stream(handle, identity, capture)

    def record(self, on: bool) -> None:
        self._library.fake_record(int(on))
