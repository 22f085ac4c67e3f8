"""Workers are tested with the same few built kernels; how they are built does not matter."""

from collections.abc import Iterator

import pytest

from tests.doubles.building import compile_in_this_process, disassemble_once


@pytest.fixture(scope="module", autouse=True)
def _quick_builds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch)
        disassemble_once(patch)
        yield
