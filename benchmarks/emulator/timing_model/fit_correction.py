"""Fits the factor by which predictions are corrected, and says what it gains on shapes that are left out.

It is fitted to timed random schedules, and to steps of a store, which are searched ones: kernels that are worth predicting.
Run from the repository's root, with a store that has the steps of benchmarks/campaigns/steps:
    python -m benchmarks.emulator.timing_model.fit_correction ROWS... --drawn DRAWN... --store STORE.sqlite [--write]
`--examples FILE.npz` keeps the predictions of the examples, of which there are some thousands, or takes them from there.
"""

import argparse
import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.emulator.timing_model.draw import SETS
from benchmarks.emulator.timing_model.fresh import apart
from benchmarks.emulator.timing_model.predicting import prepared, spearman
from benchmarks.emulator.timing_model.sources import rows_by_name, scheduled
from benchmarks.harness import cache_argument, execute, script
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.sandbox.timing_model.model import FITTED, LEAF, MAX_FACTOR, MIN_FACTOR, Correction
from cudal2_agent.store.store import Store, open_store

DRAWN_FIT = SETS / "fit" / "drawn.json.gz"
FOLDS = 5
MAX_ERROR = 0.7  # of a logarithm: what lies further off counts no more
TRUST = 0.9  # share of the logarithm that is corrected
STORED_WEIGHT = 3.0  # of a step of a store; of a drawn schedule: 1
STORED_SHAPES, STORED_STEPS, MAX_US = 400, 3, 1500.0


class Boosting(NamedTuple):
    """Options of scikit-learn's `HistGradientBoostingRegressor`."""

    max_iter: int = 1000
    learning_rate: float = 0.05
    max_leaf_nodes: int = 63
    min_samples_leaf: int = 10
    l2_regularization: float = 3.0
    max_features: float = 0.3


BOOSTING = Boosting()
Timed = tuple[Candidate, GemmTask, float]  # and its measured time in microseconds


@dataclass(frozen=True)
class TimedExamples:
    """Kernels with a measured time. Shape: table (kernels, features), the others (kernels,). Unit: microseconds."""

    names: tuple[str, ...]
    table: np.ndarray
    predicted_us: np.ndarray
    time_us: np.ndarray
    shapes: np.ndarray
    weights: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Logarithms that are missing in the predictions."""
        return np.asarray(np.clip(np.log(self.time_us / self.predicted_us), -MAX_ERROR, MAX_ERROR))

    def some(self, chosen: np.ndarray) -> "TimedExamples":
        arrays = (self.table, self.predicted_us, self.time_us, self.shapes, self.weights)
        return TimedExamples(self.names, *(each[chosen] for each in arrays))

    def in_order(self) -> "TimedExamples":
        """In an order that does not depend on how they were made: the fit draws rows at random."""
        return self.some(np.lexsort((self.predicted_us, self.time_us, self.shapes, self.weights)))

    def and_of(self, other: "TimedExamples") -> "TimedExamples":
        names = ("table", "predicted_us", "time_us", "shapes", "weights")
        return TimedExamples(self.names, *(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


def drawn_times(rows: Path, drawn: Path) -> list[Timed]:
    times = {name: row["time_us"] for name, row in rows_by_name(rows).items() if row.get("time_us")}
    return [(each.candidate, each.task, times[each.name]) for each in scheduled(drawn) if each.name in times]


def stored_times(store: Store, source: random.Random) -> list[Timed]:
    """Some measured schedules of some shapes of a store, at random."""
    of_shape: dict[str, list[str]] = {}
    for run in store.runs():
        if run.task.mode is TimingMode.OFFLINE and run.task.shape not in apart():
            of_shape.setdefault(run.task.shape, []).append(run.run_id)
    found: list[Timed] = []
    for shape in source.sample(sorted(of_shape), min(STORED_SHAPES, len(of_shape))):
        run_id = source.choice(of_shape[shape])
        known: dict[str, Timed] = {}
        for step in store.steps(run_id):
            candidate, evaluation = step.candidate, step.evaluation
            if not isinstance(evaluation, Measured) or not isinstance(candidate, Candidate):
                continue
            if candidate.origin.schedule and evaluation.time_us < MAX_US:
                known.setdefault(candidate.id, (candidate, gemm(store.run(run_id).task, "this fit"), evaluation.time_us))
        found += source.sample(list(known.values()), min(STORED_STEPS, len(known)))
    return found


def examples(timed: Sequence[Timed], weight: float, cache: Path, jobs: int) -> TimedExamples:
    """Timed kernels, with predictions that no correction has seen. `jobs`: processes; each takes one task at a time."""
    of_task: dict[GemmTask, list[Timed]] = {}
    for each in timed:
        of_task.setdefault(each[1], []).append(each)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = [row for rows in pool.map(_predicted, of_task.values(), itertools.repeat(cache)) for row in rows]
    names = tuple(found[0][0])
    table = np.array([[features[name] for name in names] for features, *_ in found])
    replayed, measured, shapes = (np.array(column) for column in list(zip(*found, strict=True))[1:])
    return TimedExamples(names, table, replayed, measured, shapes, np.full(len(found), weight))


def _predicted(timed: Sequence[Timed], cache: Path) -> list[tuple[dict[str, float], float, float, str]]:
    """Features, replayed and measured time, and shape of each kernel that builds."""
    found = []
    for position, kernel in prepared([(candidate, task) for candidate, task, _ in timed], cache, 1):
        made, (_, task, time_us) = kernel.predicted(), timed[position]
        found.append((made.features, made.replayed_us, time_us, task.shape))
    return found


def correction(known: TimedExamples, options: Boosting) -> Correction:
    """The trees that scikit-learn boosts, each node as `Correction` reads it.

    scikit-learn has no public way to its trees. A test compares both, so that another version of it is noticed.
    """
    forest = HistGradientBoostingRegressor(**options._asdict(), random_state=0, early_stopping=False)
    forest.fit(known.table, known.errors, sample_weight=known.weights)
    trees = [predictor.nodes for (predictor,) in forest._predictors]
    shape = len(trees), max(map(len, trees))
    asked, left, right = (np.zeros(shape, dtype=np.int16) for _ in range(3))
    limit, value = np.zeros(shape), np.zeros(shape, dtype=np.float32)
    for row, nodes in enumerate(trees):
        span = row, slice(len(nodes))
        asked[span] = np.where(nodes["is_leaf"], LEAF, nodes["feature_idx"])
        limit[span], left[span], right[span] = nodes["num_threshold"], nodes["left"], nodes["right"]
        value[span] = nodes["value"] * TRUST
    value[0] += TRUST * float(np.ravel(forest._baseline_prediction)[0])
    low, high = known.table.min(axis=0), known.table.max(axis=0)
    return Correction(np.array(known.names), low, high, asked, limit, left, right, value)


def corrected(predicted_us: np.ndarray, logarithms: np.ndarray) -> np.ndarray:
    return np.asarray(predicted_us * np.clip(np.exp(logarithms), MIN_FACTOR, MAX_FACTOR))


def left_out_shapes(known: TimedExamples, options: Boosting) -> np.ndarray:
    """Predictions of every kernel by fits that have not seen its shape. Unit: microseconds."""
    shapes = np.random.default_rng(0).permutation(np.unique(known.shapes))
    found = known.predicted_us.copy()
    for fold in range(min(FOLDS, len(shapes))):
        left_out = np.isin(known.shapes, shapes[fold::FOLDS])
        made = correction(known.some(~left_out), options)
        found[left_out] = corrected(known.predicted_us[left_out], made.logarithms(known.table[left_out]))
    return found


def figures(known: TimedExamples, predicted_us: np.ndarray) -> dict[str, float]:
    """How well predictions rank the kernels of each shape, and their error."""
    each = [rows for shape in np.unique(known.shapes) if (rows := known.shapes == shape).sum() > 2]
    ranks = [spearman(predicted_us[rows].tolist(), known.time_us[rows].tolist()) for rows in each]
    errors = np.abs(predicted_us / known.time_us - 1)
    return {
        "mean": float(np.mean(ranks)),
        "minimum": min(ranks),
        "shapes of 0.85": sum(rank >= 0.85 for rank in ranks) / len(ranks),
        "median error": float(np.median(errors)),
    }


def told(known: TimedExamples, boosting: Boosting) -> Iterator[str]:
    """A line for drawn schedules and for stored steps: not corrected, then by fits that have not seen their shapes.

    Of a shape there are too few stored steps to rank.
    """
    made = left_out_shapes(known, boosting)
    for kind, rows in (("drawn", known.weights == 1.0), ("stored", known.weights != 1.0)):
        for label, predicted_us in (("not corrected", known.predicted_us), ("shapes left out", made)):
            if rows.any():
                said = figures(known.some(rows), predicted_us[rows])
                names = said if kind == "drawn" else ("median error",)
                yield f"{kind}, {label}: {', '.join(f'{name} {said[name]:.3f}' for name in names)}"


def write_examples(path: Path, known: TimedExamples) -> None:
    arrays = {name: getattr(known, name) for name in ("table", "predicted_us", "time_us", "shapes", "weights")}
    np.savez_compressed(path, names=np.array(known.names), **arrays)


def read_examples(path: Path) -> TimedExamples:
    with np.load(path) as read:
        arrays = (read[name] for name in ("table", "predicted_us", "time_us", "shapes", "weights"))
        return TimedExamples(tuple(str(name) for name in read["names"]), *arrays)


def _made(options: argparse.Namespace) -> TimedExamples:
    timed = [each for rows, drawn in zip(options.rows, options.drawn, strict=True) for each in drawn_times(rows, drawn)]
    known = examples(timed, 1.0, options.cache, options.jobs)
    if options.store:
        with open_store(f"sqlite:///{options.store.absolute()}") as store:
            steps = stored_times(store, random.Random(5))
        known = known.and_of(examples(steps, STORED_WEIGHT, options.cache, options.jobs))
    return known.in_order()


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("rows", type=Path, nargs="+", help="as `measure` wrote them")
    parser.add_argument("--drawn", type=Path, nargs="+", default=[DRAWN_FIT], help="the drawn schedules that each is of")
    parser.add_argument("--store", type=Path, help="with steps of searches, which the fit takes too")
    parser.add_argument("--examples", type=Path, help="file that keeps the predictions")
    parser.add_argument("--write", action="store_true", help=f"write {FITTED.name}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    cache_argument(parser, "timing-model")
    options = parser.parse_args()
    if len(options.rows) != len(options.drawn):
        parser.error(
            f"{len(options.rows)} files of rows and {len(options.drawn)} of drawn schedules; name one of these for each"
        )
    if options.examples and options.examples.exists():
        known = read_examples(options.examples)
    else:
        known = _made(options)
        if options.examples:
            write_examples(options.examples, known)
    print("\n".join(told(known, BOOSTING)))
    if options.write:
        correction(known, BOOSTING).write(FITTED)


if __name__ == "__main__":
    execute(main)
