"""Makes the policy that ships for the H100: that of the H200, adapted to searches on the other chip.

Run from the repository's root, with a store of its own:
    cudal2-agent trajectories import benchmarks/campaigns/h100/*.sweep.zst
    python -m benchmarks.proposals.adapted_policy --store trajectories.sqlite --chip "H100 80GB HBM3" --out h100.safetensors
Searches of held-out shapes teach nothing; those of other shapes do, in all layouts. A folder beside the store keeps the
features, so that a second call takes less. `cudal2-agent calibrate` adapts to runs of its own instead.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import execute, script
from benchmarks.speed.grid import held_out
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask, TimingMode
from cudal2_agent.policies.schedule.learned.policy_file import SHIPPED, SUFFIX, kind_of, read_weights, write_weights
from cudal2_agent.policies.training.adapting import adapted
from cudal2_agent.policies.training.group_cache import GroupCache
from cudal2_agent.policies.training.groups import ScheduleGroup, read_runs
from cudal2_agent.policies.training.training_plan import ADAPTING, stages_of
from cudal2_agent.store.store import open_store

POLICY = "h200"


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--chip", required=True)
    parser.add_argument("--mode", type=TimingMode, default=TimingMode.OFFLINE, help="offline or server")
    parser.add_argument("--accumulate", type=AccumulatorType, default=AccumulatorType.F32, help="f32 or f16")
    parser.add_argument("--out", type=Path, required=True, help="file of the policy, whose name is the policy's")
    options = parser.parse_args()
    apart = held_out()

    def wanted(task: GemmTask) -> bool:
        return task.mode is options.mode and task.accumulate is options.accumulate and task.shape not in apart

    with open_store(f"sqlite:///{options.store}") as store:
        runs = [one for one in read_runs(store, wanted) if one.chip.name == options.chip]
    write_adapted(options.out, GroupCache(options.store.parent / "cache" / "training").groups(runs, 0, 1))


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


if __name__ == "__main__":
    execute(main)
