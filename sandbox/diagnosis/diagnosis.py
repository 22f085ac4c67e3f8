"""Diagnosis: what limits a kernel, from inspection, plan, measured time and, where present, counters.

Where counters decide about a bottleneck, they replace the estimate made without them.
"""

import statistics
from collections.abc import Iterator, Sequence

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.diagnosis import Bottleneck, Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.reward.roofline import arithmetic_us, is_latency, memory_us, roofline_us
from cudal2_agent.sandbox.diagnosis.findings import judge, merged
from cudal2_agent.sandbox.diagnosis.static_rules import (
    code_findings,
    copies_asynchronously,
    fence_findings,
    grid_findings,
    has_roles,
)

_NEAR_ROOFLINE = 0.8
_EXPLAINED = 0.1  # a finding from counters of this weight explains the distance from the roofline
_BY_MEMORY, _BY_ARITHMETIC = "memory", "arithmetic"
_FAR_REMEDY = {
    _BY_MEMORY: "keep more bytes in flight: wider loads, TMA, more stages, and raster order that shares operands in L2",
    _BY_ARITHMETIC: "feed the tensor cores: larger tiles, deeper pipeline, warp specialisation, operands multicast",
}


def diagnose_built(built: Built, task: Task, chip: Chip, evaluation: Evaluation, profile: Profile | None = None) -> Diagnosis:
    """`diagnose` of a built candidate and its evaluation. A host candidate launches by itself and has no plan."""
    measured = evaluation if isinstance(evaluation, Measured) else None
    found = diagnose(built.inspection, built.plan_for(task, chip.sms), task, chip, measured, profile)
    modelled = predicted_findings(evaluation.prediction) if isinstance(evaluation, Unmeasured) else ()
    return found.model_copy(update={"findings": merged([*found.findings, *modelled])})


def diagnose(
    inspection: Inspection,
    plan: ResolvedPlan | None,
    task: Task,
    chip: Chip,
    measured: Measured | None = None,
    profile: Profile | None = None,
) -> Diagnosis:
    """Findings, heaviest first, one per bottleneck. `plan` is None for a host candidate, whose launches are unknown."""
    time_us = statistics.median(measured.timing.samples_us) if measured else None
    estimated = [*code_findings(inspection, task, chip)]
    if plan is not None:
        estimated += [*grid_findings(inspection, plan, chip, time_us), *fence_findings(inspection, plan)]
    if time_us is not None:
        estimated += _time_findings(time_us, plan, task, chip)
    fraction = roofline_us(task, chip) / time_us if time_us is not None else None
    if profile is None or not any(launch.metrics for launch in profile.launches):
        basis = "static" if time_us is None else "timed"
        return Diagnosis(basis=basis, findings=merged(estimated), roofline_fraction=fraction)
    landing = {kernel.entry: kernel for kernel in inspection.kernels} if copies_asynchronously(inspection) else {}
    verdict = judge(
        profile, task, chip, time_us, has_roles=has_roles(inspection), has_mma=bool(inspection.mma), landing=landing
    )
    unjudged = [finding for finding in estimated if finding.bottleneck not in verdict.judged]
    findings = merged([*verdict.findings, *_unexplained(unjudged, verdict.findings)])
    return Diagnosis(basis="counters", findings=findings, roofline_fraction=fraction)


def _unexplained(estimated: Sequence[Finding], counted: Sequence[Finding]) -> Iterator[Finding]:
    """Estimated findings; the distance from the roofline is left out where counters explain it."""
    explained = any(finding.weight >= _EXPLAINED for finding in counted)
    yield from (one for one in estimated if not (explained and one.bottleneck.startswith("far-from-roofline")))


def _time_findings(time_us: float, plan: ResolvedPlan | None, task: Task, chip: Chip) -> Iterator[Finding]:
    yield from _launch_finding(time_us, plan, chip)
    work_us, fraction = (
        max(memory_us(task, chip), arithmetic_us(task, chip)),
        roofline_us(task, chip) / time_us,
    )
    if fraction < _NEAR_ROOFLINE and work_us > chip.launch_us:
        by_memory = memory_us(task, chip) > arithmetic_us(task, chip)
        bound = _BY_MEMORY if by_memory else _BY_ARITHMETIC
        yield Finding(
            bottleneck="far-from-roofline-memory" if by_memory else "far-from-roofline-arithmetic",
            evidence=f"{time_us:.2f} µs is {fraction:.0%} of what {chip.name} allows ({bound}: {work_us:.2f} µs, "
            f"launch {chip.launch_us} µs)",
            remedy=_FAR_REMEDY[bound],
            weight=0.6 * (1 - fraction),
        )


def _launch_finding(time_us: float, plan: ResolvedPlan | None, chip: Chip) -> Iterator[Finding]:
    """Weight: the launches' share of the time; half of it where each may begin before the preceding one ends."""
    launches = len(plan.launches) if plan else 1
    if not is_latency(time_us, launches, chip):
        return
    overlapped = plan is not None and all(launch.programmatic for launch in plan.launches)
    yield Finding(
        bottleneck="launch-bound",
        evidence=f"{time_us:.2f} µs for {launches} launches of {chip.launch_us} µs each"
        + (", programmatic ones already" if overlapped else ""),
        remedy="shorten the prologue and the epilogue, use one launch, use programmatic launch (sm_90 and up), "
        "and use more CTAs for less work each",
        weight=min(1.0, launches * chip.launch_us / time_us) * (0.5 if overlapped else 1.0),
    )


# Findings from a predicted time: which resource alone would take most of it, and which parts of it no product fills.
#
# Covered: kernels without a measured time whose prediction has terms, and parts.
_BOUND = 0.6  # share of the prediction from which a term is reported
_LONG = 0.1  # share of it from which a part is
_PARTS: dict[str, tuple[tuple[str, ...], Bottleneck, str]] = {
    "launch": (("launch",), "launch-bound", "use programmatic launch, fewer launches, fewer CTAs"),
    "before the first product": (
        ("prologue", "fill"),
        "prologue-bound",
        "start every copy at once behind the wait for preceding kernels, smaller first stages, a shorter prologue",
    ),
    "exchange of partial sums after the last product": (
        ("exchange",),
        "reduction-traffic",
        "push sums as they are ready, fewer parts of K, a share of the sum for every CTA",
    ),
    "tail, from there until the last store is visible": (
        ("tail",),
        "epilogue-bound",
        "store as results come, whole lines, and overlap the stores with the next tile",
    ),
}
_RULES: dict[str, tuple[Bottleneck, str]] = {
    "tensor cores": ("tensor-bound", "the tensor cores are the limit; only fewer waves or a smaller tail make it faster"),
    "shared memory": ("smem-bound", "use larger tiles per warpgroup, keep A in registers, or share B between warpgroups"),
    "loads from L2": ("l2-bound", "load less per product: larger tiles, multicast in clusters, a raster that shares operands"),
    "DRAM": ("dram-bound", "move every operand once: a raster that reuses L2, streaming stores"),
    "stores": ("epilogue-bound", "store whole lines through shared memory, and overlap them with the next tile"),
    "issue": ("instruction-bound", "fewer instructions per product: unroll, hoist addresses, use bulk copies"),
    "bulk copies": ("redundant-traffic", "copy wider rows: each row of a box costs the copy engine the same"),
}


def predicted_findings(prediction: Prediction) -> Iterator[Finding]:
    """Weight: of the resource that bounds, what it needs more than the next one; of a part, its share of the prediction."""
    if prediction.predicted_us <= 0:
        return
    yield from _bounding(prediction)
    for said, (names, bottleneck, remedy) in _PARTS.items():
        yield from _long_part(prediction, said, _sum_of(prediction, names), bottleneck, remedy)
    yield from _long_part(
        prediction,
        "waits in the main loop that no resource explains",
        sum(
            max(launch.parts.get("main loop", 0.0) - max(launch.terms.values(), default=0.0), 0.0)
            for launch in prediction.launches
        ),
        "dependency-waits",
        "keep more copies in flight, more stages, more warps or CTAs that multiply while others wait",
    )


def _bounding(prediction: Prediction) -> Iterator[Finding]:
    """The resource whose time alone is most of the prediction, with the next one: less of one helps as far as that."""
    named = sorted(((name, time_us) for name, time_us in prediction.terms.items() if name in _RULES), key=lambda term: -term[1])
    (name, most_us), (next_name, next_us) = [*named, ("", 0.0), ("", 0.0)][:2]
    if most_us < _BOUND * prediction.predicted_us:
        return
    bottleneck, remedy = _RULES[name]
    beside = f"; {next_name} next, {next_us:.2f} us" if next_name else ""
    yield Finding(
        bottleneck=bottleneck,
        evidence=f"{name} alone: {most_us:.2f} us of {prediction.predicted_us:.2f} us predicted (not measured){beside}",
        remedy=remedy,
        weight=min((most_us - next_us) / prediction.predicted_us, 1.0),
    )


def _sum_of(prediction: Prediction, parts: Sequence[str]) -> float:
    return sum(launch.parts.get(name, 0.0) for launch in prediction.launches for name in parts)


def _long_part(prediction: Prediction, said: str, part_us: float, bottleneck: Bottleneck, remedy: str) -> Iterator[Finding]:
    replayed_us = prediction.replayed_us
    if part_us > 0.0 and part_us >= _LONG * replayed_us:
        yield Finding(
            bottleneck=bottleneck,
            evidence=f"{said}: {part_us:.2f} us of {replayed_us:.2f} us replayed (predicted, not measured)",
            remedy=remedy,
            weight=min(part_us / replayed_us, 1.0),
        )
