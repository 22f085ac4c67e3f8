"""Settings of all tests, and the compiler that tests on the emulator share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.sandbox.emulator.compiled import PtxCompiler

# The result of CI depends only on the commit; `pytest --hypothesis-profile=default` searches for new examples.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> PtxCompiler:
    """Compiles each kernel once for all runs of the emulator's tests: CuTe takes ten seconds per kernel."""
    pytest.importorskip("sandbox.emulator._core", reason="the emulator's core is not built here")
    from tests.sandbox.emulator.compiled import PtxCompiler

    assert request.config.cache is not None
    return PtxCompiler(request.config.cache.mkdir("emulator-ptx"))
