"""What a score asks of a worker: the evaluations of candidates, from one sandbox, wherever that is."""

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.score import TaskCandidates
from cudal2_agent.contract.settings.settings import Settings


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


class WorkerOutcome(NamedTuple):
    """`position`: of the candidate among those of all groups, in order. `executed_s`: to verify and time it."""

    position: int
    evaluation: Evaluation
    executed_s: float = 0.0


class ScoringWorkerLost(Exception):
    """A worker ended in the middle of its candidates. It is usable again. The message says how it ended."""


class ScoringWorker(Protocol):
    """Evaluates one request at a time."""

    def place(self) -> ScoringPlace:
        """Opens the sandbox if it is not open. Raises: MachineError, UsageError, WorkerError."""
        ...

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        """The outcomes as each is known. A caller that stops early closes the iterator.

        Raises: ScoringWorkerLost; MachineError, UsageError, WorkerError.
        """
        ...

    def close(self) -> None: ...
