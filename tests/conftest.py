"""Settings of all tests, and what several of them share: compiled kernels, the C++ kernels for PyTorch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.sandbox.emulator.compiled import PtxCompiler
    from tests.sandbox.emulator.proving import Build

# A worker for each core is enough. Threads of OpenMP and OpenBLAS wait for work at full load: with two workers on two cores,
# tests on small models took ten times as long. Processes that tests start inherit it.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# The result of CI depends only on the commit, and not on how busy its machine is. `pytest --hypothesis-profile=default`
# searches for new examples.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(scope="session")
def kept_builds(request: pytest.FixtureRequest) -> Path:
    """What compilers and nvdisasm left in this run and in earlier ones, for all workers; see `tests/doubles/building.py`."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("builds"))


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> PtxCompiler:
    """Compiles each kernel once for all runs of the emulator's tests: CuTe takes ten seconds per kernel."""
    pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
    from tests.sandbox.emulator.compiled import PtxCompiler

    assert request.config.cache is not None
    return PtxCompiler(request.config.cache.mkdir("emulator-ptx"))


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    """Builds sources with their plans as the emulator's backend takes them, each once for all runs."""
    from tests.sandbox.emulator.proving import builder

    assert request.config.cache is not None
    return builder(request.config.cache.mkdir("emulator-kernels"))


@pytest.fixture(scope="session")
def compiled_folder(request: pytest.FixtureRequest) -> Path:
    """A folder with the C++ kernels of PyTorch's operators for the CPU, compiled once for all runs: it takes ten seconds."""
    from cudal2.torch import compiled_build

    if all(shutil.which(name) is None for name in compiled_build.COMPILERS):
        pytest.skip("there is no C++ compiler")
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir("aten-kernels"))
    with FileLock(folder / "lock"):
        if compiled_build.find(folder, "CPU") is None:
            compiled_build.build(folder, "CPU")
    return folder
