"""Steps of a cluster replayed for all clusters that the busiest SMs run: some at once, others behind them.

A later cluster begins where one ends. Long sequences of clusters are replayed in part and go on at their last pace.
"""

from dataclasses import dataclass

import numpy as np

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.timing_model.costs import EXCHANGING, ISSUE, MULTIPLYING, RESOURCES, SCHEDULERS, Steps
from cudal2_agent.sandbox.timing_model.rates import TimingRates
from cudal2_agent.sandbox.timing_model.trace import WARPS, Traced

MAX_STEPS = 300_000  # that are replayed


@dataclass(frozen=True)
class Turns:
    """Clusters on the busiest SMs: `count` in all, of which `resident` run together."""

    count: int
    resident: int


@dataclass(frozen=True)
class Simulated:
    """Unit: microseconds. `end`: of the last cluster; `begin`: when the first passed the wait for preceding kernels.

    `busy`: of each resource of the busiest SM, of all clusters. `alone`: the end of one cluster by itself.
    `multiplies`: when the first product began and the last one ended; `exchanged`: when the last partial sum had passed from
    one CTA to another. Both are None where there was nothing of the kind. Of clusters that were not replayed, the times
    stand between the two ends of `multiplies`.
    """

    end: float
    begin: float
    busy: np.ndarray
    alone: float
    multiplies: tuple[float, float] | None
    exchanged: float | None


def simulate(traced: Traced, steps: Steps, turns: Turns, rates: TimingRates) -> Simulated:
    """`steps`: of the rows of the trace."""
    affordable = max(MAX_STEPS // max(len(steps), 1), 1)
    count = turns.count
    if count > 2 * turns.resident and count > affordable:
        count = max(affordable // turns.resident, 2) * turns.resident
    ended = _replay(traced, steps, count, turns.resident, rates)
    ends = ended.ends
    end = ends[-1] if count == turns.count else _extrapolated(ends, turns)
    later = float(end) - float(ends[-1])
    multiplies = (ended.multiplies[0], ended.multiplies[1] + later) if ended.multiplies else None
    exchanged = None if ended.exchanged is None else ended.exchanged + later
    busy = ended.busy * (turns.count / count)
    return Simulated(float(end) + ended.draining, ended.begin, busy, ends[0], multiplies, exchanged)


def _extrapolated(ends: np.ndarray, turns: Turns) -> float:
    """The end of all clusters from those of the first, which come in rounds."""
    rounds = ends[turns.resident - 1 :: turns.resident]
    pace = (rounds[-1] - rounds[0]) / (len(rounds) - 1) if len(rounds) > 1 else rounds[0]
    return float(ends[-1] + (turns.count - len(ends)) / turns.resident * pace)


@dataclass(frozen=True)
class _Course:
    ends: np.ndarray  # of each cluster, sorted
    draining: float  # from then until the last store has taken effect
    begin: float
    busy: np.ndarray
    multiplies: tuple[float, float] | None
    exchanged: float | None


def _replay(traced: Traced, steps: Steps, count: int, resident: int, rates: TimingRates) -> _Course:
    streams = traced.ctas * WARPS
    issues = 1 + np.arange(streams) // WARPS * RESOURCES + ISSUE + np.arange(streams) % SCHEDULERS
    made = core.replay_turns(
        steps.numbers,
        steps.times,
        count=count,
        resident=resident,
        tokens=traced.tokens,
        pause=rates.turn_us,
        issues=issues.tolist(),
        resources=1 + traced.ctas * RESOURCES,
    )
    complete = np.asarray(made.complete)
    ended = np.where(complete < 0, made.end, complete)
    marks = np.asarray(made.marks)[:streams]
    busy = np.asarray(made.busy)[1:].reshape(traced.ctas, RESOURCES)
    begin = float(marks[marks >= 0].max()) if (marks >= 0).any() else 0.0
    first, last = made.phase_begins[MULTIPLYING], made.phase_ends[MULTIPLYING]
    exchanged = made.phase_ends[EXCHANGING]
    return _Course(
        np.sort(ended),
        max(made.end - float(ended.max()), 0.0),
        begin,
        busy.max(axis=0),
        (first, last) if last >= 0 else None,
        exchanged if exchanged >= 0 else None,
    )
