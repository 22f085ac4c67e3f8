"""The log of a training: one JSON line per epoch, and the same figures for TensorBoard where it is installed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "training.jsonl"


class TrainingLog:
    """Appends to a folder, and to TensorBoard's files where it is installed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._board = _board(folder)

    def add(self, stage: str, epoch: int, figures: Mapping[str, float]) -> None:
        """Raises: OSError on a full disk."""
        known = {name: value for name, value in figures.items() if math.isfinite(value)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, "epoch": epoch, **known}) + "\n")
        if self._board is not None:
            for name, value in known.items():
                self._board.add_scalar(f"{stage}/{name}", value, epoch)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _board(folder: Path) -> Any:
    """A writer of TensorBoard's files; None where the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
