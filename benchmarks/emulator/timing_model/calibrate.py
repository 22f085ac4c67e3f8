"""Fits the rates of the timing model to steps of a store: a robust coordinate search over a handful of physical numbers.

Left out: held-out shapes, those of `drawn*` and `store_shapes.json` in `sets`, shapes of free sources, and
kernels that are traced in part.
Run from the repository's root:
    python -m benchmarks.emulator.timing_model.calibrate --store trajectories.sqlite [--shapes 80] [--each 5]
"""

import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.emulator.timing_model.fresh import apart
from benchmarks.emulator.timing_model.predicting import Prepared, prepared
from benchmarks.harness import cache_argument, execute, script
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.sandbox.timing_model.rates import H200, TimingRates
from cudal2_agent.store.store import Store, open_store

FIXED = frozenset({"clock_mhz", "cool_clock_mhz", "smem_bytes", "line_us", "fitted"})
MAX_ERROR = 0.5  # of a logarithm: what lies further off counts no more
MAX_ROWS = 40_000  # of a trace, so that a round of the search takes seconds
FIRST_STEP, LAST_STEP = 1.12, 1.01  # factors by which a rate is changed


@dataclass(frozen=True)
class Timed:
    """`plain_us`: without programmatic launch; NaN where that was not measured."""

    kernel: Prepared
    time_us: float
    plain_us: float


def chosen(store: Store, shapes: int, each: int, source: random.Random) -> Iterator[tuple[GemmTask, Step]]:
    """Measured steps, of every kernel family alike, of shapes drawn at random."""
    of_shape: dict[str, list[str]] = {}
    for run in store.runs():
        of_shape.setdefault(run.task.shape, []).append(run.run_id)
    allowed = sorted(set(of_shape) - apart())
    for shape in source.sample(allowed, min(shapes, len(allowed))):
        families: dict[str, list[tuple[GemmTask, Step]]] = {}
        for run_id in of_shape[shape]:
            task = gemm(store.run(run_id).task, "this fit")
            for step in store.steps(run_id):
                schedule = step.candidate.origin.schedule
                if isinstance(step.evaluation, Measured) and schedule:
                    families.setdefault(str(schedule["family"]), []).append((task, step))
        yield from _alike(families, each, source)


def _alike(
    families: dict[str, list[tuple[GemmTask, Step]]], count: int, source: random.Random
) -> Iterator[tuple[GemmTask, Step]]:
    while count > 0 and any(families.values()):
        for members in families.values():
            if members and count > 0:
                yield members.pop(source.randrange(len(members)))
                count -= 1


def timed(steps: Sequence[tuple[GemmTask, Step]], cache: Path, jobs: int) -> Iterator[Timed]:
    device = [(task, step) for task, step in steps if isinstance(step.candidate, Candidate)]
    pairs = [(step.candidate, task) for task, step in device if isinstance(step.candidate, Candidate)]
    for position, kernel in prepared(pairs, cache, jobs):
        evaluation = device[position][1].evaluation
        assert isinstance(evaluation, Measured)
        rows = sum(each.count for each in kernel.traced)
        if rows <= MAX_ROWS and all(each.whole for each in kernel.traced):
            plain = statistics.median(evaluation.plain.samples_us) if evaluation.plain else float("nan")
            yield Timed(kernel, evaluation.time_us, plain)


def loss(rates: TimingRates, kernels: Sequence[Timed]) -> float:
    """Mean absolute logarithmic error, of plain launches to a third, and of the order within a shape."""
    predicted = [each.kernel.predicted(rates) for each in kernels]
    ours = np.log([p.predicted_us / each.time_us for p, each in zip(predicted, kernels, strict=True)])
    plain = np.log([p.plain_us / each.plain_us for p, each in zip(predicted, kernels, strict=True)])
    plain = plain[~np.isnan(plain)]
    shapes = np.array([each.kernel.task.shape for each in kernels])
    within = np.concatenate([ours[shapes == shape] - ours[shapes == shape].mean() for shape in np.unique(shapes)])
    parts = (1.0, ours), (0.3, plain), (0.7, within)
    return sum(weight * float(np.minimum(np.abs(errors), MAX_ERROR).mean()) for weight, errors in parts if len(errors))


def fitted(start: TimingRates, kernels: Sequence[Timed], seconds: float) -> TimingRates:
    """Changes one rate after another as long as that helps, by ever smaller factors."""
    begin_s, best, current = time.monotonic(), loss(start, kernels), start
    steps = {name: FIRST_STEP for name in TimingRates.model_fields if name not in FIXED}
    while max(steps.values()) > LAST_STEP:
        for name, factor in list(steps.items()):
            if time.monotonic() - begin_s > seconds:
                return current
            for each in (factor, 1 / factor):
                tried = current.model_copy(update={name: getattr(current, name) * each})
                if (found := loss(tried, kernels)) < best:
                    current, best = tried, found
                    break
            else:
                steps[name] = 1 + (factor - 1) / 2
        print(f"{time.monotonic() - begin_s:.0f} s: {best:.4f}", flush=True)
    return current


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=80)
    parser.add_argument("--each", type=int, default=5, help="steps of each shape")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the search itself")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    cache_argument(parser, "timing-model")
    options = parser.parse_args()
    with open_store(f"sqlite:///{options.store.absolute()}") as store:
        steps = list(chosen(store, options.shapes, options.each, random.Random(options.seed)))
    kernels = list(timed(steps, options.cache, options.jobs))
    print(f"{len(kernels)} kernels, loss {loss(H200, kernels):.4f}", flush=True)
    rates = fitted(H200, kernels, options.seconds)
    for name in TimingRates.model_fields:
        print(f"    {name}={getattr(rates, name):.6g},")


if __name__ == "__main__":
    execute(main)
