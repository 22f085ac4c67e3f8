"""Rules on unnecessary traffic: operands read too often, partial sums, half-used sectors, bank conflicts, D's store."""

import math
from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import transfer_us
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import SECTOR_BYTES, CountedLaunch, Rule, worth

BUSY_L2 = 0.4
TOO_OFTEN = 1.5
FEW_BYTES = 24  # used of a sector's 32; stored fragments of mma.sync and wgmma use 16
MANY_CONFLICTS = 0.1
# Output tiles from large to small. A good kernel reads operands for the largest that still gives most SMs a tile.
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
_ENOUGH_TILES = 0.75
_SECTORS_OF_A_WARP = 4  # that 32 threads touch with 4 bytes each


def redundant(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: L2's share of the time, times the share of it that larger tiles would save. Spilled registers are left out."""
    if not isinstance(counted.task, GemmTask):
        return
    spilled = _SECTORS_OF_A_WARP * counted.total("local_load_instructions")
    busy, read = counted.busy().get("l2", 0.0), max(0.0, counted.total("l2_read_sectors") - spilled) * SECTOR_BYTES
    tile, least = min_reads(counted.task, counted.chip)
    if busy < BUSY_L2 or read < TOO_OFTEN * least:
        return
    yield from worth(
        "redundant-traffic",
        busy * (1 - least / read),
        f"{counted.launch.entry}: {read / 2**20:,.1f} MiB are read from L2, tiles of {tile[0]}x{tile[1]} need "
        f"{least / 2**20:,.1f} MiB; L2 is {busy:.0%} busy",
        "share operands: a larger tile, or a cluster whose CTAs get the same rows or columns by multicast",
    )


def min_reads(task: GemmTask, chip: Chip) -> tuple[tuple[int, int], float]:
    """The largest usual tile that still fills the SMs, and the bytes of operands that it reads. Splits of K read no more.

    Of a gated task it is a tile of the columns of both weights.
    """
    filling = [tile for tile in _TILES if _tiles(task, tile) >= _ENOUGH_TILES * chip.sms]
    tile = filling[0] if filling else _TILES[-1]
    n = task.products * task.n
    rows, columns = math.ceil(task.m / tile[0]), math.ceil(n / tile[1])
    return tile, 2.0 * task.k * (task.m * columns + n * rows)


def _tiles(task: GemmTask, tile: tuple[int, int]) -> int:
    return math.ceil(task.m / tile[0]) * math.ceil(task.products * task.n / tile[1])


def reduction(counted: CountedLaunch) -> Iterator[Finding]:
    """Bytes beyond D, written and read again. Weight: their share of the traffic while idle.

    Spilled registers are left out, and sectors that stores count twice because they fill only parts of them.
    """
    written = counted.total("l2_write_sectors")
    partly = counted.total("store_sectors") * max(0.0, 1 - (counted.get("store_bytes_a_sector") or SECTOR_BYTES) / SECTOR_BYTES)
    spilled = _SECTORS_OF_A_WARP * counted.total("local_store_instructions")
    beyond = written - _output_sectors(counted.task) - spilled - partly
    moved = written + counted.total("l2_read_sectors")
    if beyond <= 0 or moved <= 0:
        return
    yield from worth(
        "reduction-traffic",
        min(1.0, 2 * beyond / moved) * (1 - counted.busy().get("tensor", 0.0)),
        f"{counted.launch.entry}: {written * SECTOR_BYTES / 2**20:,.2f} MiB are written, D is "
        f"{_output_sectors(counted.task) * SECTOR_BYTES / 2**20:,.2f} MiB; the rest is partial sums, which are read again",
        "use fewer splits of K, or sum in a cluster through distributed shared memory",
    )


def epilogue(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: the larger share, of the time at DRAM's rate or of the warps' waits for stores, while nothing else happens."""
    stored = min(counted.total("l2_write_sectors"), _output_sectors(counted.task)) * SECTOR_BYTES
    time_us = counted.time_us * counted.share
    if not stored or not time_us:
        return
    lasts_us = transfer_us(stored, counted.chip)
    waiting = counted.stalls().get("store", 0.0)
    yield from worth(
        "epilogue-bound",
        max(min(1.0, lasts_us / time_us), waiting) * counted.idle,
        f"{counted.launch.entry}: storing {stored / 2**20:,.1f} MiB takes {lasts_us:.1f} µs at DRAM's rate, of {time_us:.1f} "
        f"µs; {waiting:.0%} of its warps' waits are for stores, and no resource is more than {1 - counted.idle:.0%} busy",
        "overlap the store with the next tile's multiplication: ping-pong consumers, a persistent grid, two CTAs an SM, TMA "
        "stores",
    )


def coalescing(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: the unused bytes' share of what is read from L2, while the tensor pipe is idle."""
    reads = max(counted.total("l2_read_sectors"), counted.total("load_sectors"))
    writes = max(counted.total("l2_write_sectors"), counted.total("store_sectors"))
    for kind, whole in (("load", reads), ("store", writes)):
        used, sectors = counted.get(f"{kind}_bytes_a_sector"), counted.get(f"{kind}_sectors")
        if not used or not sectors or used >= FEW_BYTES:
            continue
        wasted = (1 - used / SECTOR_BYTES) * sectors / (reads + writes)
        yield from worth(
            "uncoalesced",
            wasted * (1 - counted.busy().get("tensor", 0.0)),
            f"{counted.launch.entry}: global {kind}s use {used:.1f} of each sector's {SECTOR_BYTES} bytes; they touch "
            f"{sectors:,.0f} of {whole:,.0f} sectors",
            "let the threads of a warp access neighbouring addresses, 16 bytes each, or move the tile by TMA",
        )


def bank_conflicts(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: shared memory's share of the time, times the share of conflicts in its passes."""
    conflicts, passes = counted.total("smem_conflicts"), counted.total("smem_wavefronts")
    if not passes or conflicts < MANY_CONFLICTS * passes:
        return
    yield from worth(
        "bank-conflicts",
        min(1.0, conflicts / passes) * counted.busy()["smem"],
        f"{counted.launch.entry}: {conflicts:,.0f} of {passes:,.0f} passes of shared memory are bank conflicts (loads "
        f"{counted.total('smem_load_conflicts'):,.0f}, stores {counted.total('smem_store_conflicts'):,.0f}), and it is "
        f"{counted.busy()['smem']:.0%} busy",
        "swizzle the layout (128-byte swizzle of tensor maps, XOR of row and 16-byte column), or pad rows by 16 bytes",
    )


def _output_sectors(task: Task) -> float:
    return sum(buffer.bytes for buffer in task.buffers if buffer.role.written) / SECTOR_BYTES


RULES = (
    Rule(judges=("redundant-traffic",), needs=("l2_pct", "l2_read_sectors"), find=redundant),
    Rule(
        judges=("reduction-traffic",), needs=("l2_read_sectors", "l2_write_sectors", "local_store_instructions"), find=reduction
    ),
    Rule(judges=("epilogue-bound",), needs=("tensor_pct", "l2_write_sectors"), find=epilogue),
    Rule(judges=("uncoalesced",), needs=("load_sectors", "load_bytes_a_sector"), find=coalescing),
    Rule(judges=("bank-conflicts",), needs=("smem_pct", "smem_conflicts", "smem_wavefronts"), find=bank_conflicts),
)
