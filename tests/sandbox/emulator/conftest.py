"""What tests of the emulator share. Where the core was not built they are left out; the parser's need none."""

import importlib.util

import pytest

from tests.sandbox.emulator.compiled import PtxCompiler

_NEEDS_CORE = ["test_*.py", "core/*", "kernels/*", "large/*", "lowering/*", "golden/test_replay.py", "golden/test_taint.py"]
collect_ignore_glob = [] if importlib.util.find_spec("sandbox.emulator._core") else _NEEDS_CORE


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> PtxCompiler:
    """Compiles each kernel once for all runs of the tests: CuTe takes ten seconds per kernel."""
    assert request.config.cache is not None
    return PtxCompiler(request.config.cache.mkdir("emulator-ptx"))
