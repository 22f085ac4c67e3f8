"""Fits the factor by which predictions are corrected, and says what it gains on shapes that are left out.

It is fitted to timed random schedules, and to steps of a store, which are searched ones: kernels that are worth predicting.
Run from the repository's root, with a store that has the steps of benchmarks/h200/steps:
python -m benchmarks.timing_model.fit_correction ROWS.jsonl.gz ... --drawn DRAWN.json.gz ... --store STORE.sqlite [--write]
`--examples FILE.npz` keeps the predictions of the examples, of which there are some thousands, or takes them from there.
"""

import argparse
import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing_model.boosting import Boosting, ObliviousTree, boosted
from benchmarks.timing_model.draw import SETS
from benchmarks.timing_model.fresh import apart
from benchmarks.timing_model.predicting import prepared, spearman
from benchmarks.timing_model.sources import rows_by_name, scheduled
from contract.candidate import Candidate
from contract.evaluation import Measured
from contract.task import GemmTask, TimingMode
from policies.trajectories.store import Store, open_store
from sandbox.timing_model.correction import FITTED, MAX_FACTOR, MIN_FACTOR, Correction

DRAWN_FIT = SETS / "drawn_fit.json.gz"
FOLDS = 10
MAX_ERROR = 0.7  # of a logarithm: what lies further off counts no more
TRUST = 0.75  # share of the logarithm that is corrected
STORED_WEIGHT = 3.0  # of a step of a store; of a drawn schedule: 1
STORED_SHAPES, STORED_STEPS, MAX_US = 400, 3, 1500.0
BOOSTING = Boosting(trees=500, depth=6, columns=0.3, rows=0.6)

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
                known.setdefault(candidate.id, (candidate, store.run(run_id).task, evaluation.time_us))
        found += source.sample(list(known.values()), min(STORED_STEPS, len(known)))
    return found


def examples(timed: Sequence[Timed], weight: float, cache: Path, jobs: int) -> TimedExamples:
    """Timed kernels, with predictions that no correction has seen."""
    found: list[tuple[dict[str, float], float, float, str]] = []
    for position, kernel in prepared([(candidate, task) for candidate, task, _ in timed], cache, jobs):
        made, (_, task, time_us) = kernel.predicted(), timed[position]
        found.append((made.features, made.replayed_us, time_us, task.shape))
    names = tuple(found[0][0])
    table = np.array([[features[name] for name in names] for features, *_ in found])
    replayed, measured, shapes = (np.array(column) for column in list(zip(*found, strict=True))[1:])
    return TimedExamples(names, table, replayed, measured, shapes, np.full(len(found), weight))


def trees(known: TimedExamples, options: Boosting, seeds: int) -> Iterator[ObliviousTree]:
    """The mean of several fits, as trees to be summed."""
    groups = np.unique(known.shapes, return_inverse=True)[1]
    for seed in range(seeds):
        for tree in boosted(known.table, known.errors, groups, options, seed, known.weights):
            yield ObliviousTree(tree.asked, tree.above, tree.leaves * TRUST / seeds)


def correction(known: TimedExamples, options: Boosting, seeds: int) -> Correction:
    made = list(trees(known, options, seeds))
    asked, above, leaves = (np.stack([getattr(tree, name) for tree in made]) for name in ("asked", "above", "leaves"))
    return Correction(known.names, known.table.min(axis=0), known.table.max(axis=0), asked, above, leaves)


def corrected(predicted_us: np.ndarray, logarithms: np.ndarray) -> np.ndarray:
    return np.asarray(predicted_us * np.clip(np.exp(logarithms), MIN_FACTOR, MAX_FACTOR))


def left_out_shapes(known: TimedExamples, options: Boosting, seeds: int) -> np.ndarray:
    """Predictions of every kernel by fits that have not seen its shape. Unit: microseconds."""
    shapes = np.random.default_rng(0).permutation(np.unique(known.shapes))
    found = known.predicted_us.copy()
    for fold in range(min(FOLDS, len(shapes))):
        left_out = np.isin(known.shapes, shapes[fold::FOLDS])
        made = correction(known.some(~left_out), options, seeds)
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


def told(known: TimedExamples, boosting: Boosting, seeds: int) -> Iterator[str]:
    """A line for drawn schedules and for stored steps: not corrected, then by fits that have not seen their shapes.

    Of a shape there are too few stored steps to rank.
    """
    made = left_out_shapes(known, boosting, seeds)
    for kind, rows in (("drawn", known.weights == 1.0), ("stored", known.weights != 1.0)):
        for label, predicted_us in (("not corrected", known.predicted_us), ("shapes left out", made)):
            if rows.any():
                said = figures(known.some(rows), predicted_us[rows])
                names = said if kind == "drawn" else ("median error",)
                yield f"{kind}, {label}: {', '.join(f'{name} {said[name]:.3f}' for name in names)}"


def written(made: Correction) -> str:
    """The correction as JSON."""
    lines = [f'"names": {json.dumps(made.names)}']
    for name, digits in (("low", 8), ("high", 8), ("asked", 8), ("above", 4), ("leaves", 3)):
        lines.append(f'"{name}": {json.dumps(_rounded(getattr(made, name).tolist(), digits), separators=(",", ":"))}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rounded(values: Any, digits: int) -> Any:
    """Numbers in nested lists, to so many significant digits."""
    if isinstance(values, list):
        return [_rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}") if isinstance(values, float) else values


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="as `measure` wrote them")
    parser.add_argument("--drawn", type=Path, nargs="+", default=[DRAWN_FIT], help="the drawn schedules that each is of")
    parser.add_argument("--store", type=Path, help="with steps of searches, which the fit takes too")
    parser.add_argument("--seeds", type=int, default=1, help="fits whose mean is taken")
    parser.add_argument("--examples", type=Path, help="file that keeps the predictions")
    parser.add_argument("--write", action="store_true", help=f"write {FITTED.name}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "timing-model", help="of compiled kernels")
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
    boosting = BOOSTING
    print("\n".join(told(known, boosting, options.seeds)))
    if options.write:
        FITTED.write_text(written(correction(known, boosting, options.seeds)))


if __name__ == "__main__":
    main()
