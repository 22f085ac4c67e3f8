"""Files and folders that appear whole or not at all: they are written beside their place and moved there once complete."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.contract.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The place to write a file to; afterwards it replaces `path`. After a failure the old file stays. Raises: OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        make_durable(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_durable(file: Path) -> None:
    """Writes what the system still holds of a file to the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to; afterwards it becomes `folder`, which must be new or empty. Raises: UsageError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; choose another with --out")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield staging
            staging.chmod(0o755)
            os.replace(staging, folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as exc:
        raise UsageError(f"{folder} cannot be written ({exc.strerror}); choose another folder with --out") from exc
