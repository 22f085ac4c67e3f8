"""The predicted time of a candidate that cannot be timed: by the schedule behind it, else by the roofline."""

from dataclasses import replace

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import NOT_FITTED, Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import read_entry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, PriorOf


def predict(
    candidate: AnyCandidate, task: GemmTask, inspection: Inspection, prior_of: PriorOf = lambda *_: ANALYTIC
) -> Prediction:
    """Predicted time on the reference chip of the task's arch: by the schedule behind the source, else by the roofline.

    The occupancy that the compiler reports replaces the schedule's estimate.
    """
    chip = REFERENCE_CHIPS[task.arch]
    floor = roofline_us(task, chip)
    known = {family.name: family for family in families(task.arch)}
    entry = read_entry(known, candidate.origin.schedule or {}, task, chip)
    if entry is None:
        return Prediction(predicted_us=floor, model=f"roofline on {chip.name}", floor_us=floor)
    resident = min((kernel.ctas_per_sm for kernel in inspection.kernels), default=0) or entry.work.ctas_per_sm
    seen = replace(entry, work=entry.work.model_copy(update={"ctas_per_sm": resident}))
    prior = prior_of(task, chip)
    predicted_us = float(prior.predict_us([seen], task, chip)[0])
    basis = f", {NOT_FITTED}" if prior is ANALYTIC and not chip.measured else ""
    name = f"{prior.name} prior/{entry.family.name} on {chip.name}{basis}"
    return Prediction(predicted_us=predicted_us, model=name, floor_us=floor)
