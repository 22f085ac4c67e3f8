"""Files that appear whole or not at all: they are written beside their place and moved there once complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
