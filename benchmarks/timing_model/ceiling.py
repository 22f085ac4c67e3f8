"""How well times can be ranked at all: the rank correlation of measured times with themselves, measured again. Needs no GPU.

A candidate of a store that was screened and raced was timed twice in one run. The logarithms of such ratios, by octaves of
time, disturb the measured times of judged rows.
Run from the repository's root: python -m benchmarks.timing_model.ceiling RESULTS.json --store trajectories.sqlite
"""

import argparse
import json
import math
import random
import statistics
from pathlib import Path

from benchmarks.timing_model.predicting import spearman
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.store.store import Store, open_store

MIN_RATIOS = 20  # of an octave; one with fewer takes those of the nearest octave that has as many
DRAWS = 200


def repeats(store: Store) -> dict[int, list[float]]:
    """Logarithms of the second over the first time of candidates, by octave of the first."""
    found: dict[int, list[float]] = {}
    for run in store.runs():
        first: dict[str, float] = {}
        for step in store.steps(run.run_id) if run.task.mode is TimingMode.OFFLINE else ():
            if isinstance(step.evaluation, Measured):
                before_us = first.setdefault(step.candidate.id, step.evaluation.time_us)
                if before_us != step.evaluation.time_us:
                    found.setdefault(octave(before_us), []).append(math.log(step.evaluation.time_us / before_us))
    return {place: ratios for place, ratios in found.items() if len(ratios) >= MIN_RATIOS}


def octave(time_us: float) -> int:
    return math.floor(math.log2(time_us))


def ceiling(times_us: list[float], noise: dict[int, list[float]], source: random.Random) -> tuple[float, float]:
    """Mean correlation of times with disturbed ones, and the 5th percentile."""
    found = []
    for _ in range(DRAWS):
        disturbed = []
        for time_us in times_us:
            nearest = min(noise, key=lambda place: abs(place - octave(time_us)))
            disturbed.append(time_us * math.exp(source.choice(noise[nearest])))
        found.append(spearman(times_us, disturbed))
    return statistics.mean(found), sorted(found)[DRAWS // 20]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file that `judge --out` wrote")
    parser.add_argument("--store", type=Path, required=True)
    options = parser.parse_args()
    with open_store(f"sqlite:///{options.store.absolute()}") as store:
        noise = repeats(store)
    for place, ratios in sorted(noise.items()):
        print(f"{2**place} us: {len(ratios)} repeats, median difference {statistics.median(map(abs, ratios)):.1%}")
    shapes: dict[str, list[float]] = {}
    for row in json.loads(options.results.read_text())["rows"]:
        shapes.setdefault(row["shape"], []).append(row["time_us"])
    source = random.Random(1)
    print("\n| shape | mean | 5th percentile |\n|---|---|---|")
    for shape, times_us in sorted(shapes.items(), key=lambda item: min(item[1])):
        print("| {} | {:.3f} | {:.3f} |".format(shape, *ceiling(times_us, noise, source)))


if __name__ == "__main__":
    main()
