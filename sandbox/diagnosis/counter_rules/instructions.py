"""Rules on issued instructions and the warps that issue them: occupancy, spilled registers, instructions besides the MMAs."""

from collections.abc import Iterator

from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import CountedLaunch, Rule, worth

ENOUGH_WARPS = 4.0  # a scheduler, to hide the latency of synchronous instructions
FULL_ISSUE = 0.6
MANY_LOCAL = 0.01
_LIMITS = {
    "limit_registers": ("registers", "use a smaller tile per warp, fewer live fragments, or a lower register bound"),
    "limit_smem": ("shared memory", "use fewer stages or a smaller K step, or reuse the pipeline's memory in the epilogue"),
    "limit_warps": ("warp slots", "use fewer warps a CTA"),
    "limit_ctas": ("CTA slots", "give each CTA more warps"),
}


def occupancy(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: the idle share of time, times latency's share of the waiting, times the share of warps missing to hide it.

    Kernels whose warps have roles hide latency by asynchronous copies. A grid of less than a wave has no CTAs to add.
    """
    warps = counted.get("active_warps") or 0.0
    if counted.has_roles or warps >= ENOUGH_WARPS or (counted.get("waves") or 0.0) <= 1:
        return
    stalls = counted.stalls()
    latency = sum(stalls.get(group, 0.0) for group in ("memory", "smem", "dependency"))
    limits = {name: value for name in _LIMITS if (value := counted.get(name)) is not None}
    limiter, remedy = _LIMITS[min(limits, key=lambda name: limits[name])] if limits else ("unknown", "set __launch_bounds__")
    yield from worth(
        "occupancy",
        counted.idle * latency * (1 - warps / ENOUGH_WARPS),
        f"{counted.launch.entry}: {warps:.1f} warps per scheduler, limited by {limiter}, and {latency:.0%} of "
        "their waits are latency",
        remedy,
    )


def spills(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: twice their share of the instructions, since each load is also waited for."""
    local, instructions = counted.total("local_load_instructions", "local_store_instructions"), counted.total("instructions")
    if not instructions or local < MANY_LOCAL * instructions:
        return
    share = min(1.0, local / instructions)
    yield Finding(
        bottleneck="spills",
        evidence=f"{counted.launch.entry}: {local:,.0f} of {instructions:,.0f} instructions ({share:.1%}) access local memory",
        remedy="use a smaller tile per warp, more warps, less unrolling, or a higher register bound; index register arrays "
        "with compile-time constants only",
        weight=min(1.0, 2 * share),
    )


def issue(counted: CountedLaunch) -> Iterator[Finding]:
    """Weight: utilisation of the issue slots minus that of any resource."""
    issued = min(1.0, counted.total("issue_pct") / 100)
    others = counted.total("instructions") - counted.total("tensor_instructions")
    if issued < FULL_ISSUE:
        return
    yield from worth(
        "instruction-bound",
        issued - (1 - counted.idle),
        f"{counted.launch.entry}: {issued:.0%} of the issue slots are used, {others:,.0f} of "
        f"{counted.total('instructions'):,.0f} instructions are no tensor-core instructions",
        "move address arithmetic out of the main loop: unroll it, constant shapes and strides, wider accesses, TMA; let each "
        "tensor-core instruction do more",
    )


RULES = (
    Rule(judges=("occupancy",), needs=("tensor_pct", "active_warps", "waves", "stall_long_scoreboard"), find=occupancy),
    Rule(
        judges=("spills", "local-memory"),
        needs=("local_load_instructions", "local_store_instructions", "instructions"),
        find=spills,
    ),
    Rule(judges=("instruction-bound",), needs=("issue_pct", "instructions", "tensor_pct"), find=issue),
)
