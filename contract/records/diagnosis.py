"""A diagnosis: the bottlenecks of a kernel, the evidence for each, and the usual remedy."""

from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record

# Stored steps contain these names and policies map them to moves. So names are added, never renamed or removed.
Bottleneck = Literal[
    # Distribution of the work
    "launch-bound",  # launch overhead is a large share of the time
    "idle-sms",  # fewer CTAs than SMs
    "tail-wave",  # the last wave leaves SMs idle
    "imbalance",  # some SMs work longer than others within a wave
    "occupancy",  # too few resident warps per SM to hide latency
    "prologue-bound",  # K is short compared with the time to fill the pipeline
    "epilogue-bound",  # storing D is a large share of the time and no other work overlaps it
    # Causes of an idle tensor pipe
    "no-tensor-cores",  # the products are computed by fused multiply-adds
    "legacy-mma",  # mma.sync on a chip whose full rate needs a newer instruction
    "memory-latency",  # warps wait for operands from global memory or L2 although bandwidth is left
    "few-bytes-in-flight",  # DRAM-bound work with too few outstanding loads
    "barrier-waits",  # warps wait for each other at barriers
    "smem-instructions",  # warps wait for the shared-memory instruction queue or its results
    "dependency-waits",  # warps wait for the results of their own instructions
    "wgmma-waits",  # warpgroups wait for their own wgmma although the tensor pipe is not saturated
    "wgmma-serialised",  # ptxas inserted a wait after every wgmma
    "wide-fences",  # fences for the whole GPU where a narrower scope is enough
    "instruction-bound",  # instructions other than tensor-core instructions fill the issue slots
    # Memory traffic
    "dram-bound",
    "l2-bound",
    "smem-bound",
    "bank-conflicts",
    "uncoalesced",  # global accesses transfer more sectors than they use
    "redundant-traffic",  # operands are transferred to the SMs more often than the tiles need
    "reduction-traffic",  # partial sums are written to memory and read back
    "register-staging",  # operands are copied to shared memory through registers
    "narrow-smem-loads",  # fragments are loaded word by word instead of by ldmatrix
    # Compiler effects
    "spills",
    "local-memory",
    "setmaxnreg-ignored",
    # Distance from the limits of the chip
    "tensor-bound",  # the tensor pipe is close to its maximum throughput
    "far-from-roofline-memory",
    "far-from-roofline-arithmetic",
]


class Finding(Record):
    """One bottleneck. `weight`: the estimated maximum share of the time that its removal would save; it ranks findings."""

    bottleneck: Bottleneck
    evidence: str
    remedy: str
    weight: Annotated[float, Field(ge=0, le=1)]


class Diagnosis(Record):
    """Findings in order of decreasing weight.

    `basis`: `static` (inspection and plan), `timed` (measured times as well) or `counters` (Nsight Compute as well).
    """

    basis: Literal["static", "timed", "counters"]
    findings: tuple[Finding, ...]
    roofline_fraction: float | None = None
