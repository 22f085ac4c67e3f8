"""Inspection is tested on really compiled code; how it is compiled does not matter."""

from collections.abc import Iterator

import pytest

from tests.doubles.building import compile_in_this_process


@pytest.fixture(scope="module", autouse=True)
def _quick_builds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch)
        yield
