"""Counters that Nsight Compute collected for a candidate, and differences between two candidates."""

from cudal2_agent.contract.base import Record


class LaunchProfile(Record):
    """Counters of one launch of a candidate: short name → value. The metric set of the arch gives the units.

    A metric that the tool did not report is absent, never zero.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, float]


class Profile(Record):
    """One profiled run of a candidate, launch by launch. `metric_set`: name of a set in `sandbox/profiling/metrics.toml`.

    `seconds`: wall-clock time of profiling. The run is serialised, with cold caches and unlocked clocks. So its
    `duration_ns` is not a measurement of the candidate and is never compared with one.
    """

    tool: str
    metric_set: str
    launches: tuple[LaunchProfile, ...]
    seconds: float


class Difference(Record):
    """One quantity that differs between two candidates, and what the difference means. Unit: given by `unit`."""

    quantity: str
    before: float
    after: float
    unit: str
    meaning: str
