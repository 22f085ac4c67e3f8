"""A candidate that passed check, compile and inspection."""

from contract.base import Record
from contract.candidate import AnyCandidate
from contract.inspection import Inspection


class Built(Record):
    """Ready to run. `artifact_path`: the cubin of a `Candidate`, the shared library of a `HostCandidate`, in the cache.

    `cached`: whether the compiler was spared. `seconds`: wall-clock of check, compile and inspection together.
    """

    candidate: AnyCandidate
    inspection: Inspection
    artifact_path: str
    cached: bool
    seconds: float
