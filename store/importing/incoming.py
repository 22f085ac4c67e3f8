"""What an import reads from a file, whatever its form."""

import hashlib
from typing import NamedTuple, Protocol

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory


class IncomingStep(NamedTuple):
    """A step with what it was proposed from. `mark`: a hash of all that its form holds of it."""

    step: Step
    observation: Observation
    exchange: Exchange | None
    mark: bytes


Incoming = RunRecord | IncomingStep
MARK_BYTES = 8


class LineReader(Protocol):
    """Reads the lines of one file. A run comes before its steps."""

    def read(self, line: bytes) -> list[Incoming]:
        """The records of a line. Raises: ValueError where the line is not one of this form."""
        ...

    def marks(self, trajectory: Trajectory) -> dict[int, bytes]:
        """Index → mark of the steps of a stored run, as this form would hold them."""
        ...


def mark_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=MARK_BYTES).digest()
