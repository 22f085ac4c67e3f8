"""Workers are tested with the same few built kernels; how they are built does not matter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.building import compile_in_this_process, disassemble_once


@pytest.fixture(scope="module", autouse=True)
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        disassemble_once(patch, kept_builds)
        yield
