"""What a score asks of a worker: the evaluations of candidates, from one sandbox, wherever that is."""

from collections.abc import Generator, Sequence
from typing import Protocol

from contract.base import Record
from contract.candidate import AnyCandidate
from contract.chip import Chip
from contract.evaluation import Evaluation
from contract.settings import Settings
from contract.task import Arch, GemmTask


class ScoringOrder(Record):
    """The sandbox that a worker opens. `settings.device`: on which device."""

    settings: Settings
    arch: Arch


class ScoringPlace(Record):
    """Where candidates are evaluated. `key`: what decides whether two evaluations may stand for each other.

    `measures`: whether a GPU times them; otherwise the emulator proves them.
    """

    chip: Chip
    key: str
    measures: bool


class ScoringWorkerLost(Exception):
    """A worker ended in the middle of its candidates. It is usable again. The message says how it ended."""


class ScoringWorker(Protocol):
    """Evaluates one request at a time."""

    def place(self) -> ScoringPlace:
        """Opens the sandbox if it is not open. Raises: MachineError, UsageError, WorkerError."""
        ...

    def evaluate(self, task: GemmTask, candidates: Sequence[AnyCandidate]) -> Generator[tuple[int, Evaluation]]:
        """(position, outcome) as each is known. A caller that stops early closes the iterator.

        Raises: ScoringWorkerLost; MachineError, UsageError, WorkerError.
        """
        ...

    def close(self) -> None: ...
