"""What policies propose on held-out shapes, judged by the timing model. Needs no GPU.

Run from the repository's root: python -m benchmarks.proposals.predicted --policy NAME --out ROWS [--shapes 30] [--jobs 2]

The replay orders only what was measured; here the first eight proposals of each arm are built, traced by the emulator and
predicted (`sandbox/timing_model`), beside the schedules that led the measured sweep of the shape. **A prediction is no
measurement**: on random schedules of other shapes its median error is 10 %. It shares no weights with the policies, and it can
tell whether a policy proposes something absurd where nobody measured. A killed run goes on from its rows.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.h200.grid import held_out
from benchmarks.proposals.sweeps import Sweep, stored_sweeps
from benchmarks.timing_model.predicting import prepared
from cudal2_agent.agent.bench.proposals.arms import BenchArm, own_arms, read_arms
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store

PROPOSALS = 8
LEADERS = 3  # schedules of a measured sweep
Row = dict[str, Any]


def row_of(sweep: Sweep, arms: Sequence[BenchArm], cache: Path, jobs: int) -> Row:
    """Predicted times by arm, in the order of proposals; None where a kernel was not built. `known`: the sweep's fastest."""
    seen = Observation(task=sweep.task, chip=sweep.chip, round=1, seed=0)
    proposed: dict[str, list[Candidate]] = {arm.name: arm.open(sweep.task.arch, 0).propose(seen, PROPOSALS) for arm in arms}
    fastest = np.argsort(-np.nan_to_num(sweep.ratios, nan=0.0))[:LEADERS]
    leaders = [sweep.entries[int(place)] for place in fastest]
    proposed["known"] = [entry.family.write(entry.schedule, sweep.task) for entry in leaders]
    distinct = {one.id: one for candidates in proposed.values() for one in candidates}
    candidates = list(distinct.values())
    times_us = {
        candidates[place].id: kernel.predicted().predicted_us
        for place, kernel in prepared([(one, sweep.task) for one in candidates], cache, jobs)
    }
    return {
        "shape": sweep.task.shape,
        "arms": {name: [times_us.get(one.id) for one in candidates] for name, candidates in proposed.items()},
    }


def table(rows: Sequence[Row]) -> str:
    """Geometric means of the first and of the best of eight, over the best prediction of the sweep's leaders."""
    lines = [
        f"{len(rows)} held-out shapes, times predicted by the timing model, over the best of the {LEADERS} schedules that led "
        "the measured sweep.",
        "",
        "| arm | first | best of 8 | first at most 1.05 | worst first | not built |",
        "|---|---|---|---|---|---|",
    ]
    for name in (name for name in rows[0]["arms"] if name != "known"):
        known = [min(filter(None, row["arms"]["known"])) for row in rows]
        own = [row["arms"][name] for row in rows]
        first = [(times[0] or max(filter(None, times))) / best for times, best in zip(own, known, strict=True)]
        eight = [min(filter(None, times)) / best for times, best in zip(own, known, strict=True)]
        near = mean(one <= 1.05 for one in first)
        failed = sum(time is None for times in own for time in times)
        lines.append(f"| {name} | {_mean(first):.3f} | {_mean(eight):.3f} | {near:.0%} | {max(first):.2f} | {failed} |")
    return "\n".join(lines)


def _mean(ratios: Sequence[float]) -> float:
    return exp(mean(map(log, ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append", default=[], help="a learned policy; may be repeated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    apart, settings = held_out(), load_settings()
    rows = [json.loads(line) for line in options.out.read_text("utf-8").splitlines()] if options.out.exists() else []
    with open_store(settings.store_url) as store, tempfile.TemporaryDirectory() as scratch:
        sweeps = stored_sweeps(store, lambda task: task.shape in apart and task.mode is TimingMode.OFFLINE)
        chosen = np.random.default_rng(0).permutation(len(sweeps))[: options.shapes]
        arms = read_arms(["schedule", "random", *options.policy], own_arms(store, apart), settings.home)
        for place in chosen:
            sweep = sweeps[int(place)]
            if sweep.task.shape not in {row["shape"] for row in rows}:
                rows.append(row_of(sweep, arms, Path(scratch), options.jobs))
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
