"""What tests of the emulator share. Where the core was not built they are left out; the parser's need none."""

import importlib.util

import pytest

from contract.options import CompileOptions
from sandbox.building.compiler import Compiler

collect_ignore_glob = [] if importlib.util.find_spec("sandbox.emulator._core") else ["test_*.py", "golden/test_replay.py"]


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Compiles once for all runs of the tests: CuTe takes ten seconds a kernel."""
    assert request.config.cache is not None
    return Compiler(CompileOptions(cache_dir=str(request.config.cache.mkdir("emulator-kernels"))))
