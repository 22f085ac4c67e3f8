"""Who stays in a final: decisions from the samples alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from cudal2_agent.contract.records.evaluation import Timing
from cudal2_agent.contract.reward.speedup import paired_speedup

CHECKPOINTS = (5, 9, 15)  # rounds after which slower lanes leave
MIN_ROUNDS = 9  # of a finalist that stays, whatever the budget

# Samples of a class by finalist; all of one class were taken in the same rounds.
Sampled = Mapping[int, Sequence[float]]


def wholly_behind(samples: Sequence[float], best: Sequence[float]) -> bool:
    """Whether the interval of the paired ratio to the best lies on the slower side."""
    slower, faster = (Timing(name="", samples_us=tuple(values)) for values in (samples, best))
    return paired_speedup(slower, faster).high < 1


def staying(classes: Sequence[Sampled]) -> set[int]:
    """Finalists that are not wholly behind the best median in one class, at least, that they run in."""
    found: set[int] = set()
    for lanes in filter(None, classes):
        best = min(lanes, key=lambda position: statistics.median(lanes[position]))
        found |= {each for each, samples in lanes.items() if each == best or not wholly_behind(samples, lanes[best])}
    return found


def stops(rounds: int) -> Iterator[int]:
    """Numbers of rounds after which the samples are looked at; the last one is all of them."""
    yield from (stop for stop in CHECKPOINTS if stop < rounds)
    yield rounds


def affordable(done: int, spent_s: float, lanes_done: int, lanes_left: int, rounds: int, budget_s: float | None) -> int:
    """All rounds that the budget allows, at least MIN_ROUNDS and at most `rounds`.

    `lanes_done`: samples taken in the `spent_s` of `done` rounds. `lanes_left`: lanes of each later round.
    """
    if budget_s is None or not lanes_done:
        return rounds
    more = int((budget_s - spent_s) / (spent_s / lanes_done * max(lanes_left, 1)))
    return min(rounds, max(MIN_ROUNDS, done + max(more, 0)))
