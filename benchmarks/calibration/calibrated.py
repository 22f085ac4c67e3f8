"""Adaptation curves of a calibration that ran on a GPU: the policy that ships, trained on with ever more of its shapes.

Run from the repository's root, after `cudal2-agent trajectories import` of the calibration's runs:
    python -m benchmarks.calibration.calibrated --store trajectories.sqlite --accumulate f16 [--chip H200] [--draws 5]
It prints a JSON line per arm, number of shapes and draw, then a table of means over the draws. With `--searches`, the searches
of a campaign on the chip stand in for a calibration: it measured the best schedules that it found, and no others at random.
With `--searches --held-out` the searches of held-out shapes judge. The policies adapt to the others, in all layouts.
With `--write FILE` it judges nothing: FILE gets the policy that ships, adapted to all shapes that are not held out.

`calibrate` judges one order of the shapes. Here each draw takes another order and other shapes to judge by, so that the spread
of the figures is seen. "these runs alone": a policy that is trained anew. A folder beside the store keeps the features, so that
a second call takes less.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.calibration.adaptation_rows import AdaptationArm, AdaptationRow, rows_of, table
from benchmarks.h200.grid import held_out
from cudal2_agent.agent.learning.calibration.calibration_runs import measured_runs
from cudal2_agent.agent.learning.calibration.calibration_tasks import calibration_tasks
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, Layout, TimingMode
from cudal2_agent.policies.schedule.learned.known_policies import find_policy
from cudal2_agent.policies.schedule.learned.policy_file import SHIPPED, SUFFIX, kind_of, read_weights, write_weights
from cudal2_agent.policies.training.adapting import adapted
from cudal2_agent.policies.training.group_cache import GroupCache
from cudal2_agent.policies.training.groups import ScheduleGroup, TimedRun, read_runs
from cudal2_agent.policies.training.training_plan import ADAPTING, stages_of
from cudal2_agent.store.store import open_store

SHAPES = (2, 4, 8, 16, 32, 64)
POLICY = "h200"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration.calibrated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--chip", default="H200")
    parser.add_argument("--mode", type=TimingMode, default=TimingMode.OFFLINE, help="offline or server")
    parser.add_argument("--accumulate", type=AccumulatorType, default=AccumulatorType.F32, help="f32 or f16")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--searches", action="store_true", help="take finished searches in layout nn, not a calibration's runs")
    parser.add_argument("--held-out", action="store_true", help="judge by searches of held-out shapes, adapt to all others")
    parser.add_argument("--counts", type=int, nargs="+", default=SHAPES, help="numbers of shapes that are adapted to")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write an adapted policy, and judge nothing")
    options = parser.parse_args()
    if options.held_out and not options.searches:
        parser.error("--held-out is for --searches: a calibration measures no held-out shape")
    groups = GroupCache(options.store.parent / "cache" / "training").groups(_timed_runs(options), 0, 1)
    print(f"{len(groups)} shapes", file=sys.stderr, flush=True)
    apart = [group.task.shape in held_out() for group in groups]
    others = [group for group, held in zip(groups, apart, strict=True) if not held]
    if options.write:
        write_adapted(options.write, others)
        return
    judges = [group for group, held in zip(groups, apart, strict=True) if held and options.held_out]
    learned, most = others if options.held_out else groups, max(options.counts)
    if options.held_out and not judges:
        raise UsageError("the store has no search of a held-out shape of this chip, which --held-out judges by")
    if len(learned) < (most if judges else most + 1):
        raise UsageError(f"{len(learned)} shapes are too few for --counts {most}; give smaller ones, or measure more shapes")
    base = read_weights(find_policy(POLICY, options.store.parent).path)[1].tensors
    arms = (AdaptationArm("adapted", base, learned), AdaptationArm("these runs alone", None, learned))
    kind = f"{options.chip}, {options.mode.value} {options.accumulate.value}"
    rows: list[AdaptationRow] = []
    for draw in range(options.draws):
        for row in rows_of("policy that ships", base, arms, options.counts, draw, judges):
            rows.append({"kind": kind, **row})
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))


def write_adapted(path: Path, groups: Sequence[ScheduleGroup]) -> None:
    """The policy that ships, adapted to the groups of one chip, with its trees. The file's name is its own.

    Raises: UsageError, OSError.
    """
    if not groups:
        raise UsageError("the store has no shape of this chip to adapt to that is not held out")
    card, network, trees = read_weights(SHIPPED / f"{POLICY}{SUFFIX}")
    tasks = Counter(f"{kind_of(group.task)} {group.task.layout.value}" for group in groups)
    update = {
        "name": path.stem,
        "chips": tuple({group.chip for group in groups}),
        "tasks": dict(tasks),
        "runs": len(groups),
        "schedules": sum(len(group.costs) for group in groups),
        "stages": stages_of(ADAPTING, trees=trees is not None),
        "held_out": 0,
        "figures": {},
        "base": card.name,
        "created": datetime.now(UTC).date().isoformat(),
    }
    write_weights(path, adapted(network.tensors, groups), card.model_copy(update=update), trees)
    print(f"{path}: adapted to {len(groups)} shapes", file=sys.stderr)


def _timed_runs(options: argparse.Namespace) -> list[TimedRun]:
    """The calibration's runs, or with --searches the finished searches of the chip."""
    with open_store(f"sqlite:///{options.store}") as store:
        if not options.searches:
            tasks = calibration_tasks(Arch.SM_90A, options.mode, options.accumulate)
            return [run.timed for run in measured_runs(store, options.chip, tasks)]
        layouts = tuple(Layout) if options.held_out else (Layout.NN,)
        wanted = partial(_is_of, options.mode, options.accumulate, layouts)
        return [run for run in read_runs(store, wanted) if run.chip.name == options.chip]


def _is_of(mode: TimingMode, accumulate: AccumulatorType, layouts: Sequence[Layout], task: GemmTask) -> bool:
    return task.mode is mode and task.accumulate is accumulate and task.layout in layouts


if __name__ == "__main__":
    main()
