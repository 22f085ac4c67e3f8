"""What the timer decides before it uses a GPU: operand sets, launches, pairs of operands, order, and arrival times."""

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.guard.placement import slot_bytes

MIN_SETS = 4
MAX_SETS = 4096
MAX_LAUNCHES = 4096  # of one sample
L2_MULTIPLE = 10  # of L2 that is read between two uses of a matrix, so that no cache policy keeps more than a tenth of it
RING_BYTES = 8 * 1024**3  # of outputs and workspaces
MEMORY_SHARE = 0.2  # maximum share of the free device memory, for either
TRIMMED_SHARE = 0.25  # of the requests of a server's sample, left out at either end
BRIEF_LAUNCHES = 8  # minimum of a brief sample
MIN_REQUESTS = 4  # of a server's sample, so that its trimmed mean has two
LONG_US, VERY_LONG_US = 1000.0, 4000.0  # launches from which a brief sample has LONG_LAUNCHES and VERY_LONG_LAUNCHES
LONG_LAUNCHES, VERY_LONG_LAUNCHES = 3, 2
SERIOUS_THROTTLING = frozenset({"hw-slowdown", "hw-thermal", "hw-power-brake", "sw-thermal"})


class TimedLaunch(NamedTuple):
    """What one launch of a sample reads and writes: the numbers of its A, of its B and of its output's slot."""

    a: int
    b: int
    slot: int


def set_bytes(task: GemmTask) -> int:
    """Device memory of one A and one B. B lies there in both layouts; A in its own and by rows.

    B and `up` of a gated task lie there by columns, for the baselines twice, and by rows where the task's layout asks for it.
    """
    of_b = (2 if task.layout.transposes_b else 3) * task.products if task.gated else 2
    return 2 * task.k * ((2 if task.layout.transposes_a else 1) * task.m + of_b * task.n)


def count_sets(task: GemmTask, launches: int, l2_bytes: int, free_bytes: int) -> int:
    """Number of matrices A, and of matrices B: one per launch, or so many that a matrix is cold when it is used again.

    `launches`: of one sample at the roofline. Fewer sets where memory is short.
    """
    cold = math.ceil(L2_MULTIPLE * l2_bytes / read_bytes(task)) + 1
    wanted = max(min(launches, cold), MIN_SETS)
    return max(1, min(wanted, MAX_SETS, int(MEMORY_SHARE * free_bytes) // set_bytes(task)))


def read_bytes(task: GemmTask) -> int:
    """Bytes of A, B and `up` that one launch reads."""
    return 2 * task.k * (task.m + task.products * task.n)


def spread_bytes(l2_bytes: int, free_bytes: int) -> int:
    """Least range of the matrices of an operand, so that no launch can put all of it into L2 for the others."""
    return min(L2_MULTIPLE * l2_bytes, int(MEMORY_SHARE * free_bytes) // 4)


def count_slots(task: GemmTask, workspace_bytes: int, free_bytes: int) -> int:
    """Launches whose outputs and workspaces the ring holds; at least one."""
    each = slot_bytes(2 * task.m * task.n) + slot_bytes(workspace_bytes)
    return max(1, min(RING_BYTES, int(MEMORY_SHARE * free_bytes)) // each)


def count_launches(launch_us: float, round_us: float, sets: int, slots: int) -> int:
    """Launches of one sample: about `round_us` of them, no more than there are slots and pairs of operands."""
    wanted = max(MIN_SETS, round(round_us / max(launch_us, 1e-3)))
    return min(wanted, MAX_LAUNCHES, slots, sets * sets)


def launches_needed(task: Task, options: TimeOptions, chip: Chip) -> int:
    """Launches of one sample of the fastest kernel that can be: about `round_us` of its time.

    A server's sample has at most `server_launches`, because its requests wait for each other.
    """
    floor_us = roofline_us(task, chip)
    if task.mode is TimingMode.SERVER:
        return min(options.server_launches, max(MIN_REQUESTS, round(options.round_us / floor_us)))
    return max(MIN_SETS, math.ceil(options.round_us / floor_us))


def brief_launches(launch_us: float, round_us: float) -> int:
    """Launches of a sample that ranks: about `round_us`, and few where a launch is long."""
    if launch_us >= VERY_LONG_US:
        return VERY_LONG_LAUNCHES
    if launch_us >= LONG_US:
        return LONG_LAUNCHES
    return max(BRIEF_LAUNCHES, round(round_us / max(launch_us, 1e-3)))


def draw_pairs(sets: int, launches: int, draw: random.Random) -> list[tuple[int, int]]:
    """(A, B) of every launch: no pair twice, and every matrix used again only after almost all others were.

    A and B are traversed in orders of their own; in each round B is shifted by one. Raises: ValueError for more launches
    than pairs.
    """
    if launches > sets * sets:
        raise ValueError(f"{sets} sets give {sets * sets} pairs, not {launches}")
    a, b = draw.sample(range(sets), sets), draw.sample(range(sets), sets)
    return [(a[index % sets], b[(index + index // sets) % sets]) for index in range(launches)]


def draw_launches(sets: int, slots: int, launches: int, draw: random.Random) -> list[TimedLaunch]:
    """Pairs as `draw_pairs`, each with an output slot of its own. Raises: ValueError for more launches than pairs or slots."""
    outputs = draw.sample(range(slots), launches)
    return [TimedLaunch(*pair, slot) for pair, slot in zip(draw_pairs(sets, launches, draw), outputs, strict=True)]


def reuse_bytes(task: GemmTask, sets: int, launches: int) -> int | None:
    """Operand bytes read between two uses of one matrix within a sample; None where each is used once."""
    if launches <= sets:
        return None
    return (sets - 1) * read_bytes(task)


def stays_cold(reuse: int | None, l2_bytes: int) -> bool:
    """Whether L2 keeps nothing useful of a matrix from one use to the next."""
    return reuse is None or reuse >= L2_MULTIPLE * l2_bytes


def shuffled_rounds(names: Sequence[str], rounds: int, draw: random.Random) -> list[list[str]]:
    """For each round all contenders in a random order, so that none always follows the same other one."""
    return [draw.sample(list(names), len(names)) for _ in range(rounds)]


def arrival_intervals_us(count: int, mean_us: float, draw: random.Random) -> list[float]:
    """Exponential intervals between requests of a server; none where their mean is 0. Unit: microseconds."""
    return [draw.expovariate(1.0 / mean_us) if mean_us else 0.0 for _ in range(count)]


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the extremes. Event times are quantised, and so would be their median."""
    cut = int(TRIMMED_SHARE * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def throttled_apart(candidate: frozenset[str], baseline: frozenset[str]) -> frozenset[str]:
    """Serious throttle reasons that only one of the two sides ran under."""
    return (candidate ^ baseline) & SERIOUS_THROTTLING
