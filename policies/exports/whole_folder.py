"""Folders that appear whole or not at all: they are written next to their place and moved there once complete."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import make_durable

CARD = "README.md"


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write to; afterwards it becomes `path`. An earlier export there is replaced.

    Raises: UsageError where `path` is a file or holds anything but an earlier export; OSError.
    """
    _check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        for file in temporary.iterdir():
            make_durable(file)
            file.chmod(0o644)
        temporary.chmod(0o755)
        _swap(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file; an export with splits needs a folder")
    names = {file.name for file in path.iterdir()}
    ours = {CARD} | {f"{split}.{suffix}" for split in ("train", "test") for suffix in ("jsonl", "parquet")}
    if names and (CARD not in names or not names <= ours):
        other = min(names - ours, default=CARD)
        raise UsageError(f"folder {path} holds {other!r}, so it is not an earlier export; choose a new folder")


def _swap(new: Path, path: Path) -> None:
    """Moves the folder to its place; an earlier one is moved aside first and deleted afterwards."""
    aside = None
    if path.exists():
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
        path.replace(aside)
    try:
        new.replace(path)
    except OSError:
        if aside:
            aside.replace(path)
        raise
    if aside:
        shutil.rmtree(aside, ignore_errors=True)
