"""What tests of the emulator share."""

import pytest

from contract.options import CompileOptions
from sandbox.compiler import Compiler


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Compiles once for all runs of the tests: CuTe takes ten seconds a kernel."""
    assert request.config.cache is not None
    return Compiler(CompileOptions(cache_dir=str(request.config.cache.mkdir("emulator-kernels"))))
