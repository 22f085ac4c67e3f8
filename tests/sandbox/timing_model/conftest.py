"""Tests of the timing model are skipped where the emulator's core, which traces and replays, is not built."""

import importlib.util

import pytest

from tests.sandbox.emulator.compiled import PtxCompiler

collect_ignore_glob = [] if importlib.util.find_spec("sandbox.emulator._core") else ["test_*.py"]


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> PtxCompiler:
    assert request.config.cache is not None
    return PtxCompiler(request.config.cache.mkdir("emulator-ptx"))
