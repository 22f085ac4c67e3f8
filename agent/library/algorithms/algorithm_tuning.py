"""The algorithm of cuBLASLt for one product: chosen among all suggestions by one race, and judged by another. Pure.

The fastest of many is lucky, so the race that chooses is not the one whose interval is recorded.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from cudal2_agent.contract.records.evaluation import TORCH, Timing
from cudal2_agent.contract.reward.speedup import Speedup, median_us, paired_speedup

SHORTLIST, FINALISTS = 12, 3
BRIEF_US, MIDDLE_US, RACE_US = 300.0, 1500.0, 1500.0  # of a sample
ROUNDS = 20  # of a race
# Lower end of the interval of torch.mm's time over the algorithm's. Above 1 by what memory elsewhere may change in a median.
MIN_LOW = 1.003


class Suggestion(NamedTuple):
    """`words`: the configuration as `TunedBaseline.detail` has it. `opaque`: cuBLASLt's record as hexadecimal digits."""

    words: str
    opaque: str


class ProductBench(Protocol):
    """One product on a GPU."""

    def suggestions(self) -> Sequence[Suggestion]:
        """What cuBLASLt suggests and a call can run."""
        ...

    def sample_us(self, suggestion: Suggestion, duration_us: float) -> float | None:
        """Time of one product, by a sample that takes about so long; None where the algorithm does not run."""
        ...

    def fault(self, suggestion: Suggestion) -> str:
        """What is wrong with its products; empty where nothing is."""
        ...

    def race(self, suggestions: Sequence[Suggestion], duration_us: float, rounds: int) -> Mapping[str, Timing]:
        """Samples of the suggestions by their records, and of torch.mm by `TORCH`, in the same rounds."""
        ...


class TunedAlgorithm(NamedTuple):
    """`tried`: suggestions that ran. `best`: the fastest that is right, judged by `speedup` over torch.mm; None without one.

    `faults`: what was wrong with faster ones. Unit: microseconds.
    """

    tried: int
    best: Suggestion | None = None
    time_us: float | None = None
    torch_us: float | None = None
    speedup: Speedup | None = None
    faults: tuple[str, ...] = ()

    @property
    def faster(self) -> bool:
        """Whether a library should hold it."""
        return self.speedup is not None and self.speedup.low >= MIN_LOW


def tune(bench: ProductBench) -> TunedAlgorithm:
    """Three passes narrow the suggestions down; the best right one races against torch.mm anew. Raises: as the bench does."""
    brief = _fastest(bench, bench.suggestions(), BRIEF_US)
    shortlist = _fastest(bench, brief[:SHORTLIST], MIDDLE_US)
    right, faults = _right(bench, shortlist)
    if not right:
        return TunedAlgorithm(len(brief), faults=tuple(faults))
    best = _ahead(bench.race(right, RACE_US, ROUNDS), right)
    times = bench.race([best], RACE_US, ROUNDS)
    ours, torch = times[best.opaque], times[TORCH]
    return TunedAlgorithm(len(brief), best, median_us(ours), median_us(torch), paired_speedup(ours, torch), tuple(faults))


def _fastest(bench: ProductBench, suggestions: Sequence[Suggestion], duration_us: float) -> list[Suggestion]:
    """Those that run, the fastest first."""
    times = {one: bench.sample_us(one, duration_us) for one in suggestions}
    ran = {one: time_us for one, time_us in times.items() if time_us is not None}
    return sorted(ran, key=lambda one: ran[one])


def _right(bench: ProductBench, shortlist: Sequence[Suggestion]) -> tuple[list[Suggestion], list[str]]:
    """The first of a list whose products are right, and the faults of others before them."""
    right, faults = list[Suggestion](), list[str]()
    for one in shortlist:
        if len(right) == FINALISTS:
            break
        if fault := bench.fault(one):
            faults.append(f"{one.words}: {fault}")
        else:
            right.append(one)
    return right, faults


def _ahead(times: Mapping[str, Timing], finalists: Sequence[Suggestion]) -> Suggestion:
    return max(finalists, key=lambda one: paired_speedup(times[one.opaque], times[TORCH]).low)
