"""What changed from one candidate's counters to another's, and what each change means.

A change is reported where it exceeds the variation of counters from run to run, most important first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cudal2_agent.contract.records.profile import Difference, LaunchProfile, Profile
from cudal2_agent.sandbox.diagnosis.findings import shares

MAX_CHANGES = 8
_POINTS = 20.0  # percentage points that count as much as a factor of e
_TIME = "duration_ns"
_ROLES = "wgmma_instructions"
_NONE_IF_ZERO = ("load_bytes_a_sector",)
_MATTERS = 5.0  # per cent of a resource in use
_WARPS = 2.0  # waiting warps per instruction that count as much


@dataclass(frozen=True)
class Quantity:
    """One counter to compare. `total`: launches add up; `percent` and `waits`: averaged over launches by their time.

    `noise`: the minimum change that is reported: the logarithm of a ratio, percentage points, or warps per instruction.
    `beside` and `least`: values below this share of another counter count as that share, since their ratios mean nothing.
    `where`: a percentage that must be significant on either side for the change to matter.
    """

    name: str
    unit: str
    kind: Literal["total", "percent", "waits"]
    importance: float
    noise: float
    fell: str
    rose: str
    beside: str = ""
    least: float = 0.0
    where: str = ""


QUANTITIES = (
    Quantity(_TIME, "ns", "total", 1.0, 0.03, "it takes less time under the profiler", "it takes more time under the profiler"),
    Quantity("tensor_pct", "%", "percent", 2.0, 3.0, "the tensor pipe is fed less well", "the tensor pipe is fed better"),
    Quantity(
        "stall_long_scoreboard", "warps per instruction", "waits", 1.5, 0.3,
        "fewer warps wait for gmem or L2: the pipeline covers more of the trip",
        "more warps wait for gmem or L2: the pipeline covers less of the trip",
    ),
    Quantity(
        "stall_barrier", "warps per instruction", "waits", 1.0, 0.3,
        "fewer warps wait for each other at barriers", "more warps wait for each other at barriers",
    ),
    Quantity(
        "stall_short_scoreboard", "warps per instruction", "waits", 1.0, 0.3,
        "fewer warps wait for answers of shared memory", "more warps wait for answers of shared memory",
    ),
    Quantity(
        "stall_mio_throttle", "warps per instruction", "waits", 1.0, 0.3,
        "the queue of shared-memory instructions is less full", "the queue of shared-memory instructions is fuller",
    ),
    Quantity(
        "stall_wait", "warps per instruction", "waits", 0.7, 0.3,
        "warps depend less on their own last instructions", "warps depend more on their own last instructions",
    ),
    Quantity(
        "stall_math_pipe_throttle", "warps per instruction", "waits", 0.7, 0.3,
        "fewer warps wait for a busy math pipe", "more warps wait for a busy math pipe, which is how it should be",
    ),
    Quantity(
        "stall_wgmma", "warps per instruction", "waits", 1.0, 0.3, "fewer warps wait for wgmma", "more warps wait for wgmma"
    ),
    Quantity(
        "stall_membar", "warps per instruction", "waits", 1.0, 0.3, "fewer warps wait at fences", "more warps wait at fences"
    ),
    Quantity(
        "l2_read_sectors", "sector", "total", 1.2, 0.1,
        "operands are read from L2 less often: larger tiles, or more sharing by multicast",
        "operands are read from L2 more often: smaller tiles, or less sharing by multicast", where="l2_pct",
    ),
    Quantity(
        "l2_write_sectors", "sector", "total", 1.0, 0.1,
        "less is written to L2: fewer partial sums, spilled registers or half-filled sectors",
        "more is written to L2: partial sums, spilled registers or half-filled sectors", where="l2_pct",
    ),
    Quantity("l2_pct", "%", "percent", 0.8, 5.0, "L2 is less busy", "L2 is busier"),
    Quantity(
        "dram_read_bytes", "byte", "total", 1.0, 0.1,
        "less is read from DRAM: CTAs that run together share more operands in L2",
        "more is read from DRAM: CTAs that run together share fewer operands in L2", where="dram_pct",
    ),
    Quantity("dram_pct", "%", "percent", 0.6, 5.0, "DRAM is less busy", "DRAM is busier"),
    Quantity("smem_pct", "%", "percent", 0.6, 5.0, "shared memory is less busy", "shared memory is busier"),
    Quantity(
        "smem_wavefronts", "", "total", 0.8, 0.1,
        "shared memory serves the same work in fewer passes", "shared memory needs more passes for the same work",
        where="smem_pct",
    ),
    Quantity(
        "smem_conflicts", "", "total", 0.8, 0.3, "fewer bank conflicts", "more bank conflicts", "smem_wavefronts", 0.02
    ),
    Quantity(
        "instructions", "inst", "total", 0.8, 0.1,
        "fewer instructions for the same work", "more instructions for the same work", where="issue_pct",
    ),
    Quantity(
        "local_load_instructions", "inst", "total", 0.8, 0.3,
        "fewer spilled registers are loaded back", "more spilled registers are loaded back", "instructions", 0.005,
    ),
    Quantity("issue_pct", "%", "percent", 0.5, 5.0, "schedulers issue in fewer cycles", "schedulers issue in more cycles"),
    Quantity(
        "active_warps", "warp", "percent", 0.5, 0.5, "an SM holds fewer warps to hide latency",
        "an SM holds more warps to hide latency"
    ),
    Quantity(
        "load_bytes_a_sector", "byte/sector", "percent", 0.6, 4.0,
        "global loads use less of what they touch", "global loads use more of what they touch",
    ),
    Quantity(
        "spread_pct", "%", "percent", 1.2, 4.0, "SMs share the work less evenly", "SMs share the work more evenly"
    ),
)  # fmt: skip


def explain(before: Profile, after: Profile) -> tuple[Difference, ...]:
    """The changes to report, time first, then the most important; a quantity that either profile lacks is left out."""
    old, new = _values(before), _values(after)
    changes = sorted(_changes(old, new), key=lambda change: (change[1].quantity != _TIME, -change[0]))
    return tuple(difference for _, difference in changes[:MAX_CHANGES])


def _changes(old: dict[str, float], new: dict[str, float]) -> Iterator[tuple[float, Difference]]:
    for quantity in QUANTITIES:
        if quantity.name not in old or quantity.name not in new or not _matters(quantity, old, new):
            continue
        before, after = old[quantity.name], new[quantity.name]
        change = _change(quantity, old, new)
        if abs(change) < quantity.noise:
            continue
        size = {"total": 1.0, "percent": _POINTS, "waits": _WARPS}[quantity.kind]
        meaning = quantity.rose if change > 0 else quantity.fell
        difference = Difference(quantity=quantity.name, before=before, after=after, unit=quantity.unit, meaning=meaning)
        yield quantity.importance * abs(change) / size, difference


def _matters(quantity: Quantity, old: dict[str, float], new: dict[str, float]) -> bool:
    """Waits are compared between kernels of one kind only; warps with roles wait at barriers by design."""
    if quantity.kind == "waits":
        roles = {old.get(_ROLES, 0.0) > 0, new.get(_ROLES, 0.0) > 0}
        return roles == {False} or (roles == {True} and quantity.name != "stall_barrier")
    if quantity.where and quantity.where in old and quantity.where in new:
        return max(old[quantity.where], new[quantity.where]) >= _MATTERS
    return True


def _change(quantity: Quantity, old: dict[str, float], new: dict[str, float]) -> float:
    before, after = old[quantity.name], new[quantity.name]
    if quantity.kind != "total":
        return after - before
    floor = max(1.0, quantity.least * max(old.get(quantity.beside, 0.0), new.get(quantity.beside, 0.0)))
    return math.log(max(after, floor) / max(before, floor))


def _values(profile: Profile) -> dict[str, float]:
    """Each quantity of a candidate as a whole; one that any of its launches lacks is left out."""
    if not profile.launches:
        return {}
    parts = shares(profile.launches)
    values = {}
    for name, kind in ((_ROLES, "total"), *((quantity.name, quantity.kind) for quantity in QUANTITIES)):
        counted = [_value(launch, name) for launch in profile.launches]
        weights = [1.0] * len(parts) if kind == "total" else parts
        value = sum(weight * (math.nan if one is None else one) for weight, one in zip(weights, counted, strict=True))
        if math.isfinite(value):
            values[name] = value
    return values


def _value(launch: LaunchProfile, name: str) -> float | None:
    if name == "spread_pct":
        average, longest = _value(launch, "active_cycles"), _value(launch, "active_cycles_max")
        return min(100.0, 100 * average / longest) if average is not None and longest else None
    value = launch.metrics.get(name)
    if value is None or not math.isfinite(value) or value < 0 or (value == 0 and name in _NONE_IF_ZERO):
        return None
    return value
