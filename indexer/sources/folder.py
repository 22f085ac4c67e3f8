"""A folder or a single file on disk."""

from pathlib import Path

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit
from cudal2_agent.indexer.listing import Skips, is_wanted, list_files
from cudal2_agent.indexer.tree import ReleaseLabel, Tree, plant


def folder_tree(folder: Path, label: ReleaseLabel, emit: Emit) -> Tree:
    """Everything in the folder that can be split. Raises: SourceError."""
    skips = Skips()
    try:
        next(folder.iterdir(), None)
    except OSError as exc:
        raise SourceError(f"{folder} cannot be read: {exc.strerror}") from exc
    files = list_files(folder, skips)
    skips.report(label.origin, emit)
    return plant(folder, files, label)


def file_tree(file: Path, label: ReleaseLabel) -> Tree:
    """One file as a release. Raises: SourceError for a kind of file that cannot be split."""
    return plant(file.parent, [file.name] if is_wanted(file.name) else [], label)
