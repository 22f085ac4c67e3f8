"""Findings from counters: every rule on every launch, and their combination.

Covered: what the counters of `metrics.toml` show.
Not covered: which line of the code waits; what happens within the launch over time; the overlap of programmatic launches,
since the profiler runs launches one by one; caches that are warm from preceding work.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.inspection import KernelResources
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.reward.roofline import spared_by_tensor_cores
from cudal2_agent.sandbox.diagnosis.counter_rules import instructions, spread, stalls, throughput, traffic
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import MIN_FUSED_WEIGHT, MIN_WEIGHT, CountedLaunch

_CAUSES: dict[Bottleneck, tuple[Bottleneck, ...]] = {
    "l2-bound": ("redundant-traffic", "reduction-traffic", "spills", "uncoalesced"),
    "smem-bound": ("bank-conflicts",),
}

RULES = (*spread.RULES, *stalls.RULES, *throughput.RULES, *traffic.RULES, *instructions.RULES)


@dataclass(frozen=True)
class Verdict:
    """`judged`: bottlenecks that the counters decided about, including those that they found absent."""

    findings: tuple[Finding, ...]
    judged: frozenset[Bottleneck]


def judge(
    profile: Profile,
    task: Task,
    chip: Chip,
    time_us: float | None,
    *,
    has_roles: bool,
    has_mma: bool = True,
    landing: Mapping[str, KernelResources] = MappingProxyType({}),
) -> Verdict:
    """Findings from counters. `time_us`: measured; None where it was not. `has_roles`: whether warps of the code have roles;
    `has_mma`: whether it has tensor-core instructions at all. `landing`: its kernels by entry, where it copies asynchronously.

    A launch that executes no wgmma by its counters, such as a reduction of partial sums, has no roles.
    """
    whole_us = time_us if time_us is not None else _duration_us(profile)
    launches = [
        CountedLaunch(
            launch,
            task,
            chip,
            share,
            whole_us,
            has_roles=has_roles and launch.metrics.get("wgmma_instructions") != 0,
            has_mma=has_mma,
            landing_bytes=_landing_bytes(launch, landing.get(launch.entry), chip),
        )
        for launch, share in zip(profile.launches, shares(profile.launches), strict=True)
    ]
    judged: set[Bottleneck] = set()
    found: list[Finding] = []
    for counted in launches:
        of_launch: list[Finding] = []
        for rule in RULES:
            if counted.has(*rule.needs):
                judged.update(rule.judges)
                of_launch.extend(rule.find(counted))
        found.extend(_scaled(finding, counted.share) for finding in _beyond_causes(of_launch))
    found.extend(_reducing(launches))
    if has_mma and any(counted.has("tensor_instructions") for counted in launches):
        judged.add("no-tensor-cores")
        found.extend(_no_tensor_cores(launches))
    return Verdict(findings=merged(found), judged=frozenset(judged))


def _landing_bytes(launch: LaunchProfile, kernel: KernelResources | None, chip: Chip) -> float:
    """Shared memory of the CTAs that an SM holds, on average where they are fewer than fit."""
    if kernel is None:
        return 0.0
    resident = min(kernel.ctas_per_sm, math.prod(launch.grid) / chip.sms)
    return resident * (kernel.static_smem_bytes + kernel.dynamic_smem_bytes)


def _beyond_causes(found: Sequence[Finding]) -> Iterator[Finding]:
    """A full resource keeps only the weight that findings on its causes leave; the causes tell the author what to change."""
    weights = {finding.bottleneck: finding.weight for finding in found}
    for finding in found:
        explained = max((weights.get(cause, 0.0) for cause in _CAUSES.get(finding.bottleneck, ())), default=0.0)
        left = finding.weight - explained
        if not explained or left >= MIN_WEIGHT:
            yield finding.model_copy(update={"weight": left})


def shares(launches: Sequence[LaunchProfile]) -> list[float]:
    """Each launch's share of the candidate's time under the profiler; equal ones where a duration is missing."""
    durations = [launch.metrics.get("duration_ns", math.nan) for launch in launches]
    if not all(math.isfinite(duration) and duration > 0 for duration in durations):
        return [1 / len(launches)] * len(launches)
    whole = math.fsum(durations)
    return [duration / whole for duration in durations]


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding per bottleneck, heaviest first. Weights of several launches add up; the heaviest one's remedy is kept."""
    by_name: dict[Bottleneck, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.weight):
        by_name.setdefault(finding.bottleneck, []).append(finding)
    one_each = (_joined(same) for same in by_name.values())
    return tuple(sorted(one_each, key=lambda finding: -finding.weight))


def _joined(same: Sequence[Finding]) -> Finding:
    evidence = "; ".join(dict.fromkeys(finding.evidence for finding in same))
    weight = min(1.0, math.fsum(finding.weight for finding in same))
    return same[0].model_copy(update={"evidence": evidence, "weight": weight})


def _scaled(finding: Finding, share: float) -> Finding:
    return finding.model_copy(update={"weight": finding.weight * share})


def _reducing(launches: Sequence[CountedLaunch]) -> Iterator[Finding]:
    """A launch without tensor-core work beside launches with it. Weight: its share of the time."""
    if not any(counted.multiplies for counted in launches):
        return
    for counted in launches:
        if counted.has("tensor_instructions") and not counted.multiplies and counted.share >= MIN_WEIGHT:
            yield Finding(
                bottleneck="reduction-traffic",
                evidence=f"{counted.launch.entry} multiplies nothing and takes {counted.share:.0%} of the profiled time",
                remedy="sum in the multiplying kernel: by the last CTA of a tile, in a cluster, or without splitting K",
                weight=counted.share,
            )


def _no_tensor_cores(launches: Sequence[CountedLaunch]) -> Iterator[Finding]:
    if any(counted.multiplies or not counted.has("tensor_instructions") for counted in launches):
        return
    instructions_executed = sum(counted.total("instructions") for counted in launches)
    yield Finding(
        bottleneck="no-tensor-cores",
        evidence=f"none of {instructions_executed:,.0f} executed instructions is a tensor-core instruction",
        remedy="compute with mma.sync (sm_80 and up) or wgmma (sm_90a) instead of fused multiply-adds",
        weight=max(MIN_FUSED_WEIGHT, spared_by_tensor_cores(launches[0].task, launches[0].chip)),
    )


def _duration_us(profile: Profile) -> float:
    """Time under the profiler; zero where it was not counted."""
    durations = (launch.metrics.get("duration_ns", 0.0) for launch in profile.launches)
    return sum(duration for duration in durations if math.isfinite(duration) and duration > 0) / 1000
