"""Findings from compiled code and launch plan alone; they are estimates, since nothing was executed.

Covered: resources, the instruction mix of the SASS, CTAs against SMs.
Not covered: how often an instruction runs. Prologue, main loop and epilogue count alike, so rules on the mix ask only for
what good kernels never show.
"""

import math
from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan
from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask, Task
from cudal2_agent.contract.reward.roofline import arithmetic_us, latency_share, memory_us, spared_by_tensor_cores
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import MIN_FUSED_WEIGHT, MMA_SYNC_RATE, worth
from cudal2_agent.sandbox.diagnosis.counter_rules.spread import FULL_WAVE

_LITTLE_OCCUPANCY = 0.25  # of an SM's threads, to hide latency where loads go through registers
_FEW_WARPS = 8  # of an SM, two for each scheduler, where copies are asynchronous
_HEAVY_SPILL_BYTES = 512
_CLUSTER_FENCES = 2  # ERRBAR of kernels whose clusters exchange sums
_LIMITER_REMEDY = {
    "registers": "use a smaller tile per warp, fewer live fragments, or __launch_bounds__ with a minimum of CTAs",
    "shared-memory": "use fewer stages, a smaller K step, or reuse the pipeline's buffers for the epilogue",
    "threads": "use fewer warps a CTA",
    "ctas": "give each CTA more work",
    "unknown": "set __launch_bounds__",
}
_ROLES = ("HGMMA", "wgmma", "UTC", "tcgen05")
# What helps against each reason that ptxas gives for serialising wgmma, by its words. Source: the messages in NVRTC 13.0.
_SERIALISED = (
    ("reading accumulator", "read accumulators only after the wait of their group: move the wait up, or the read down"),
    ("defining accumulator", "write accumulators only before the first wgmma of a tile; start sums by scale-d 0, not by zeros"),
    ("defining input", "load the registers of A before wgmma.fence, into registers that no wgmma in flight reads"),
    ("register resources", "free registers: a smaller tile per warpgroup, setmaxnreg, no second set of sums or fragments"),
    ("extern calls", "remove calls from the kernel: no printf, no assert (-DNDEBUG), nothing that is not inlined"),
    ("function boundary", "inline the function: fence, wgmma, commit and wait of a block in one __forceinline__ function"),
    ("pipeline stage", "keep fence, wgmma, commit and wait of a block in one straight line, and unroll loops over registers"),
    ("divergent path", "take branches that depend on the thread out from between the fence and the wait"),
)
_ANY_SERIALISED = (
    "touch accumulators only after wgmma.wait_group, keep them in registers indexed by constants, "
    "and keep calls and branches out from between wgmma.fence and the wait"
)
_ASYNCHRONOUS = ("LDGSTS", "UTMALDG", "UBLKCP", "cp")  # of SASS; of PTX


def has_roles(inspection: Inspection) -> bool:
    """Whether tensor-core instructions run asynchronously to the warps that issue them, so that warps have roles."""
    return any(name.startswith(_ROLES) for name in inspection.mma)


def copies_asynchronously(inspection: Inspection) -> bool:
    """Whether copies arrive in shared memory while the warps go on."""
    return any(opcode.startswith(_ASYNCHRONOUS) for opcode in inspection.opcodes)


def code_findings(inspection: Inspection, task: Task, chip: Chip) -> Iterator[Finding]:
    if isinstance(task, ModuleTask) and (not task.flops or task.arithmetic is Arithmetic.F32):
        pass  # tensor cores have nothing to multiply, or nothing that they may
    elif not inspection.mma:
        yield _no_tensor_cores(inspection, task, chip)
    else:
        yield from _legacy_mma(inspection, task, chip)
    for kernel in inspection.kernels:
        yield from _memory_findings(kernel)
        yield from _occupancy(kernel, inspection)
    yield from _warning_findings(inspection)
    if inspection.opcode_source == "sass" and inspection.mma:
        yield from _mix_findings(inspection)


def grid_findings(inspection: Inspection, plan: ResolvedPlan, chip: Chip, time_us: float | None) -> Iterator[Finding]:
    """CTAs against SMs. `time_us`: measured, None where it was not."""
    resident = {(kernel.entry, kernel.threads, kernel.dynamic_smem_bytes): kernel.ctas_per_sm for kernel in inspection.kernels}
    for launch in plan.launches:
        per_sm = resident.get((launch.entry, math.prod(launch.block), launch.dynamic_smem), 0)
        if per_sm:
            yield from _wave_findings(launch, per_sm, chip, time_us)


def _no_tensor_cores(inspection: Inspection, task: Task, chip: Chip) -> Finding:
    fused = inspection.opcodes.get("FFMA", 0) + inspection.opcodes.get("HFMA2", 0)
    return Finding(
        bottleneck="no-tensor-cores",
        evidence="the code has no tensor-core instruction" + (f", but {fused} fused multiply-adds" if fused else ""),
        remedy="compute with mma.sync (sm_80 and up) or wgmma (sm_90a) instead of fused multiply-adds",
        weight=max(MIN_FUSED_WEIGHT, spared_by_tensor_cores(task, chip)),
    )


def _legacy_mma(inspection: Inspection, task: Task, chip: Chip) -> Iterator[Finding]:
    """Weight: what the full tensor rate would save of the minimum time with mma.sync and a launch."""
    rate = MMA_SYNC_RATE.get(task.arch)
    if rate is None or has_roles(inspection):
        return
    others, tensor = memory_us(task, chip), arithmetic_us(task, chip)
    slow, fast = max(others, tensor / rate) + chip.launch_us, max(others, tensor) + chip.launch_us
    yield from worth(
        "legacy-mma",
        1 - fast / slow,
        f"the code multiplies with {inspection.mma[-1]} only, which reaches {rate:.0%} of the chip's tensor rate at most",
        f"multiply with {'wgmma' if task.arch.number == 90 else 'tcgen05'}, fed by TMA",
    )


def _memory_findings(kernel: KernelResources) -> Iterator[Finding]:
    """Weight of spills: by their bytes, since it is unknown whether they are in the main loop."""
    spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
    if spilled:
        yield Finding(
            bottleneck="spills",
            evidence=f"{kernel.entry} spills: {kernel.spill_store_bytes} bytes stored and {kernel.spill_load_bytes} loaded "
            f"a thread, with {kernel.registers} registers",
            remedy="use a smaller tile per warp, more warps, less unrolling, or a higher register bound",
            weight=min(0.8, spilled / _HEAVY_SPILL_BYTES),
        )
    elif kernel.stack_bytes:
        yield Finding(
            bottleneck="local-memory",
            evidence=f"{kernel.entry} keeps {kernel.stack_bytes} bytes a thread in local memory",
            remedy="index register arrays with compile-time constants only: unroll the loops over fragments fully",
            weight=min(0.8, 2 * kernel.stack_bytes / _HEAVY_SPILL_BYTES),
        )


def _occupancy(kernel: KernelResources, inspection: Inspection) -> Iterator[Finding]:
    """Warps with roles hide latency by asynchronous copies alone; with asynchronous copies fewer warps suffice."""
    if not kernel.threads or has_roles(inspection):
        return
    warps = kernel.ctas_per_sm * math.ceil(kernel.threads / 32)
    if warps >= _FEW_WARPS if copies_asynchronously(inspection) else kernel.occupancy >= _LITTLE_OCCUPANCY:
        return
    ctas = f"{kernel.ctas_per_sm} CTA{'s' * (kernel.ctas_per_sm != 1)}"
    yield Finding(
        bottleneck="occupancy",
        evidence=f"{kernel.entry}: {ctas} of {kernel.threads} threads per SM "
        f"({100 * kernel.occupancy:.0f} % of its threads), limited by {kernel.occupancy_limiter.replace('-', ' ')}",
        remedy=_LIMITER_REMEDY.get(kernel.occupancy_limiter, _LIMITER_REMEDY["unknown"]),
        weight=0.2,
    )


def _warning_findings(inspection: Inspection) -> Iterator[Finding]:
    for warning in inspection.warnings:
        if "wgmma" in warning and "serialized" in warning:
            yield Finding(
                bottleneck="wgmma-serialised",
                evidence=warning,
                remedy=_serialised(warning),
                weight=0.6,
            )
        elif "warpgroup.wait is injected" in warning:
            yield Finding(
                bottleneck="wgmma-serialised",
                evidence=warning,
                remedy="wait for the group yourself, at the place from which its registers are used",
                weight=0.1,
            )
        elif "setmaxnreg" in warning:
            yield Finding(
                bottleneck="setmaxnreg-ignored",
                evidence=warning,
                remedy="fix the block with __launch_bounds__, so that ptxas knows the register count at entry",
                weight=0.3,
            )


def _serialised(warning: str) -> str:
    """What helps against the reason that ptxas gives."""
    reason = warning.lower()
    return next((remedy for words, remedy in _SERIALISED if words in reason), _ANY_SERIALISED)


def fence_findings(inspection: Inspection, plan: ResolvedPlan) -> Iterator[Finding]:
    """Many fences for the whole GPU in a kernel that hands nothing to other CTAs through global memory.

    Weight: what they cost in the main loop of 2048x2048x2048 on an H200, 35.8 us with them and 29.0 us without (LOG,
    clusters). Such a kernel has 7 ERRBAR; the right kernels of all families without workspace have 2 at most, for barriers of
    the cluster that hand over sums.
    """
    count = inspection.opcodes.get
    if plan.workspace_bytes or inspection.opcode_source != "sass" or count("ERRBAR", 0) <= _CLUSTER_FENCES:
        return
    yield Finding(
        bottleneck="wide-fences",
        evidence=f"{count('MEMBAR', 0)} MEMBAR, {count('ERRBAR', 0)} ERRBAR and {count('CCTL', 0)} CCTL: fences for the whole "
        "GPU, though the plan has no workspace; in a main loop they took 35.8 us where 29.0 us do (2048x2048x2048, H200)",
        remedy="leave .release.cluster and .acquire.cluster off arrivals and waits that publish no writes of the generic "
        "proxy, and use no __threadfence where a barrier of the CTA or cluster orders enough",
        weight=0.19,
    )


def _mix_findings(inspection: Inspection) -> Iterator[Finding]:
    count = inspection.opcodes.get
    loads, stores = count("LDG", 0) + count("LD", 0), count("STS", 0)
    if loads and stores and not any(count(opcode) for opcode in _ASYNCHRONOUS):
        yield Finding(
            bottleneck="register-staging",
            evidence=f"operands reach shared memory through registers: {loads} global loads, {stores} shared stores, no "
            "cp.async, no TMA",
            remedy="copy with cp.async (16 bytes a thread) or TMA into several stages, so that loads run ahead of the math",
            weight=0.4,
        )
    multiplications, words = count("HMMA", 0), count("LDS", 0)
    if multiplications and words >= multiplications and not count("LDSM"):
        yield Finding(
            bottleneck="narrow-smem-loads",
            evidence=f"{words} shared loads for {multiplications} tensor-core instructions, and no ldmatrix",
            remedy="load fragments with ldmatrix.x4 (trans for the operand stored across), from a swizzled layout",
            weight=0.3,
        )


def _wave_findings(launch: ResolvedLaunch, per_sm: int, chip: Chip, time_us: float | None) -> Iterator[Finding]:
    ctas, slots = math.prod(launch.grid), per_sm * chip.sms
    if ctas < chip.sms:
        latency = latency_share(time_us, chip) if time_us is not None else 0.0
        yield from worth(
            "idle-sms",
            0.9 * (1 - ctas / chip.sms) * (1 - latency),
            f"{launch.entry} launches {ctas} CTAs on {chip.sms} SMs",
            "use smaller output tiles, or split K over several CTAs",
        )
        return
    waves = math.ceil(ctas / slots)
    used = ctas / (waves * slots)
    if waves > 1 and used < FULL_WAVE:
        yield Finding(
            bottleneck="tail-wave",
            evidence=f"{launch.entry}: {ctas} CTAs in slots for {slots} make {waves} waves, {used:.0%} of them in use",
            remedy="choose a tile that divides the output into whole waves, a persistent grid, or stream-K",
            weight=1 - used,
        )
