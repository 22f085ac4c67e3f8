"""Checkpoints of a training: whole files, from which a killed training resumes with equal results; and its log.

The log has one JSON line per epoch, and the same figures go to TensorBoard where it is installed.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import whole_file

EVERY_S = 20.0
State = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """After `epoch` epochs of the stage with this number. `reference`: the network's state when the stage began."""

    stage: int
    epoch: int
    network: State
    optimiser: State
    reference: State


class Checkpoints:
    """The newest checkpoint of one training in a folder. `identity`: what the training is made of, as JSON.

    Raises: UsageError where the folder holds another training.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._file, self._last_s = folder / "checkpoint.pt", time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        described = folder / "training.json"
        if not described.exists():
            with whole_file(described) as target:
                target.write_text(json.dumps(identity), "utf-8")
        elif described.read_text("utf-8") != json.dumps(identity):
            raise UsageError(f"{folder} holds a training with other options or data; remove it, or choose another --out")

    def latest(self) -> Checkpoint | None:
        """None where there is none, or where it cannot be read."""
        try:
            stored = torch.load(self._file, weights_only=True)
            return Checkpoint(**stored)
        except (OSError, RuntimeError, TypeError, ValueError, KeyError, EOFError):
            return None

    def keep(self, checkpoint: Checkpoint, *, now: bool) -> None:
        """Writes the checkpoint, at most every `EVERY_S` unless `now`. Raises: OSError; the one before stays."""
        if not now and time.monotonic() - self._last_s < EVERY_S:
            return
        with whole_file(self._file) as target:
            torch.save(vars(checkpoint), target)
        self._last_s = time.monotonic()


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
