"""One sandbox per process; compiled kernels are kept between runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.redteam.redteam_bench import RedteamBench, RedteamLimits

CANDIDATE_S = 60.0


@pytest.fixture(scope="session")
def limits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RedteamLimits:
    assert request.config.cache is not None
    secret: Path = tmp_path_factory.mktemp("forbidden") / "secret.txt"
    secret.write_text("file-that-nobody-may-read\n")
    cache = request.config.cache.mkdir("redteam-kernels")
    return RedteamLimits(candidate_s=CANDIDATE_S, cache=str(cache), secret=str(secret))


@pytest.fixture(scope="session")
def bench(limits: RedteamLimits) -> Iterator[RedteamBench]:
    pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
    opened = RedteamBench("emulator", limits)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def gpu_bench(limits: RedteamLimits) -> Iterator[RedteamBench]:
    opened = RedteamBench("cuda:0", limits)
    yield opened
    opened.close()
