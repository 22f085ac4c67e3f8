"""A candidate that passed check, compile and inspection."""

from contract.base import Record
from contract.candidate import AnyCandidate
from contract.inspection import Inspection


class Built(Record):
    """A candidate that is ready to run.

    `artifact_path`: the cubin of a `Candidate` or the shared library of a `HostCandidate`, in the compile cache.
    `cached`: whether the cache already held it. `seconds`: wall-clock time of check, compile and inspection together.
    """

    candidate: AnyCandidate
    inspection: Inspection
    artifact_path: str
    cached: bool
    seconds: float
