"""Inspection is tested on really compiled code; how it is compiled does not matter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.building import compile_in_this_process


@pytest.fixture(scope="module", autouse=True)
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        yield
