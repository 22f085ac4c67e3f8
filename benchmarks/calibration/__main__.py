"""Adaptation curves: a policy of offline runs alone, trained on with 2 to 32 shapes of server mode, judged on other shapes.

Run from the repository's root: python -m benchmarks.calibration --store trajectories.sqlite --home FOLDER [--seeds 15]
It prints a JSON line per arm, number of shapes and seed, then a table of means over the seeds. `--home` keeps features and
the offline policy, so that a second call takes a minute.

Held-out shapes take no part, neither in training nor in judging. All numbers of shapes are judged on the same shapes of a seed.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.calibration.merged_runs import merged_runs, thinned
from contract.task import TimingMode
from policies.schedule.learned.network import Tensors
from policies.training.adapting import adapted, scores_of
from policies.training.checkpoints import Checkpoints
from policies.training.group_cache import GroupCache
from policies.training.groups import ScheduleGroup, TimedRun, read_runs
from policies.training.judging import judged
from policies.training.network_size import NetworkSize
from policies.training.schedule_training import ScheduleTraining
from policies.training.training_plan import StagePlan, TrainingPlan
from policies.trajectories.store import open_store

HELD_OUT = Path(__file__).parent.parent / "h200" / "held_out.json"
SHAPES = (2, 4, 8, 16, 32)
SCHEDULES = 16  # of a shape that adapts, as in `cudal2-agent calibrate`
FIGURES = ("first within 5 %", "best of 8 within 2 %", "first over best", "best of 8 over best", "rank correlation")
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


def arms_of(
    base: Tensors, groups: Sequence[ScheduleGroup], few: Sequence[ScheduleGroup], seed: int
) -> Iterator[dict[str, object]]:
    """A row for each arm and number of shapes. `few`: the same tasks with fewer schedules, in the same order."""
    order = [int(place) for place in np.random.default_rng(seed).permutation(len(groups))]
    tested = [groups[place] for place in order[max(SHAPES) :]]
    yield _row("analytic prior", 0, seed, judged(tested, lambda group: group.prior))
    yield _row("offline policy", 0, seed, judged(tested, partial(scores_of, base)))
    for count in SHAPES:
        for name, start, source in (
            ("adapted", base, groups),
            (f"adapted, {SCHEDULES} schedules", base, few),
            ("server runs alone", None, groups),
        ):
            weights = adapted(start, [source[place] for place in order[:count]], seed)
            yield _row(name, count, seed, judged(tested, partial(scores_of, weights)))


def table(rows: Sequence[dict[str, object]]) -> str:
    """Means over the seeds, as a page shows them: a seed has nine shapes to judge by, so that medians of shares are steps."""
    lines = [f"| arm | shapes | {' | '.join(FIGURES)} |", f"|---|---|{'---|' * len(FIGURES)}"]
    for arm, shapes in dict.fromkeys((str(row["arm"]), int(str(row["shapes"]))) for row in rows):
        of_arm = [row for row in rows if (row["arm"], row["shapes"]) == (arm, shapes)]
        means = [statistics.fmean(float(str(row[name])) for row in of_arm) for name in FIGURES]
        cells = [f"{value:.0%}" if name.endswith("%") else f"{value:.3f}" for name, value in zip(FIGURES, means, strict=True)]
        lines.append(f"| {arm} | {shapes or '-'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(arm: str, shapes: int, seed: int, figures: dict[str, float]) -> dict[str, object]:
    return {"arm": arm, "shapes": shapes, "seed": seed, **{name: round(value, 4) for name, value in figures.items()}}


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
    rows = []
    for seed in range(options.seeds):
        for row in arms_of(base, groups, few, seed):
            print(json.dumps(row), flush=True)
            rows.append(row)
    print(table(rows))


if __name__ == "__main__":
    main()
