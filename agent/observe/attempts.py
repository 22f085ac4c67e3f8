"""A step in short, as a policy sees it: what was tried, how it differs from its parent, and what came of it. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, ScheduleValue
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import Attempt, AttemptResources, Step
from cudal2_agent.contract.reward.reward import confirmed
from cudal2_agent.contract.reward.speedup import speedup_that_counts

AXES = 8  # of a schedule that are named where they differ
_COMPILERS_REASON = re.compile(r"Potential Performance Loss: .*?\bdue to (.*?)(?: in the function .*)?$")  # of ptxas


def outcome_of(candidate: AnyCandidate, evaluation: Evaluation) -> Attempt:
    """A candidate with what came of it, which is all that a search over schedules reads."""
    return Attempt(
        candidate_id=candidate.id,
        policy=candidate.origin.policy,
        schedule=candidate.origin.schedule,
        status=evaluation.status,
        message=evaluation.fault,
        time_us=evaluation.time_us,
        predicted_us=evaluation.predicted_us,
        is_floor=evaluation.prediction.is_floor if isinstance(evaluation, Unmeasured) else None,
        speedup=speedup_that_counts(evaluation),
    )


def attempt_of(step: Step) -> Attempt:
    """A step in short. Its seconds are the cost of its policy's choice.

    Profiling and the second witness follow a success; their time is left out.
    """
    evaluation = step.evaluation
    paid = [seconds for stage, seconds in step.seconds.items() if stage not in ("profile", "witness")]
    of_step = {
        "reward": step.reward,
        "seconds": sum(paid) if paid else None,
        "unproved": isinstance(evaluation, Measured) and _unproved(evaluation, step),
    }
    return outcome_of(step.candidate, evaluation).model_copy(update=of_step)


def described(attempt: Attempt, step: Step, task: Task, chip: Chip, parent: AnyCandidate | None) -> Attempt:
    """An attempt with what a model needs to go on from it. `parent`: the candidate whose source its author started from."""
    evaluation, origin = step.evaluation, step.candidate.origin
    described = {
        "verdict": _verdict(evaluation),
        "idea": origin.note,
        "parent": origin.parents[0] if origin.parents else None,
        "change": change_of(step.candidate, parent) if parent else "",
        "resources": _resources(step, task, chip),
        "profiled_us": _profiled_us(step),
        "limit": _limit(step),
        **_explained(evaluation),
    }
    return attempt.model_copy(update=described)


def _explained(evaluation: Evaluation) -> dict[str, object]:
    """What the timing model says of a candidate's time."""
    match evaluation:
        case Unmeasured(prediction=prediction) | Measured(modelled=Prediction() as prediction):
            explained = {"terms": dict(prediction.largest_terms), "launches": prediction.launches}
            return {
                **explained,
                "explained_us": prediction.correction * prediction.replayed_us if prediction.launches else None,
            }
        case _:
            return {}


def _profiled_us(step: Step) -> tuple[float, ...]:
    """The duration of each launch under the profiler; empty where one was not counted."""
    launches = step.profile.launches if step.profile else ()
    counted = [launch.metrics["duration_ns"] / 1000 for launch in launches if "duration_ns" in launch.metrics]
    return tuple(counted) if len(counted) == len(launches) else ()


def _limit(step: Step) -> str:
    """Its heaviest finding, with the compiler's reason where it is the compiler's."""
    findings = step.diagnosis.findings if step.diagnosis else ()
    if not findings:
        return ""
    reason = _COMPILERS_REASON.search(findings[0].evidence)
    return f"{findings[0].bottleneck} up to {findings[0].weight:.0%}" + (f" ({reason[1]})" if reason else "")


def change_of(candidate: AnyCandidate, parent: AnyCandidate) -> str:
    """How a candidate differs from its parent: the axes of their schedules, else the number of lines."""
    own, theirs = candidate.origin.schedule, parent.origin.schedule
    return _axes(own, theirs) if own and theirs else _lines(candidate.source, parent.source)


def _axes(own: Mapping[str, ScheduleValue], theirs: Mapping[str, ScheduleValue]) -> str:
    names = [name for name in {**theirs, **own} if own.get(name) != theirs.get(name)]
    said = [f"{name} {theirs.get(name, 'unset')} to {own.get(name, 'unset')}" for name in names[:AXES]]
    return ", ".join([*said, *([f"{len(names) - AXES} more axes"] if len(names) > AXES else [])])


def _lines(source: str, before: str) -> str:
    """Lines that only one of the two holds. White space at the ends of a line and the order of lines do not count."""
    own, theirs = (Counter(line.strip() for line in text.splitlines() if line.strip()) for text in (source, before))
    return f"+{(own - theirs).total()} -{(theirs - own).total()} of {theirs.total()} lines"


def _verdict(evaluation: Evaluation) -> str:
    """What is known of the results of a candidate without a fault."""
    match evaluation:
        case Unmeasured():
            return evaluation.headline
        case Measured(witness=witness) if witness is not None and witness.confirms:
            return f"verified by a GPU, and by the emulator{' in part' if witness.status == 'in-part' else ''}"
        case Measured():
            return "verified by a GPU"
        case _:
            return ""


def _resources(step: Step, task: Task, chip: Chip) -> AttemptResources | None:
    inspection = step.evaluation.inspection
    kernels = inspection.kernels if inspection else ()
    if not kernels:
        return None
    return AttemptResources(
        registers=max(kernel.registers for kernel in kernels),
        spilled_bytes=max(kernel.spill_store_bytes + kernel.spill_load_bytes for kernel in kernels),
        smem_bytes=max(kernel.static_smem_bytes + kernel.dynamic_smem_bytes for kernel in kernels),
        threads=max(kernel.threads for kernel in kernels),
        ctas=max(_grids(step.candidate, task, chip), default=None),
        ctas_per_sm=min(kernel.ctas_per_sm for kernel in kernels),
    )


def _grids(candidate: AnyCandidate, task: Task, chip: Chip) -> Sequence[int]:
    """CTAs of each launch; none for a host candidate, and for a plan of a record that this version would refuse."""
    if not isinstance(candidate, Candidate):
        return ()
    try:
        launches = resolve(candidate.plan, task, LIMITS[task.arch], chip.sms).launches
    except PlanError:
        return ()
    return [prod(launch.grid) for launch in launches]


def _unproved(measured: Measured, step: Step) -> bool:
    """Whether the step waits for a second witness. Steps of versions without one have a reward and keep it."""
    asked = measured.witness is not None or step.reward is not None
    return not asked and not confirmed(measured, step.candidate.origin)
