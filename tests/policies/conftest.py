"""Many tests list the schedules of few tasks."""

from collections.abc import Iterator

import pytest

from tests.doubles.pools import share_spaces


@pytest.fixture(scope="module", autouse=True)
def _shared_spaces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_spaces(patch)
        yield
