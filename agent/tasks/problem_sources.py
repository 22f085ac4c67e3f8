"""Problem files of a source: a file, a folder, or a collection that was added, as a whole, a level or a number of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cudal2_agent.agent.tasks.named_problems import FOLDER, problem_path
from cudal2_agent.contract.errors import UsageError

_COLLECTION = re.compile(r"([A-Za-z0-9][\w.-]{0,63})(?::(\d{1,3}))?", re.ASCII)
_LEVEL = re.compile(r"level(\d{1,3})", re.ASCII)
_NUMBER = re.compile(r"(\d{1,6})_.*\.py", re.ASCII)


class Problem(NamedTuple):
    """A problem file and the name of its task."""

    name: str
    path: Path


def problems_of(source: str, home: Path) -> list[Problem]:
    """In the order of their numbers. Raises: UsageError where there is none."""
    path = Path(source)
    if path.is_file():
        return [Problem(path.stem, path)]
    if path.is_dir():
        found = sorted((each for each in path.rglob("*.py") if _lies_in(each, path)), key=_by_numbers)
        if not found:
            raise UsageError(f"{source} holds no Python file")
        return [Problem(each.relative_to(path).with_suffix("").as_posix(), each) for each in found]
    named = _COLLECTION.fullmatch(source)
    if named is None or not (home / FOLDER / named[1]).is_dir():
        return [Problem(source, problem_path(source, home))] if ":" in source else _unknown(source, home)
    found_ = [each for each in in_collection(named[1], home) if named[2] is None or each.name.startswith(f"{source}/")]
    if not found_:
        raise UsageError(f"{source} has no problems: a collection has folders level1, level2, … with files like 19_ReLU.py")
    return found_


def in_collection(name: str, home: Path) -> list[Problem]:
    """All problems of a collection, by level and number."""
    root = home / FOLDER / name
    return sorted(
        (
            Problem(f"{name}:{level[1]}/{number[1]}", path)
            for path in root.rglob("*.py")
            if (level := _LEVEL.fullmatch(path.parent.name))
            and (number := _NUMBER.fullmatch(path.name))
            and _lies_in(path, root)
        ),
        key=lambda each: _by_numbers(Path(each.name)),
    )


def level_of(problem: Path) -> int:
    """Of the folder `level1` that a problem lies in; 0 for none."""
    found = _LEVEL.fullmatch(problem.parent.name)
    return int(found[1]) if found else 0


def collections(home: Path) -> Iterator[str]:
    """Names of the collections that were added."""
    yield from sorted(path.name for path in (home / FOLDER).glob("*") if path.is_dir())


def _unknown(source: str, home: Path) -> list[Problem]:
    known = ", ".join(collections(home)) or "none"
    raise UsageError(f"{source!r} is no file, folder or collection; collections that were added: {known} (tasks add)")


def _lies_in(path: Path, root: Path) -> bool:
    """Whether a file is one of the folder's own: a link in a checkout may lead anywhere."""
    return path.is_file() and path.resolve().is_relative_to(root.resolve())


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.as_posix())]
