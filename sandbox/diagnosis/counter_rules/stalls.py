"""Rules on what warps wait for while no resource is full.

A wait weighs the idle share of time, as the highest utilisation leaves it, times the wait's share of all waiting. A wait
that something else hides weighs nothing, whatever its own figure.
"""

from collections.abc import Iterator

from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.contract.reward.roofline import arithmetic_us, memory_us
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import CountedLaunch, Rule, worth

FIRST_TRIP_CYCLES = 1500  # measured on an H200: 0.9 us to L2 while all SMs load, at 1.7 GHz (log/)
FIRST_TRIP_US = 0.9
FULL_DRAM = 0.6
AMPLE = 2.0  # times the bytes that DRAM's rate needs on the way, from which on more of them are not what lacks


def memory(counted: CountedLaunch) -> Iterator[Finding]:
    """Waits for gmem and L2. A CTA's first round trip is its prologue; the others recur in the main loop."""
    weight = counted.idle * counted.stalls().get("memory", 0.0)
    cycles = counted.cycles_per_cta()
    first = min(1.0, FIRST_TRIP_CYCLES / (weight * cycles)) if cycles and weight > 0 else 0.0
    evidence = f"{_idle(counted)}, and {_share(counted, 'memory')} of its warps' waits are for gmem or L2"
    if first:
        yield from worth(
            "prologue-bound",
            weight * first,
            f"{evidence}; a CTA runs {cycles:,.0f} cycles, of which the first trip to memory takes about {FIRST_TRIP_CYCLES:,}",
            "begin the loads earlier: programmatic launch with set-up and a prefetch of tensor maps before the wait, "
            "persistent CTAs that load the next tile while they finish one, or two CTAs an SM",
        )
    yield from _in_the_loop(counted, weight * (1 - first), evidence)


def _in_the_loop(counted: CountedLaunch, weight: float, evidence: str) -> Iterator[Finding]:
    dram = counted.busy().get("dram")
    if (
        dram is not None
        and dram < FULL_DRAM
        and memory_us(counted.task, counted.chip) > arithmetic_us(counted.task, counted.chip)
    ):
        needed = counted.chip.dram_tbps * 1e12 * FIRST_TRIP_US * 1e-6 / counted.chip.sms
        evidence += (
            f"; the task is bound by memory, but DRAM is {dram:.0%} busy: each SM needs {needed / 1024:.0f} KiB on the way"
        )
        if counted.landing_bytes >= AMPLE * needed:
            yield from worth(
                "memory-latency",
                weight,
                f"{evidence}, and asynchronous copies have {counted.landing_bytes / 1024:.0f} KiB of shared memory to land in",
                "more stages bring nothing. Start the loads earlier and end together: as much work on each SM, all of them at "
                "work; fewer exchanges behind the loop; long rows of DRAM; see that the producer waits for nothing else",
            )
            return
        yield from worth(
            "few-bytes-in-flight",
            weight,
            evidence,
            "keep more bytes in flight: more stages, a deeper K step, TMA, wider loads, more CTAs over K",
        )
        return
    yield from worth(
        "memory-latency",
        weight,
        evidence,
        "cover the trip: more stages, a deeper K step, cp.async or TMA instead of loads through registers, multicast",
    )


def barrier(counted: CountedLaunch) -> Iterator[Finding]:
    yield from worth(
        "barrier-waits",
        counted.idle * counted.stalls().get("barrier", 0.0),
        f"{_idle(counted)}, and {_share(counted, 'barrier')} of its warps' waits are at barriers and fences",
        "synchronise less often: more stages and a deeper K step between barriers, named barriers or mbarriers for the warps "
        "concerned only, warps with roles, fences of the narrowest scope",
    )


def smem(counted: CountedLaunch) -> Iterator[Finding]:
    yield from worth(
        "smem-instructions",
        counted.idle * counted.stalls().get("smem", 0.0),
        f"{_idle(counted)}, and {_share(counted, 'smem')} of its warps' waits are for shared memory's answers or its queue",
        "use fewer, wider shared-memory instructions: ldmatrix.x4, 16-byte accesses, swizzled layouts, larger tiles per warp, "
        "fragments loaded one K step ahead, wgmma that reads shared memory itself",
    )


def dependency(counted: CountedLaunch) -> Iterator[Finding]:
    warps = counted.get("active_warps")
    yield from worth(
        "dependency-waits",
        counted.idle * counted.stalls().get("dependency", 0.0),
        f"{_idle(counted)}, and {_share(counted, 'dependency')} of its warps' waits are for their own last instructions"
        + (f", with {warps:.1f} warps a scheduler" if warps is not None else ""),
        "give each scheduler more independent work: more warps an SM, more independent fragments a warp, unrolled loops",
    )


def wgmma(counted: CountedLaunch) -> Iterator[Finding]:
    yield from worth(
        "wgmma-waits",
        counted.idle * counted.stalls().get("wgmma", 0.0),
        f"{_idle(counted)}, and {_share(counted, 'wgmma')} of its warps' waits are for wgmma",
        "keep two wgmma groups in flight (wait_group 1 instead of 0), use a second consumer warpgroup, or a wider instruction",
    )


def _idle(counted: CountedLaunch) -> str:
    full = counted.busy()
    resource = max(full, key=lambda name: full[name])
    name = {"tensor": "the tensor pipe", "dram": "DRAM", "l2": "L2", "smem": "shared memory"}[resource]
    at = "" if resource == "tensor" or "tensor" not in full else f" (the tensor pipe {full['tensor']:.0%})"
    return f"{counted.launch.entry}: {name} is the fullest resource, {full[resource]:.0%} busy{at}"


def _share(counted: CountedLaunch, group: str) -> str:
    return f"{counted.stalls().get(group, 0.0):.0%}"


RULES = (
    Rule(
        judges=("memory-latency", "few-bytes-in-flight", "prologue-bound"),
        needs=("tensor_pct", "stall_long_scoreboard"),
        find=memory,
    ),
    Rule(judges=("barrier-waits",), needs=("tensor_pct", "stall_barrier"), find=barrier),
    Rule(judges=("smem-instructions",), needs=("tensor_pct", "stall_short_scoreboard", "stall_mio_throttle"), find=smem),
    Rule(judges=("dependency-waits",), needs=("tensor_pct", "stall_wait"), find=dependency),
    Rule(judges=("wgmma-waits",), needs=("tensor_pct", "stall_wgmma"), find=wgmma),
)
