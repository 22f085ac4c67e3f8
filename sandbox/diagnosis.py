"""Diagnosis: what limits a kernel, from its inspection and plan, and from its time where there is one.

Choosing only: nothing here runs code. Findings from hardware counters are a profile's.
"""

import math
import statistics
from collections.abc import Iterator

from contract.chip import Chip, roofline_us
from contract.diagnosis import Diagnosis, Finding
from contract.evaluation import Measured
from contract.inspection import Inspection, KernelResources
from contract.plan import ResolvedLaunch, ResolvedPlan
from contract.task import GemmTask

_LITTLE_OCCUPANCY = 0.25  # of an SM's threads; asynchronous pipelines do with less, so the weight is small
_FULL_WAVE = 0.85  # of the last wave's slots in use
_NEAR_ROOFLINE = 0.8
_LAUNCH_BOUND = 4.0  # launches' time and latency dominate below this many launch times
_BY_MEMORY, _BY_ARITHMETIC = "memory", "arithmetic"
_LIMITER_REMEDY = {
    "registers": "use a smaller tile per warp, fewer live fragments, or __launch_bounds__ with a minimum of CTAs",
    "shared-memory": "use fewer stages, a smaller K step, or reuse the pipeline's buffers for the epilogue",
    "threads": "use fewer warps a CTA",
    "ctas": "give each CTA more work",
    "unknown": "set __launch_bounds__",
}


def diagnose(
    inspection: Inspection, plan: ResolvedPlan | None, task: GemmTask, chip: Chip, measured: Measured | None = None
) -> Diagnosis:
    """Findings, heaviest first. `plan` is None for a host candidate, whose launches are unknown."""
    time_us = statistics.median(measured.timing.samples_us) if measured else None
    findings = [*_code_findings(inspection), *(_grid_findings(inspection, plan, chip) if plan else ())]
    fraction = None
    if time_us is not None:
        fraction = roofline_us(task.flops, task.operand_bytes, chip) / time_us
        findings += _time_findings(time_us, fraction, plan, task, chip)
    findings.sort(key=lambda finding: -finding.weight)
    return Diagnosis(basis="timed" if measured else "static", findings=tuple(findings), roofline_fraction=fraction)


def _code_findings(inspection: Inspection) -> Iterator[Finding]:
    if not inspection.mma:
        yield Finding(
            bottleneck="no-tensor-cores",
            evidence="the code has no tensor-core instruction",
            remedy="compute with mma.sync (sm_80 and up) or wgmma (sm_90a) instead of fused multiply-adds",
            weight=1.0,
        )
    for kernel in inspection.kernels:
        yield from _kernel_findings(kernel)
    yield from _warning_findings(inspection)


def _kernel_findings(kernel: KernelResources) -> Iterator[Finding]:
    spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
    if spilled:
        yield Finding(
            bottleneck="spills",
            evidence=f"{kernel.entry} spills: {kernel.spill_store_bytes} bytes stored and {kernel.spill_load_bytes} loaded "
            f"a thread, with {kernel.registers} registers",
            remedy="use a smaller tile per warp, more warps, less unrolling, or a higher register bound",
            weight=min(1.0, 0.5 + spilled / 1024),
        )
    elif kernel.stack_bytes:
        yield Finding(
            bottleneck="local-memory",
            evidence=f"{kernel.entry} keeps {kernel.stack_bytes} bytes a thread in local memory",
            remedy="index register arrays with compile-time constants only: unroll the loops over fragments fully",
            weight=0.8,
        )
    if kernel.threads and kernel.occupancy < _LITTLE_OCCUPANCY:
        yield Finding(
            bottleneck="occupancy",
            evidence=f"{kernel.entry}: {kernel.ctas_per_sm} CTAs of {kernel.threads} threads an SM "
            f"({kernel.occupancy:.0%} of its threads), held back by {kernel.occupancy_limiter}",
            remedy=_LIMITER_REMEDY[kernel.occupancy_limiter],
            weight=0.2,
        )


def _warning_findings(inspection: Inspection) -> Iterator[Finding]:
    for warning in inspection.warnings:
        if "wgmma" in warning and "serialized" in warning:
            yield Finding(
                bottleneck="wgmma-serialised",
                evidence=warning,
                remedy="touch accumulators only after wgmma.wait_group, keep them in registers indexed by constants, "
                "and keep calls and branches out from between wgmma.fence and the wait",
                weight=0.9,
            )
        elif "setmaxnreg" in warning:
            yield Finding(
                bottleneck="setmaxnreg-ignored",
                evidence=warning,
                remedy="fix the block with __launch_bounds__, so that ptxas knows the register count at entry",
                weight=0.4,
            )


def _grid_findings(inspection: Inspection, plan: ResolvedPlan, chip: Chip) -> Iterator[Finding]:
    resident = {(kernel.entry, kernel.threads, kernel.dynamic_smem_bytes): kernel.ctas_per_sm for kernel in inspection.kernels}
    for launch in plan.launches:
        per_sm = resident.get((launch.entry, math.prod(launch.block), launch.dynamic_smem), 0)
        if per_sm:
            yield from _wave_findings(launch, per_sm, chip)


def _wave_findings(launch: ResolvedLaunch, per_sm: int, chip: Chip) -> Iterator[Finding]:
    ctas, slots = math.prod(launch.grid), per_sm * chip.sms
    if ctas < chip.sms:
        yield Finding(
            bottleneck="idle-sms",
            evidence=f"{launch.entry} launches {ctas} CTAs on {chip.sms} SMs",
            remedy="use smaller output tiles, or split K over several CTAs",
            weight=0.9 * (1 - ctas / chip.sms),
        )
        return
    waves = math.ceil(ctas / slots)
    used = ctas / (waves * slots)
    if waves > 1 and used < _FULL_WAVE:
        yield Finding(
            bottleneck="tail-wave",
            evidence=f"{launch.entry}: {ctas} CTAs in slots for {slots} make {waves} waves, {used:.0%} of them in use",
            remedy="choose a tile that divides the output into whole waves, a persistent grid, or stream-K",
            weight=1 - used,
        )


def _time_findings(time_us: float, fraction: float, plan: ResolvedPlan | None, task: GemmTask, chip: Chip) -> Iterator[Finding]:
    launches = len(plan.launches) if plan else 1
    if time_us < _LAUNCH_BOUND * launches * chip.launch_us:
        yield Finding(
            bottleneck="launch-bound",
            evidence=f"{time_us:.2f} µs for {launches} launches of {chip.launch_us} µs each",
            remedy="shorten the prologue and the epilogue, use one launch, use programmatic launch (sm_90 and up), "
            "and use more CTAs for less work each",
            weight=0.7,
        )
    if fraction < _NEAR_ROOFLINE:
        bound = _BY_MEMORY if _memory_us(task, chip) > _arithmetic_us(task, chip) else _BY_ARITHMETIC
        remedy = {
            _BY_MEMORY: "keep more bytes in flight: wider loads, TMA, more stages, and raster order that shares operands in L2",
            _BY_ARITHMETIC: "feed the tensor cores: larger tiles, deeper pipeline, warp specialisation, operands multicast",
        }[bound]
        yield Finding(
            bottleneck=f"far-from-roofline-{bound}",
            evidence=f"{time_us:.2f} µs is {fraction:.0%} of what {chip.name} allows ({bound}: "
            f"{max(_memory_us(task, chip), _arithmetic_us(task, chip)):.2f} µs, launch {chip.launch_us} µs)",
            remedy=remedy,
            weight=0.6 * (1 - fraction),
        )


def _memory_us(task: GemmTask, chip: Chip) -> float:
    return task.operand_bytes / (chip.dram_tbps * 1e6)


def _arithmetic_us(task: GemmTask, chip: Chip) -> float:
    return task.flops / (chip.tensor_tflops * 1e6)
