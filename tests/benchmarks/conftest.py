"""The benchmarks open many policies on few tasks and build real kernels; how they are compiled does not matter."""

from collections.abc import Iterator

import pytest

from tests.doubles.building import compile_in_this_process
from tests.doubles.pools import share_pools


@pytest.fixture(scope="module", autouse=True)
def _quick_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch)
        share_pools(patch)
        yield
