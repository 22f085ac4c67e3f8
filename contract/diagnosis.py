"""What limits a kernel, on what evidence, and what usually helps."""

from typing import Literal

from contract.base import Record


class Finding(Record):
    """One bottleneck. `bottleneck` is a stable name such as `occupancy`, `tail-wave`, `spills`, `launch-bound`."""

    bottleneck: str
    evidence: str
    remedy: str
    weight: float


class Diagnosis(Record):
    """Findings, heaviest first. `basis`: static (inspection and plan), timed (with measured times), or counters (ncu)."""

    basis: Literal["static", "timed", "counters"]
    findings: tuple[Finding, ...]
    roofline_fraction: float | None = None
