"""Which moves of a schedule relieve which bottleneck, as data.

A move is a quantity of a schedule and the direction in which it should change. Most quantities derive from `Work`, so one
table serves every family.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from cudal2_agent.contract.records.diagnosis import Bottleneck
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool

MIN_CHANGE = math.log(1.02)  # of a quantity, to count as a move

Quantity = Callable[[PoolEntry, SchedulePool], float]


class Move(NamedTuple):
    """`direction`: 1 where a larger quantity relieves the bottleneck, -1 where a smaller one does."""

    quantity: Quantity
    direction: int


def more(quantity: Quantity) -> Move:
    return Move(quantity, 1)


def less(quantity: Quantity) -> Move:
    return Move(quantity, -1)


def units(entry: PoolEntry, pool: SchedulePool) -> float:
    """Output tiles times parts of K: one per CTA, or several where CTAs are persistent."""
    m, n, k = entry.work.tile
    parts = -(-pool.task.k // (k * entry.work.k_blocks))
    return max(entry.work.ctas, -(-pool.task.m // m) * -(-pool.task.n // n) * parts)


def busy_sms(entry: PoolEntry, pool: SchedulePool) -> float:
    return min(units(entry, pool), cluster_sms(pool.chip, entry.work.cluster))


def wave_use(entry: PoolEntry, pool: SchedulePool) -> float:
    """Utilisation of the CTA slots, over all waves or all turns of a persistent grid."""
    slots = cluster_sms(pool.chip, entry.work.cluster) * entry.work.ctas_per_sm
    count = units(entry, pool)
    return count / (math.ceil(count / slots) * slots)


def stage_bytes(entry: PoolEntry, _: SchedulePool) -> float:
    m, n, k = entry.work.tile
    return 2 * k * (m + n)


def bytes_in_flight(entry: PoolEntry, pool: SchedulePool) -> float:
    """Bytes of operands that an SM loads while it multiplies the oldest stage."""
    ahead = max(min(entry.work.stages, entry.work.k_blocks) - 1, 1)
    return ahead * stage_bytes(entry, pool) * ctas_per_sm(entry, pool)


def ctas_per_sm(entry: PoolEntry, pool: SchedulePool) -> float:
    """CTAs resident on an SM, at most as many as there are."""
    return min(entry.work.ctas_per_sm, math.ceil(units(entry, pool) / pool.chip.sms))


def warps_per_sm(entry: PoolEntry, pool: SchedulePool) -> float:
    """Warps that multiply, per SM."""
    return _warps(entry) * ctas_per_sm(entry, pool)


def accumulators(entry: PoolEntry, _: SchedulePool) -> float:
    """Accumulators per thread."""
    m, n, _k = entry.work.tile
    sharing = 4 if entry.work.alternating else _warps(entry) // _axis(entry, "warps_k")
    return m * n / (32 * sharing)


def bounded_registers(entry: PoolEntry, _: SchedulePool) -> float:
    """Requested CTAs per SM, which limit registers."""
    return _axis(entry, "min_ctas") * _axis(entry, "ctas_per_sm")


def operand_traffic(entry: PoolEntry, _: SchedulePool) -> float:
    """Bytes of operands that the SMs load; larger tiles and multicast reduce them."""
    return entry.work.loaded_bytes


def sum_traffic(entry: PoolEntry, _: SchedulePool) -> float:
    return 1 + entry.work.reduced_bytes


def tensor_feed(entry: PoolEntry, _: SchedulePool) -> float:
    """Share of the tensor rate that shared memory and the warps sustain."""
    return entry.work.mma_efficiency


def smem_reads(entry: PoolEntry, _: SchedulePool) -> float:
    """Elements read from shared memory per product, by a warp or, with wgmma, a warpgroup."""
    m, n, _k = entry.work.tile
    warps_m, warps_n = _axis(entry, "warps_m"), _axis(entry, "warps_n")
    rows, columns = (64, n) if "consumers" in entry.values else (m / warps_m, n / warps_n)
    return (rows + columns) / (rows * columns)


def row_elements(entry: PoolEntry, _: SchedulePool) -> float:
    """Elements of the narrowest row of operands in shared memory, at most the width of a swizzle."""
    width = next((width for width in (64, 32, 16, 8) if entry.work.tile[1] % width == 0), 1)
    return min(width, entry.work.tile[2])


def tile_area(entry: PoolEntry, _: SchedulePool) -> float:
    return entry.work.tile[0] * entry.work.tile[1]


def work_per_cta(entry: PoolEntry, pool: SchedulePool) -> float:
    return tile_area(entry, pool) * entry.work.tile[2] * entry.work.k_blocks


def step_depth(entry: PoolEntry, _: SchedulePool) -> float:
    """Depth of a K block. Every block costs barriers and address arithmetic."""
    return entry.work.tile[2]


def launches(entry: PoolEntry, _: SchedulePool) -> float:
    return entry.work.launches


def programmatic(entry: PoolEntry, _: SchedulePool) -> float:
    return 1 + entry.work.programmatic


def persistent(entry: PoolEntry, _: SchedulePool) -> float:
    return 1 + entry.work.persistent


def alternating(entry: PoolEntry, _: SchedulePool) -> float:
    return 1 + entry.work.alternating


def wide_stores(entry: PoolEntry, _: SchedulePool) -> float:
    return 1 + (entry.values.get("tma_store") is True or entry.values.get("epilogue") == "staged")


def boxes_in_flight(entry: PoolEntry, _: SchedulePool) -> float:
    """Boxes of TMA stores in flight."""
    return _axis(entry, "store_boxes")


def raster(entry: PoolEntry, _: SchedulePool) -> float:
    """Rows of tiles visited together."""
    return _axis(entry, "group") * _axis(entry, "group_m")


def compiled_shape(entry: PoolEntry, _: SchedulePool) -> float:
    """2 where M, N, K are compile-time constants, else 1."""
    return 1 + (entry.values.get("constant_shape") is True)


def _axis(entry: PoolEntry, name: str) -> int:
    """The value of a numeric axis; 1 where the family has no such axis."""
    return int(entry.values.get(name, 1))


def _warps(entry: PoolEntry) -> int:
    if "consumers" in entry.values:
        return 4 * _axis(entry, "consumers")
    return _axis(entry, "warps_m") * _axis(entry, "warps_n") * _axis(entry, "warps_k")


_OTHER_RASTER = (more(raster), less(raster))

# No axis of a schedule changes a bottleneck without moves: only a rewrite of the code relieves it.
RELIEFS: dict[Bottleneck, tuple[Move, ...]] = {
    "launch-bound": (more(programmatic), less(launches), less(work_per_cta)),
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
    "wide-fences": (),
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


def relieves(parent: PoolEntry, neighbour: PoolEntry, bottleneck: Bottleneck, pool: SchedulePool) -> bool:
    """Whether a neighbour makes a move that relieves a bottleneck of its parent."""
    for quantity, direction in RELIEFS.get(bottleneck, ()):
        change = math.log(quantity(neighbour, pool) / quantity(parent, pool))
        if direction * change > MIN_CHANGE:
            return True
    return False
