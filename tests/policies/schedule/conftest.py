"""Many policies are opened on few tasks."""

from collections.abc import Iterator

import pytest

from tests.doubles.pools import share_pools


@pytest.fixture(scope="module", autouse=True)
def _shared_pools() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_pools(patch)
        yield
