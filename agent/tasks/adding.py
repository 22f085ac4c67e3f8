"""Adds a collection of problem files: a link to a folder of the user's, or a checkout that is fetched."""

import re
import shutil
from pathlib import Path

from cudal2_agent.agent.tasks.named_problems import FOLDER
from cudal2_agent.agent.tasks.problem_sources import in_collection
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.indexer.sources.checkout import fetch_into, remote
from cudal2_agent.indexer.sources.command import RunCommand, run_command

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


def add_collection(source: str, name: str | None, home: Path, run: RunCommand = run_command) -> tuple[str, int]:
    """Its name and how many problems it has. `source`: a folder, or `git+URL@TAG`.

    Raises: UsageError, SourceError; nothing is left behind then.
    """
    wanted = remote(source)
    title = Path(source).resolve().name if wanted is None else wanted.url.rpartition("/")[2].removesuffix(".git")
    name = title.lower() if name is None else name
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a collection; name one with --name, of letters, digits, '.', '_' and '-'")
    folder = home / FOLDER / name
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"there is a collection {name!r} already; remove {folder}, or name another with --name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if wanted is None:
        if not Path(source).is_dir():
            raise UsageError(f"{source} is no folder; name one, or git+https://HOST/PATH@TAG")
        folder.symlink_to(Path(source).resolve(), target_is_directory=True)
    else:
        _fetched(wanted.origin, folder, home, run)
    found = len(in_collection(name, home))
    if not found:
        _removed(folder)
        raise UsageError(f"{source} has no problems: folders level1, level2, … with files like 19_ReLU.py")
    return name, found


def _fetched(source: str, folder: Path, home: Path, run: RunCommand) -> None:
    partly = folder.with_name(f".{folder.name}.partly")
    shutil.rmtree(partly, ignore_errors=True)
    partly.mkdir()
    try:
        wanted = remote(source)
        assert wanted is not None
        fetch_into(partly, wanted, home / "cache", run)
        partly.rename(folder)
    finally:
        shutil.rmtree(partly, ignore_errors=True)


def _removed(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
