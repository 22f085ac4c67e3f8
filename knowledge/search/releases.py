"""The order of releases, and the release that a piece is shown from."""

import re
from collections.abc import Sequence

from cudal2_agent.contract.records.knowledge import Query


def last_release(names: Sequence[str], query: Query) -> str:
    """The latest release that the query names; the latest of all if it names none of them."""
    return max([name for name in names if name in query.releases] or names, key=release_age)


def release_age(release: str) -> tuple[int | str, ...]:
    """A sort key for release names: 4.10 is later than 4.9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", release))
