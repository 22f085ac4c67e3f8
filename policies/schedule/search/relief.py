"""Which moves of a schedule relieve which bottleneck, as data.

A move is a quantity of a schedule and the direction it should change in. Most quantities are of the work that a schedule
makes of the task, so that one table holds for every family.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from contract.diagnosis import Bottleneck
from policies.schedule.families.protocol import cluster_sms
from policies.schedule.search.pool import Entry, Pool

LEAST_CHANGE = math.log(1.02)  # of a quantity, to count as a move

Quantity = Callable[[Entry, Pool], float]


class Move(NamedTuple):
    """`direction`: 1 where more of the quantity relieves, -1 where less does."""

    quantity: Quantity
    direction: int


def more(quantity: Quantity) -> Move:
    return Move(quantity, 1)


def less(quantity: Quantity) -> Move:
    return Move(quantity, -1)


def units(entry: Entry, pool: Pool) -> float:
    """Output tiles times parts of K: CTAs, or what persistent CTAs take turns at."""
    m, n, k = entry.work.tile
    parts = -(-pool.task.k // (k * entry.work.k_blocks))
    return max(entry.work.ctas, -(-pool.task.m // m) * -(-pool.task.n // n) * parts)


def busy_sms(entry: Entry, pool: Pool) -> float:
    return min(units(entry, pool), cluster_sms(pool.chip, entry.work.cluster))


def wave_use(entry: Entry, pool: Pool) -> float:
    """Share of the slots of all waves, or of a persistent grid's turns, that have work."""
    slots = cluster_sms(pool.chip, entry.work.cluster) * entry.work.ctas_per_sm
    count = units(entry, pool)
    return count / (math.ceil(count / slots) * slots)


def stage_bytes(entry: Entry, _: Pool) -> float:
    m, n, k = entry.work.tile
    return 2 * k * (m + n)


def bytes_in_flight(entry: Entry, pool: Pool) -> float:
    """Of operands on an SM, while the oldest stage is multiplied."""
    ahead = max(min(entry.work.stages, entry.work.k_blocks) - 1, 1)
    return ahead * stage_bytes(entry, pool) * ctas_per_sm(entry, pool)


def ctas_per_sm(entry: Entry, pool: Pool) -> float:
    """CTAs resident together, where there are so many."""
    return min(entry.work.ctas_per_sm, math.ceil(units(entry, pool) / pool.chip.sms))


def warps_per_sm(entry: Entry, pool: Pool) -> float:
    """Warps that multiply, on an SM."""
    return _warps(entry) * ctas_per_sm(entry, pool)


def accumulators(entry: Entry, _: Pool) -> float:
    """Of a thread."""
    m, n, _k = entry.work.tile
    sharing = 4 if entry.work.alternating else _warps(entry) // _axis(entry, "warps_k")
    return m * n / (32 * sharing)


def bounded_registers(entry: Entry, _: Pool) -> float:
    """CTAs that an SM was asked to hold, at the cost of registers."""
    return _axis(entry, "min_ctas") * _axis(entry, "ctas_per_sm")


def operand_traffic(entry: Entry, _: Pool) -> float:
    """Bytes of operands that reach the SMs: larger tiles and multicast bring fewer."""
    return entry.work.loaded_bytes


def sum_traffic(entry: Entry, _: Pool) -> float:
    return 1 + entry.work.reduced_bytes


def tensor_feed(entry: Entry, _: Pool) -> float:
    """Share of the tensor rate that shared memory and the warps can feed."""
    return entry.work.mma_efficiency


def smem_reads(entry: Entry, _: Pool) -> float:
    """Elements read from shared memory for each product, by a warp or, with wgmma, a warpgroup."""
    m, n, _k = entry.work.tile
    warps_m, warps_n = _axis(entry, "warps_m"), _axis(entry, "warps_n")
    rows, columns = (64, n) if "consumers" in entry.values else (m / warps_m, n / warps_n)
    return (rows + columns) / (rows * columns)


def row_elements(entry: Entry, _: Pool) -> float:
    """Elements of the narrowest row that operands have in shared memory, up to a swizzle's width."""
    width = next((width for width in (64, 32, 16, 8) if entry.work.tile[1] % width == 0), 1)
    return min(width, entry.work.tile[2])


def tile_area(entry: Entry, _: Pool) -> float:
    return entry.work.tile[0] * entry.work.tile[1]


def work_of_a_cta(entry: Entry, pool: Pool) -> float:
    return tile_area(entry, pool) * entry.work.tile[2] * entry.work.k_blocks


def step_depth(entry: Entry, _: Pool) -> float:
    """Depth of a K block; each costs its barriers and addresses."""
    return entry.work.tile[2]


def launches(entry: Entry, _: Pool) -> float:
    return entry.work.launches


def programmatic(entry: Entry, _: Pool) -> float:
    return 1 + entry.work.programmatic


def persistent(entry: Entry, _: Pool) -> float:
    return 1 + entry.work.persistent


def alternating(entry: Entry, _: Pool) -> float:
    return 1 + entry.work.alternating


def wide_stores(entry: Entry, _: Pool) -> float:
    return 1 + (entry.values.get("tma_store") is True or entry.values.get("epilogue") == "staged")


def boxes_in_flight(entry: Entry, _: Pool) -> float:
    """Of TMA stores."""
    return _axis(entry, "store_boxes")


def raster(entry: Entry, _: Pool) -> float:
    """Rows of tiles visited together."""
    return _axis(entry, "group") * _axis(entry, "group_m")


def compiled_shape(entry: Entry, _: Pool) -> float:
    """Whether M, N, K are constants to the compiler."""
    return 1 + (entry.values.get("constant_shape") is True)


def _axis(entry: Entry, name: str) -> int:
    """A counting axis; 1 where the family has none of that name."""
    return int(entry.values.get(name, 1))


def _warps(entry: Entry) -> int:
    if "consumers" in entry.values:
        return 4 * _axis(entry, "consumers")
    return _axis(entry, "warps_m") * _axis(entry, "warps_n") * _axis(entry, "warps_k")


_OTHER_RASTER = (more(raster), less(raster))

# A bottleneck without moves is one that no axis of a schedule changes: it is the code's, and a rewrite's to relieve.
RELIEFS: dict[Bottleneck, tuple[Move, ...]] = {
    "launch-bound": (more(programmatic), less(launches), less(work_of_a_cta)),
    "idle-sms": (more(busy_sms),),
    "tail-wave": (more(wave_use), more(persistent)),
    "imbalance": (more(wave_use), more(persistent)),
    "occupancy": (more(ctas_per_sm), more(warps_per_sm)),
    "prologue-bound": (more(programmatic), more(persistent), more(ctas_per_sm), less(stage_bytes)),
    "epilogue-bound": (
        more(alternating),
        more(persistent),
        more(wide_stores),
        more(boxes_in_flight),
        more(ctas_per_sm),
        less(tile_area),
    ),
    "no-tensor-cores": (),
    "legacy-mma": (),
    "memory-latency": (more(bytes_in_flight), less(operand_traffic)),
    "few-bytes-in-flight": (more(bytes_in_flight), more(busy_sms)),
    "barrier-waits": (more(warps_per_sm), more(alternating), more(step_depth)),
    "smem-instructions": (less(smem_reads),),
    "dependency-waits": (more(warps_per_sm), more(accumulators)),
    "wgmma-waits": (more(warps_per_sm), more(alternating), more(tensor_feed)),
    "wgmma-serialised": (),
    "instruction-bound": (more(tensor_feed), more(step_depth), more(compiled_shape)),
    "dram-bound": (*_OTHER_RASTER, less(sum_traffic)),
    "l2-bound": (less(operand_traffic), *_OTHER_RASTER),
    "smem-bound": (less(smem_reads), less(operand_traffic)),
    "bank-conflicts": (more(row_elements), more(wide_stores)),
    "uncoalesced": (more(wide_stores), more(row_elements)),
    "redundant-traffic": (less(operand_traffic), *_OTHER_RASTER),
    "reduction-traffic": (less(sum_traffic),),
    "register-staging": (),
    "narrow-smem-loads": (),
    "spills": (less(accumulators), less(bounded_registers)),
    "local-memory": (),
    "setmaxnreg-ignored": (),
    "tensor-bound": (),
    "far-from-roofline-memory": (more(bytes_in_flight), more(busy_sms), *_OTHER_RASTER),
    "far-from-roofline-arithmetic": (more(tensor_feed), more(bytes_in_flight), less(operand_traffic), more(busy_sms)),
}


def relieves(parent: Entry, neighbour: Entry, bottleneck: Bottleneck, pool: Pool) -> bool:
    """Whether a neighbour makes any of the moves that relieve a bottleneck of its parent."""
    for quantity, direction in RELIEFS.get(bottleneck, ()):
        change = math.log(quantity(neighbour, pool) / quantity(parent, pool))
        if direction * change > LEAST_CHANGE:
            return True
    return False
