"""Rules on full resources: the tensor pipe, DRAM, L2, shared memory.

A full resource weighs the share of time in which nothing else is as full: with less work for it, the next one would be the
limit.
"""

from collections.abc import Iterator

from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import MMA_SYNC_RATE, CountedLaunch, Rule, worth

FULL_TENSOR = 0.8
FULL = 0.65  # of what a memory can do: its queues are long from there on


def tensor(counted: CountedLaunch) -> Iterator[Finding]:
    busy = counted.busy()["tensor"]
    if busy >= FULL_TENSOR:
        yield Finding(
            bottleneck="tensor-bound",
            evidence=f"{counted.launch.entry}: the tensor pipe works in {busy:.0%} of the active cycles",
            remedy="little is left to win but the prologue, the tail and the clock: fewer instructions beside the "
            "multiplication save power, and with it clock",
            weight=1 - busy,
        )


def legacy_mma(counted: CountedLaunch) -> Iterator[Finding]:
    rate = MMA_SYNC_RATE.get(counted.task.arch)
    if rate is None or not counted.multiplies_with_mma_sync:
        return
    busy = counted.busy()["tensor"]
    newer = "wgmma" if counted.task.arch is Arch.SM_90A else "tcgen05"
    yield from worth(
        "legacy-mma",
        (1 - rate) * min(1.0, busy / rate),
        f"{counted.launch.entry}: the tensor pipe is {busy:.0%} busy with mma.sync, which reaches {rate:.0%} of its rate "
        "at most",
        f"multiply with {newer}, fed by TMA",
    )


def dram(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: the bytes beyond the operands, as a share of DRAM's time."""
    busy, read = counted.busy(), counted.get("dram_read_bytes") or 0.0
    if busy["dram"] < FULL or _fullest(busy) != "dram" or not read:
        return
    least = sum(buffer.bytes for buffer in counted.task.buffers if not buffer.role.written)
    yield Finding(
        bottleneck="dram-bound",
        evidence=f"{counted.launch.entry}: DRAM is {busy['dram']:.0%} busy; {read / 2**20:,.1f} MiB are read, the operands are "
        f"{least / 2**20:,.1f} MiB",
        remedy="let CTAs that run together share operands in L2: raster order in groups of tile rows, larger tiles; what is "
        "read once is at its limit",
        weight=busy["dram"] * max(0.0, 1 - least / read),
    )


def l2(counted: CountedLaunch) -> Iterator[Finding]:
    yield from _bound(
        counted, "l2", "l2-bound", "L2", "read each operand less often: larger tiles, clusters that share operands by multicast"
    )


def smem(counted: CountedLaunch) -> Iterator[Finding]:
    yield from _bound(
        counted,
        "smem",
        "smem-bound",
        "shared memory",
        "read shared memory less for each multiplication: larger tiles per warp, ldmatrix.x4, a wider wgmma with A in "
        "registers, no bank conflicts",
    )


def _bound(counted: CountedLaunch, resource: str, bottleneck: Bottleneck, name: str, remedy: str) -> Iterator[Finding]:
    busy = counted.busy()
    if busy[resource] < FULL or _fullest(busy) != resource:
        return
    following = max((value for other, value in busy.items() if other != resource), default=0.0)
    yield from worth(
        bottleneck,
        busy[resource] - following,
        f"{counted.launch.entry}: {name} is {busy[resource]:.0%} busy, the next resource {following:.0%}",
        remedy,
    )


def _fullest(busy: dict[str, float]) -> str:
    return max(busy, key=lambda name: busy[name])


RULES = (
    Rule(judges=("tensor-bound",), needs=("tensor_pct",), find=tensor),
    Rule(judges=("legacy-mma",), needs=("tensor_pct", "tensor_instructions"), find=legacy_mma),
    Rule(judges=("dram-bound",), needs=("dram_pct", "dram_read_bytes"), find=dram),
    Rule(judges=("l2-bound",), needs=("l2_pct",), find=l2),
    Rule(judges=("smem-bound",), needs=("smem_pct",), find=smem),
)
