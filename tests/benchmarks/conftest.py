"""The benchmarks open many policies on few tasks and build real kernels; how they are compiled does not matter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.building import compile_in_this_process
from tests.doubles.pools import share_pools, share_spaces


@pytest.fixture(scope="module", autouse=True)
def _quick_parts(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        share_spaces(patch)
        share_pools(patch)
        yield
