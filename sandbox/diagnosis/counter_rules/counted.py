"""Counters of one launch as the rules read them: fractions and shares; None where a counter is absent or invalid."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import LaunchProfile
from cudal2_agent.contract.records.task import Arch

SECTOR_BYTES = 32
SCHEDULERS = 4  # of an SM
# Share of the chip's tensor rate that mma.sync reaches. sm_90a: measured with Nsight Compute on an H200, 63 % of the tensor
# pipe's cycles with the pipe as what most warps waited for. sm_100a: the estimate of the schedule policy's prior.
MMA_SYNC_RATE = {Arch.SM_90A: 0.63, Arch.SM_100A: 0.25}
MIN_FUSED_WEIGHT = 0.5  # of not using tensor cores: chains of fused multiply-adds are latency even in small work
MIN_WEIGHT = 0.05  # a bottleneck that could win less is not worth a finding
_STALLS = {
    "memory": ("stall_long_scoreboard", "stall_tex_throttle"),
    "smem": ("stall_short_scoreboard", "stall_mio_throttle"),
    "barrier": ("stall_barrier", "stall_membar"),
    "dependency": ("stall_wait", "stall_dispatch", "stall_branch"),
    "math": ("stall_math_pipe_throttle",),
    "wgmma": ("stall_wgmma",),
    "store": ("stall_drain",),
    "other": ("stall_no_instruction", "stall_sleeping"),
}
_SHARED_QUEUE = "stall_lg_throttle"  # of loads and of stores
# Where warps have roles, most of them wait at barriers by design, for their turn or for the kernel's end, and those that poll
# an mbarrier issue branches and fixed-latency instructions while they wait for memory.
_STALLS_WITH_ROLES = {
    **_STALLS,
    "memory": (*_STALLS["memory"], "stall_branch"),
    "barrier": ("stall_membar",),
    "dependency": (),
    "other": (),
}


@dataclass(frozen=True)
class CountedLaunch:
    """One launch. `share`: of the candidate's profiled time; `time_us`: the candidate's, measured, else profiled.

    `has_roles`: whether its warps have roles, as with wgmma and tcgen05. `has_mma`: whether the code has tensor-core
    instructions. `landing_bytes`: of an SM's shared memory that its resident CTAs have for asynchronous copies; 0 where the
    code has none.
    """

    launch: LaunchProfile
    task: Task
    chip: Chip
    share: float
    time_us: float
    has_roles: bool
    has_mma: bool = True
    landing_bytes: float = 0.0

    @property
    def ctas(self) -> int:
        return math.prod(self.launch.grid)

    def get(self, name: str) -> float | None:
        """A counter; None if it is absent, negative or not finite, as tools report what they could not count."""
        value = self.launch.metrics.get(name)
        return value if value is not None and math.isfinite(value) and value >= 0 else None

    def has(self, *names: str) -> bool:
        return all(self.get(name) is not None for name in names)

    def total(self, *names: str) -> float:
        """Sum of the counters that are present."""
        return sum(self.get(name) or 0.0 for name in names)

    def busy(self) -> dict[str, float]:
        """Utilisation of each resource while an SM worked, as far as counted; the launch's own latency is left out."""
        counted = {
            "tensor": self._fraction("tensor_pct", 1.0),
            "dram": self._fraction("dram_pct", self._stretch),
            "l2": self._fraction("l2_pct", self._stretch),
            "smem": self._fraction("smem_pct", self._stretch),
        }
        return {name: value for name, value in counted.items() if value is not None}

    @property
    def idle(self) -> float:
        """Share of the time in which even the resource with the highest utilisation was idle: what hiding latency could win.

        The tensor pipe's utilisation is relative to what the launch's kind of instruction can reach.
        """
        busy = self.busy()
        rate = MMA_SYNC_RATE.get(self.task.arch, 1.0) if self.multiplies_with_mma_sync else 1.0
        return max(0.0, 1 - max([*busy.values(), busy.get("tensor", 0.0) / rate])) if busy else 0.0

    @property
    def multiplies(self) -> bool:
        """Whether it uses tensor cores. One instruction per warp does not count: constants are loaded through the tensor
        pipe too.
        """
        warps = self.ctas * math.ceil(math.prod(self.launch.block) / 32)
        return self.has_mma and self.total("tensor_instructions") > warps

    @property
    def multiplies_with_mma_sync(self) -> bool:
        return not self.has_roles and self.multiplies

    def stalls(self) -> dict[str, float]:
        """Shares of the warps' waiting time by reason; empty where nothing was counted."""
        groups = _STALLS_WITH_ROLES if self.has_roles else _STALLS
        waits = {group: self.total(*names) for group, names in groups.items()}
        stored, queued = self._stored_share, self.total(_SHARED_QUEUE)
        waits["store"] += stored * queued
        waits["memory"] += (1 - stored) * queued
        whole = sum(waits.values())
        return {group: wait / whole for group, wait in waits.items()} if whole > 0 and math.isfinite(whole) else {}

    def cycles_per_cta(self) -> float | None:
        """Cycles from a CTA's begin to its end, on average."""
        active, warps = self.get("active_cycles"), self.get("active_warps")
        threads = math.prod(self.launch.block)
        if not active or not warps or not self.ctas or not threads:
            return None
        resident = warps * SCHEDULERS * 32 / threads
        return active * self.chip.sms * resident / self.ctas

    @property
    def _stored_share(self) -> float:
        """What stores have of the sectors that pass the queue of global accesses; none where they were not counted."""
        stored, loaded = self.total("store_sectors"), self.total("load_sectors")
        return stored / (stored + loaded) if stored else 0.0

    @property
    def _stretch(self) -> float:
        """From a share of the elapsed cycles to one of the longest SM's active ones."""
        elapsed, active = self.get("elapsed_cycles"), self.get("active_cycles_max")
        return max(1.0, elapsed / active) if elapsed and active else 1.0

    def _fraction(self, name: str, stretch: float) -> float | None:
        value = self.get(name)
        return None if value is None else min(1.0, value / 100 * stretch)


@dataclass(frozen=True)
class Rule:
    """`judges`: what the rule decides about, for or against, wherever the counters that it `needs` are present."""

    judges: tuple[Bottleneck, ...]
    needs: tuple[str, ...]
    find: Callable[[CountedLaunch], Iterator[Finding]]


def worth(bottleneck: Bottleneck, weight: float, evidence: str, remedy: str) -> Iterator[Finding]:
    """The finding, if its weight is large enough."""
    if weight >= MIN_WEIGHT:
        yield Finding(bottleneck=bottleneck, evidence=evidence, remedy=remedy, weight=min(1.0, weight))
