"""What a single launch adds to the times of many, and what of the speedups it leaves in server mode.

Run from the repository's root:
    python -m benchmarks.speed.server_reach [RESULTS ...]
RESULTS: files or folders of rows, `benchmarks/campaigns/rows` by default. Prints JSON.

A kernel that takes t back to back, without programmatic launch, takes t + c + s r as a single launch. r is the time that the
task's A and B take through device memory. c and s are fitted to AutoTuning's times on shapes with rows in both modes, by the
least absolute error. Against AutoTuning's a and a kernel's p, both offline, the speedup in server mode is then
    (a + c + s r) / (p + c + s r).
The figures are geometric means over the shapes with offline rows, in layout nn, FP16 with FP32 accumulation:
- `offline`, `plain`: of the rows, with and without programmatic launch. Single launches cannot gain what `offline` has over
  `plain`, because no kernel precedes them.
- `predicted`: in server mode, of the kernels that are fastest offline without programmatic launch; `measured` and
  `predicted_there`: of the shapes that have a row in server mode.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.harness import execute, script
from benchmarks.speed.summary import ROWS, is_headline
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import transfer_us


@dataclass(frozen=True)
class ReachShape:
    """A shape with an offline row. Times of AutoTuning and of the best kernels, with programmatic launch and without it."""

    task: GemmTask
    autotuned_us: float
    best_us: float
    plain_us: float

    @property
    def read_us(self) -> float:
        return transfer_us(2 * self.task.k * (self.task.m + self.task.n), REFERENCE_CHIPS[self.task.arch])


@dataclass(frozen=True)
class SingleLaunch:
    """What a single launch adds to a time back to back: `constant_us`, and a share of the time of reading A and B."""

    constant_us: float
    read_share: float

    def added_us(self, shape: ReachShape) -> float:
        return self.constant_us + self.read_share * shape.read_us

    def speedup(self, shape: ReachShape, plain_us: float) -> float:
        added = self.added_us(shape)
        return (shape.autotuned_us + added) / (plain_us + added)


def reach_shapes(rows: Iterable[ShapeResult]) -> dict[str, ReachShape]:
    """The shapes with a complete offline row."""
    found = {}
    for row in rows:
        autotuned = row.baselines_us.get(AUTOTUNED)
        if row.task.mode is TimingMode.OFFLINE and autotuned and row.best and row.best_without:
            best, plain = (_paired_us(autotuned, one) for one in (row.best, row.best_without))
            found[row.task.shape] = ReachShape(row.task, autotuned, best, plain)
    return found


def _paired_us(autotuned_us: float, winner: Winner) -> float:
    """A winner's time beside the baseline of `autotuned_us`; the two winners of a row may be of different rounds."""
    return autotuned_us / winner.speedup.ratio


def fitted(pairs: Sequence[tuple[ReachShape, float]]) -> SingleLaunch:
    """From AutoTuning's times in server mode, by the least absolute error. Raises: ValueError for fewer than two shapes.

    Shapes of more than 100 us are left out: a chip at its power limit is faster when it has been idle.
    """
    pairs = [(shape, server_us) for shape, server_us in pairs if server_us < 100]
    if len(pairs) < 2:
        raise ValueError("a fit needs two shapes with rows in both modes")
    added = np.array([server_us - shape.autotuned_us for shape, server_us in pairs])
    read = np.array([shape.read_us for shape, _ in pairs])
    shares = np.linspace(0, 1, 101)
    constants = [float(np.median(added - share * read)) for share in shares]
    errors = [float(np.abs(added - constant - share * read).mean()) for constant, share in zip(constants, shares, strict=True)]
    best = int(np.argmin(errors))
    return SingleLaunch(constants[best], float(shares[best]))


def reach(rows: Sequence[ShapeResult]) -> dict[str, Any]:
    """Raises: ValueError where too few shapes have rows in both modes."""
    counted = [row for row in rows if is_headline(row)]
    by_shape = reach_shapes(counted)
    served = {row.task.shape: row for row in counted if row.task.mode is TimingMode.SERVER and row.best}
    both = [(by_shape[shape], row) for shape, row in served.items() if shape in by_shape]
    single = fitted([(one, row.baselines_us[AUTOTUNED]) for one, row in both])
    shapes = list(by_shape.values())

    def mean(value: Callable[[ReachShape], float]) -> float:
        return geometric_mean([value(one) for one in shapes])

    figures = {
        "shapes": len(shapes),
        "constant_us": single.constant_us,
        "read_share": single.read_share,
        "offline": mean(lambda one: one.autotuned_us / one.best_us),
        "plain": mean(lambda one: one.autotuned_us / one.plain_us),
        "predicted": mean(lambda one: single.speedup(one, one.plain_us)),
        "served": len(both),
        "measured": geometric_mean([row.best.speedup.ratio for _, row in both if row.best]),
        "predicted_there": geometric_mean([single.speedup(one, one.plain_us) for one, _ in both]),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("results", nargs="*", type=Path, default=[ROWS])
    parser.add_argument("--environment", help="whose rows count; needed where they come from several")
    options = parser.parse_args()
    print(json.dumps(reach(counting(read_results(options.results), options.environment)), indent=1))


if __name__ == "__main__":
    execute(main)
