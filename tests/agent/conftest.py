"""Whole runs build the same few kernels, and open policies on the same few tasks, again and again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.building import compile_once, disassemble_once
from tests.doubles.pools import share_pools, share_spaces


@pytest.fixture(scope="module", autouse=True)
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_once(patch, kept_builds)
        disassemble_once(patch, kept_builds)
        share_spaces(patch)
        share_pools(patch)
        yield
