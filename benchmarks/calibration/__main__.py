"""Adaptation curves: a policy of offline runs alone, trained on with 2 to 32 shapes of server mode, judged on other shapes.

Run from the repository's root: python -m benchmarks.calibration --store trajectories.sqlite --home FOLDER [--seeds 15]
It prints a JSON line per arm, number of shapes and seed, then a table of means over the seeds. `--home` keeps features and
the offline policy, so that a second call takes a minute.

Held-out shapes take no part, neither in training nor in judging. All numbers of shapes are judged on the same shapes of a seed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.calibration.adaptation_rows import AdaptationArm, rows_of, table
from benchmarks.calibration.merged_runs import merged_runs, thinned
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.policies.schedule.learned.network import Tensors
from cudal2_agent.policies.training.checkpoints import Checkpoints
from cudal2_agent.policies.training.group_cache import GroupCache
from cudal2_agent.policies.training.groups import TimedRun, read_runs
from cudal2_agent.policies.training.schedule_training import ScheduleTraining
from cudal2_agent.policies.training.training_plan import NetworkSize, StagePlan, TrainingPlan
from cudal2_agent.store.store import open_store

HELD_OUT = Path(__file__).parent.parent / "h200" / "held_out.json"
SHAPES = (2, 4, 8, 16, 32)
SCHEDULES = 16  # of a shape that adapts, as in `cudal2-agent calibrate`
OFFLINE = TrainingPlan(
    stages=(
        StagePlan(stage="supervised", epochs=15, rate=2e-3),
        StagePlan(stage="contrastive", epochs=3, rate=2e-4),
        StagePlan(stage="group-relative", epochs=3, rate=2e-4),
    ),
    size=NetworkSize(members=1, width=128),
)


def held_out_lists() -> set[str]:
    """Shapes that take no part: those of all lists of the file."""
    told = json.loads(HELD_OUT.read_text("utf-8"))
    return {shape for name in ("measured_before", "grid", "off_grid") for shape in told[name]}


def offline_policy(runs: Sequence[TimedRun], home: Path) -> Tensors:
    """Weights that learned from offline runs alone. They go on from their checkpoint, so that they are trained once."""
    groups = GroupCache(home / "cache" / "training").groups(
        runs, 0, 1, lambda done: _say(f"features {done} of {len(runs)}", done)
    )
    training = ScheduleTraining(OFFLINE, groups, Checkpoints(home / "offline", f"offline {len(groups)} {OFFLINE!r}"))
    return training.run(
        lambda report, _: _say(f"{report.stage} {report.epoch} of {report.epochs}: {report.loss:.3f}")
    ).tensors()


def _say(line: str, done: int = 0) -> None:
    if done % 20 == 0:
        print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--home", type=Path, required=True, help="folder for features and the offline policy")
    parser.add_argument("--seeds", type=int, default=15)
    options = parser.parse_args()
    never = held_out_lists()
    with open_store(f"sqlite:///{options.store}") as store:
        runs = read_runs(store, lambda task: task.shape not in never)
    base = offline_policy([run for run in runs if run.task.mode is TimingMode.OFFLINE], options.home)
    server = merged_runs(run for run in runs if run.task.mode is TimingMode.SERVER)
    rng = np.random.default_rng(0)
    cache = GroupCache(options.home / "cache" / "training")
    groups, few = (cache.groups(each, 0, 1) for each in (server, [thinned(run, SCHEDULES, rng) for run in server]))
    arms = (
        AdaptationArm("adapted", base, groups),
        AdaptationArm(f"adapted, {SCHEDULES} schedules", base, few),
        AdaptationArm("server runs alone", None, groups),
    )
    rows = []
    for seed in range(options.seeds):
        for row in rows_of("offline policy", base, arms, SHAPES, seed):
            print(json.dumps(row), flush=True)
            rows.append(row)
    print(table(rows))


if __name__ == "__main__":
    main()
