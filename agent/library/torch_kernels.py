"""Compiles the C++ part of `cudal2.enable`, `cudal2/torch/native`, for the PyTorch of this environment, once."""

from pathlib import Path
from typing import Literal

import torch
from filelock import FileLock

from cudal2.torch import compiled_build
from cudal2_agent.agent.library.preparing import LOCKS, library_cache
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.settings.settings import Settings

_KEY = "CUDA"


class PreparedTorch(Record):
    """What became of them. `ready`: they were in the cache already. `message`: why there are none, else empty."""

    part: Literal["enable in C++"] = "enable in C++"
    torch: str
    status: Literal["built", "ready", "left out", "failed"]
    message: str = ""

    def __str__(self) -> str:
        line = f"{self.part} for PyTorch {self.torch}: {self.status}"
        return f"{line}: {self.message}" if self.message else line


def prepare_torch(settings: Settings) -> PreparedTorch:
    """Without them products pass through Python, which is slower and right. So nothing here is an error."""
    if torch.version.cuda is None:
        return _outcome("left out", "it is built without CUDA, so nothing is replaced")
    folder = library_cache(settings)
    try:
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCKS / f"{compiled_build.compiled_file(folder, _KEY).stem}.lock"):
            if _ready(folder):
                return _outcome("ready")
            compiled_build.build(folder, _KEY)
            return _outcome("built")
    except (LibraryError, OSError) as exc:
        return _outcome("failed", f"{exc}; matrix products pass through Python meanwhile")


def _ready(folder: Path) -> bool:
    try:
        return compiled_build.find(folder, _KEY) is not None
    except LibraryError:  # damaged: they are built again
        return False


def _outcome(status: Literal["built", "ready", "left out", "failed"], message: str = "") -> PreparedTorch:
    return PreparedTorch(torch=str(torch.__version__), status=status, message=" ".join(message.split()))
