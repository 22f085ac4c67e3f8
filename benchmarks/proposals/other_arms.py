"""The arms that are no part of the product.

| name | the policy |
|---|---|
| `lfbo` | the forest tuner without data: its first round is random |
| `lfbo-trained` | the forest tuner with a forest of all stored sweeps but those of judged and held-out shapes |
"""

from collections.abc import Collection

from benchmarks.proposals.forest import ScheduleForest
from benchmarks.proposals.forest_tuner import ForestTuner
from benchmarks.proposals.sweeps import stored_sweeps
from benchmarks.speed.grid import held_out
from cudal2_agent.agent.bench.proposals.arms import BenchArm, MakeArm
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.store.store import Store


def other_arms(store: Store, judged: Collection[str]) -> dict[str, MakeArm]:
    """The arms by name, each made where it is asked for. `judged`: shapes whose sweeps teach no arm."""
    return {
        "lfbo": lambda: BenchArm("lfbo", lambda arch, seed: ForestTuner(families(arch), seed)),
        "lfbo-trained": lambda: trained_arm(store, judged),
    }


def trained_arm(store: Store, judged: Collection[str]) -> BenchArm:
    """Raises: UsageError where the store holds no sweep to learn from."""
    forest, note = trained_forest(store, judged)
    return BenchArm("lfbo-trained", lambda arch, seed: ForestTuner(families(arch), seed, forest), note)


def trained_forest(store: Store, judged: Collection[str]) -> tuple[ScheduleForest, str]:
    """The forest of all sweeps but those of judged and held-out shapes, and what it was trained on. Raises: UsageError."""
    kept_back = {*judged, *held_out()}
    sweeps = stored_sweeps(store, lambda task: task.shape not in kept_back)
    if not sweeps:
        raise UsageError("lfbo-trained needs sweeps of other shapes in the store; see `cudal2-agent trajectories import`")
    return ScheduleForest(sweeps), f"{sum(len(one.entries) for one in sweeps)} schedules of {len(sweeps)} tasks"
