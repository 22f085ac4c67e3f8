"""What the timer decides before it touches a GPU: how many operand sets, how many launches, in which order, and when."""

import math
import random
from collections.abc import Sequence

from contract.task import GemmTask

MIN_SETS = 4
MAX_SETS = 4096
L2_MULTIPLE = 3
MAX_LAUNCHES = 8192
SERIOUS_THROTTLING = frozenset({"hw-slowdown", "hw-thermal", "hw-power-brake", "sw-thermal"})


def set_bytes(task: GemmTask) -> int:
    """Device memory of one operand set, with B in both layouts."""
    return task.operand_bytes + 2 * task.k * task.n


def count_sets(task: GemmTask, l2_bytes: int, memory_bytes: int) -> int:
    """Operand sets to rotate through so that no set is still in L2 when its turn comes again, as far as memory goes.

    Between two uses of a set, L2_MULTIPLE times the L2 passes through it: caches do not replace strictly in order.
    """
    cold = math.ceil(L2_MULTIPLE * l2_bytes / task.operand_bytes) + 1
    return max(1, min(max(cold, MIN_SETS), MAX_SETS, memory_bytes // set_bytes(task)))


def stays_cold(task: GemmTask, sets: int, l2_bytes: int) -> bool:
    """Whether rotating through the sets touches more than L2 holds between two uses of one."""
    return (sets - 1) * task.operand_bytes > l2_bytes


def count_launches(launch_us: float, sets: int, round_us: float) -> int:
    """Launches of one sample: about `round_us` of them, yet every set once, so that the next sample finds them cold."""
    return max(sets, min(MAX_LAUNCHES, round(round_us / max(launch_us, 1e-3))))


def shuffled_rounds(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """For each round all contenders in a random order, so that no one always follows the same other."""
    rng = random.Random(seed)
    return [rng.sample(list(names), len(names)) for _ in range(rounds)]


def arrival_intervals_us(count: int, mean_us: float, seed: int) -> list[float]:
    """Exponential intervals between requests of a server. Unit: microseconds."""
    rng = random.Random(seed)
    return [rng.expovariate(1.0 / mean_us) for _ in range(count)]


def throttled_apart(candidate: frozenset[str], baseline: frozenset[str]) -> frozenset[str]:
    """Serious throttle reasons that only one of the two sides ran under."""
    return (candidate ^ baseline) & SERIOUS_THROTTLING
