"""Whole runs build the same few kernels again and again."""

from collections.abc import Iterator

import pytest

from tests.doubles.building import disassemble_once


@pytest.fixture(scope="module", autouse=True)
def _quick_builds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        disassemble_once(patch)
        yield
