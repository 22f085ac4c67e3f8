"""The problem file behind a name such as `kernelbench:1/19`: a collection, a level and a number.

A collection is a folder in `tasks/` of the home folder, or a link there to a checkout of the user's. Its problems lie in
folders `level1`, `level2`, …, wherever these are in it, and their names begin with their number.
"""

import re
from pathlib import Path

from cudal2_agent.contract.errors import UsageError

FOLDER = "tasks"
NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,63}):(\d{1,3})/(\d{1,6})", re.ASCII)


def problem_path(name: str, home: Path) -> Path:
    """Raises: UsageError for a malformed name, an unknown collection, or a number that it does not have."""
    found = NAME.fullmatch(name)
    if found is None:
        raise UsageError(f"task {name[:80]!r} is no COLLECTION:LEVEL/NUMBER; write for example --task kernelbench:1/19")
    collection, level, number = found.groups()
    folder = home / FOLDER / collection
    if not folder.is_dir():
        known = sorted(path.name for path in (home / FOLDER).glob("*") if path.is_dir())
        there = f"there are {', '.join(known)}" if known else "none was added"
        raise UsageError(f"there is no collection {collection!r} ({there}); link or copy a checkout to {folder}")
    levels = sorted(path for path in folder.rglob(f"level{level}") if path.is_dir())
    for path in (file for each in levels for file in sorted(each.glob(f"{number}_*.py"))):
        return path
    raise UsageError(f"{collection} has no problem {level}/{number} in {folder}")
