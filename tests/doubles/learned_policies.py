"""Files of a learned schedule policy: small networks with random weights."""

from pathlib import Path

import numpy as np

from cudal2_agent.policies.schedule.learned.boosted_trees import (
    BOUND,
    FIRST,
    HIGHER,
    LOWER,
    SPLIT,
    VALUE,
    BoostedTrees,
    ScheduleTrees,
)
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT, NAMES
from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard, write_weights

CARD = PolicyCard(
    name="mine",
    fingerprint=FINGERPRINT,
    chips=("H200",),
    tasks={"offline f32 nn": 3},
    runs=3,
    schedules=90,
    stages=("supervised",),
    seed=0,
    held_out=1,
    created="2026-11-23",
    product="0.1.0",
)


def random_weights(members: int = 2, width: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {"features.mean": np.zeros(len(NAMES)), "features.deviation": np.ones(len(NAMES))}
    for member in range(members):
        for name, outs, ins in (("layers.0", width, len(NAMES)), ("error", 1, width), ("embedding", 4, width)):
            made[f"{member}.{name}.weight"] = 0.1 * rng.standard_normal((outs, ins))
            made[f"{member}.{name}.bias"] = np.zeros(outs)
    return {name: value.astype(np.float32) for name, value in made.items()}


def one_split(column: int, lower: float, higher: float, bound: float = 0.5) -> BoostedTrees:
    """One tree that parts the values of a column at a bound."""
    tensors = {
        SPLIT: np.array([column, -1, -1], np.int16),
        BOUND: np.array([bound, 0, 0], np.float32),
        LOWER: np.array([1, 0, 0], np.int32),
        HIGHER: np.array([2, 0, 0], np.int32),
        VALUE: np.array([0, lower, higher], np.float32),
        FIRST: np.array([0], np.int32),
    }
    return BoostedTrees(tensors, len(NAMES))


def split_trees(column: int, lower: float, higher: float, bound: float = 0.5) -> ScheduleTrees:
    """Trees that part the values of a column at a bound; estimates of `good` are 1 higher than those of `behind`."""
    return ScheduleTrees(one_split(column, lower, higher, bound), one_split(column, 1 + lower, 1 + higher, bound))


def write_policy(path: Path, seed: int = 0, **changes: object) -> Path:
    """A policy named `mine`, unless `changes` of its card say otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, random_weights(seed=seed), CARD.model_copy(update=changes))
    return path
