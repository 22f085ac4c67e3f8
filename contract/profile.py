"""What Nsight Compute counted while a candidate ran, and how two candidates' counts differ."""

from contract.base import Record


class LaunchProfile(Record):
    """Counters of one launch of a candidate: short name → value, in the unit that the arch's metric set gives the name.

    A metric that the tool did not report is absent, never zero.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, float]


class Profile(Record):
    """One profiled run of a candidate, launch by launch. `metric_set` names the set of `sandbox/profiling/metrics/`.

    `seconds`: wall-clock that profiling took. The counters are of a serialised run on cold caches at the GPU's own clocks;
    `duration_ns` among them is no measurement of the candidate and is never compared with one.
    """

    tool: str
    metric_set: str
    launches: tuple[LaunchProfile, ...]
    seconds: float


class Difference(Record):
    """One quantity that changed from one candidate to another, and what that means. Unit: as `unit` says."""

    quantity: str
    before: float
    after: float
    unit: str
    meaning: str
