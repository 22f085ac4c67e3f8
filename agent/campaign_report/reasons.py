"""What bounds the time of a result: the nearest limit of the chip, and what Nsight Compute counted where that was recorded."""

from contract.campaign import ShapeResult
from contract.chip import REFERENCE_CHIPS
from contract.evaluation import AUTOTUNED
from contract.roofline import arithmetic_us, is_latency, memory_us
from contract.trajectory import Step

# Counters that a reason quotes, where the profile has them.
QUOTED = {
    "tensor_pct": "tensor pipe",
    "dram_pct": "DRAM",
    "l2_pct": "L2",
    "smem_pct": "shared memory",
    "occupancy_pct": "occupancy",
}
FINDINGS = 2


def reason_of(row: ShapeResult, step: Step | None = None) -> str:
    """Why a kernel is not faster, in a line or two. `step`: the winner's, with its profile and diagnosis if there are any."""
    if row.best is None:
        return row.reason or "no kernel was measured"
    return " ".join([_limit(row, row.best.time_us), *_counted(step)])


def _limit(row: ShapeResult, time_us: float) -> str:
    chip = REFERENCE_CHIPS[row.task.arch]
    multiply_us, move_us = arithmetic_us(row.task, chip), memory_us(row.task, chip)
    if is_latency(time_us, 1, chip):
        name = "launch and latency"
    else:
        name = "tensor arithmetic" if multiply_us > move_us else "memory traffic"
    theirs = f"; AutoTuning {row.baselines_us[AUTOTUNED] / row.floor_us:.2f}" if AUTOTUNED in row.baselines_us else ""
    return f"{name}: {time_us / row.floor_us:.2f} times the floor of {row.floor_us:.2f} µs{theirs}."


def _counted(step: Step | None) -> list[str]:
    if step is None or step.profile is None or not step.profile.launches:
        return []
    longest = max(step.profile.launches, key=lambda launch: launch.metrics.get("duration_ns", 0.0))
    shares = [f"{name} {longest.metrics[short]:.0f} %" for short, name in QUOTED.items() if short in longest.metrics]
    told = [f"Nsight Compute: {', '.join(shares)}."] if shares else []
    findings = step.diagnosis.findings[:FINDINGS] if step.diagnosis else ()
    return told + [f"{finding.bottleneck}: {finding.evidence}." for finding in findings]
