"""What bounds the time of a result: the nearest limit of the chip, and what Nsight Compute counted where that was recorded."""

from collections.abc import Iterator, Sequence

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.campaign import Explanation, ShapeResult
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import arithmetic_us, is_latency, memory_us

# Counters that a reason quotes, where the profile has them.
QUOTED = {
    "tensor_pct": "tensor pipe",
    "dram_pct": "DRAM",
    "l2_pct": "L2",
    "smem_pct": "shared memory",
    "occupancy_pct": "occupancy",
}
# Counters that a row keeps besides: time alone on cold caches, grid, and what warps wait for.
_KEPT = (
    *("duration_ns", "issue_pct", "registers", "waves", "active_cycles", "active_cycles_max", "l2_hit_pct", "l2_read_sectors"),
    *("dram_read_bytes", "dram_write_bytes", "stall_long_scoreboard", "stall_short_scoreboard", "stall_barrier", "stall_wgmma"),
)
FINDINGS, CHANGES = 2, 2  # that a reason tells
_KEPT_FINDINGS, _KEPT_CHANGES = 4, 5


def reason_of(row: ShapeResult, step: Step | None = None) -> str:
    """Why a kernel is not faster, in a few sentences. `step`: the winner's; its profile counts where the row has none."""
    if row.best is None:
        return row.reason or "no kernel was measured"
    told = row.explained
    if told is None and step is not None and step.profile is not None and step.profile.launches:
        told = explanation(step.profile, step.diagnosis)
    return " ".join([_limit(row, row.best.time_us), *(_counted(told) if told else ())])


def explanation(
    profile: Profile,
    diagnosis: Diagnosis | None,
    *,
    environment: str = "",
    library: Profile | None = None,
    why_not: str = "",
    differences: Sequence[Difference] = (),
) -> Explanation:
    """What a row keeps of a winner's profile. `library`: the profile of cuBLASLt's kernel, or `why_not`."""
    kernels = "; ".join(dict.fromkeys(launch.entry for launch in library.launches)) if library else ""
    return Explanation(
        tool=profile.tool,
        environment=environment,
        findings=diagnosis.findings[:_KEPT_FINDINGS] if diagnosis else (),
        counters=_kept(profile),
        library=kernels or why_not,
        library_counters=_kept(library) if library else {},
        differences=tuple(differences[:_KEPT_CHANGES]),
    )


def _kept(profile: Profile) -> dict[str, float]:
    longest = max(profile.launches, key=lambda launch: launch.metrics.get("duration_ns", 0.0))
    return {name: round(longest.metrics[name], 3) for name in (*QUOTED, *_KEPT) if name in longest.metrics}


def _limit(row: ShapeResult, time_us: float) -> str:
    chip = REFERENCE_CHIPS[row.task.arch]
    multiply_us, move_us = arithmetic_us(row.task, chip), memory_us(row.task, chip)
    if is_latency(time_us, 1, chip):
        name = "launch and latency"
    else:
        name = "tensor arithmetic" if multiply_us > move_us else "memory traffic"
    theirs = f"; AutoTuning {row.baselines_us[AUTOTUNED] / row.floor_us:.2f}" if AUTOTUNED in row.baselines_us else ""
    return f"{name}: {time_us / row.floor_us:.2f} times the floor of {row.floor_us:.2f} µs{theirs}."


def _counted(told: Explanation) -> Iterator[str]:
    """The counters beside those of cuBLASLt's kernel, the heaviest findings, and what differs most."""
    theirs = {short: f" ({value:.0f})" for short, value in told.library_counters.items()}
    known = [(short, name) for short, name in QUOTED.items() if short in told.counters]
    shares = [f"{name} {told.counters[short]:.0f} %{theirs.get(short, '')}" for short, name in known]
    if shares:
        yield f"Nsight Compute{' (cuBLASLt)' if told.library_counters else ''}: {', '.join(shares)}."
    yield from (f"{finding.bottleneck}: {finding.evidence}." for finding in told.findings[:FINDINGS])
    changes = [one for one in told.differences if one.quantity != "duration_ns"][:CHANGES]
    if changes:
        yield f"Compared with cuBLASLt: {'; '.join(one.meaning for one in changes)}."
