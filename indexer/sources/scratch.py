"""The temporary folder that a source is fetched or unpacked into."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.contract.errors import SourceError

_PREFIX = "source-"
_ABANDONED_S = 24 * 3600


@contextmanager
def scratch(work_dir: Path) -> Iterator[Path]:
    """A folder under `work_dir`, removed at the end. Folders that a killed run left over a day ago are removed as well."""
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        _sweep(work_dir)
        opened = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=work_dir, ignore_cleanup_errors=True)
    except OSError as exc:
        raise SourceError(f"{work_dir} cannot be used for downloads: {exc.strerror}") from exc
    with opened as folder:
        yield Path(folder)


def _sweep(work_dir: Path) -> None:
    for folder in work_dir.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
