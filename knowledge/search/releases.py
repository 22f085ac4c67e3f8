"""The order of releases, and which one a piece is shown from."""

import re
from collections.abc import Sequence

from contract.knowledge import Query


def last_release(names: Sequence[str], query: Query) -> str:
    """The last release of those asked for; the last of all where none is."""
    return max([name for name in names if name in query.releases] or names, key=release_age)


def release_age(release: str) -> tuple[int | str, ...]:
    """Orders releases by name, 4.10 after 4.9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", release))
