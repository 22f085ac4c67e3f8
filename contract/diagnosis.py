"""What limits a kernel, on what evidence, and what usually helps."""

from typing import Annotated, Literal

from pydantic import Field

from contract.base import Record

# Names are stable: stored steps hold them and policies map them to moves. Names are added, never changed or taken away.
Bottleneck = Literal[
    # What the work is spread over
    "launch-bound",  # launches take a large share of the time
    "idle-sms",  # fewer CTAs than SMs
    "tail-wave",  # the last wave leaves slots empty
    "imbalance",  # some SMs work longer than others within the waves
    "occupancy",  # too few warps on an SM to hide latency
    "prologue-bound",  # K is short against the time to fill the pipeline
    "epilogue-bound",  # storing D is a large share of the time and nothing hides it
    # Why the tensor pipe is idle
    "no-tensor-cores",  # the math is done by fused multiply-adds
    "legacy-mma",  # mma.sync where the chip's full rate belongs to a newer instruction
    "memory-latency",  # warps wait for operands from gmem or L2 while bandwidth has room
    "few-bytes-in-flight",  # work bound by DRAM that does not ask for enough at once
    "barrier-waits",  # warps wait for each other
    "smem-instructions",  # the queue of shared-memory instructions is full, or its answers are waited for
    "dependency-waits",  # warps wait for their own last instructions
    "wgmma-waits",  # warpgroups wait for their own wgmma while the tensor pipe has room
    "wgmma-serialised",  # ptxas put a wait after every wgmma
    "instruction-bound",  # issue slots are full of instructions that are no tensor-core instructions
    # What is moved
    "dram-bound",
    "l2-bound",
    "smem-bound",
    "bank-conflicts",
    "uncoalesced",  # global accesses touch more sectors than they use
    "redundant-traffic",  # operands reach the SMs more often than the tiles need
    "reduction-traffic",  # partial sums are written and read again
    "register-staging",  # operands reach shared memory through registers
    "narrow-smem-loads",  # fragments are loaded word by word rather than by ldmatrix
    # What the compiler did
    "spills",
    "local-memory",
    "setmaxnreg-ignored",
    # How far it is from what the chip allows
    "tensor-bound",  # the tensor pipe is nearly full: little is left to win
    "far-from-roofline-memory",
    "far-from-roofline-arithmetic",
]


class Finding(Record):
    """One bottleneck. `weight`: the share of the candidate's time that could be won at most, estimated; it ranks findings."""

    bottleneck: Bottleneck
    evidence: str
    remedy: str
    weight: Annotated[float, Field(ge=0, le=1)]


class Diagnosis(Record):
    """Findings, heaviest first. `basis`: static (inspection and plan), timed (with measured times), or counters (ncu)."""

    basis: Literal["static", "timed", "counters"]
    findings: tuple[Finding, ...]
    roofline_fraction: float | None = None
