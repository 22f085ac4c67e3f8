"""The predicted time of a candidate that cannot be timed: by the schedule behind it, else by the roofline."""

from contract.candidate import AnyCandidate
from contract.chip import REFERENCE_CHIPS
from contract.evaluation import Prediction
from contract.inspection import Inspection
from contract.roofline import roofline_us
from contract.task import GemmTask
from policies.schedule.families.registry import families
from policies.schedule.prior import predict_us


def predict(candidate: AnyCandidate, task: GemmTask, inspection: Inspection) -> Prediction:
    """Predicted time on the reference chip of the task's arch: by the schedule behind the source, else by the roofline.

    The occupancy that the compiler reports replaces the schedule's estimate.
    """
    chip = REFERENCE_CHIPS[task.arch]
    floor = roofline_us(task, chip)
    values = candidate.origin.schedule or {}
    for family in families(task.arch):
        if values.get("family") == family.name:
            try:
                work = family.work(family.parse(values), task, chip)
            except ValueError:
                break
            resident = min((kernel.ctas_per_sm for kernel in inspection.kernels), default=0) or work.ctas_per_sm
            predicted = predict_us(work.model_copy(update={"ctas_per_sm": resident}), task, chip)
            return Prediction(predicted_us=predicted, model=f"schedule-prior/{family.name} on {chip.name}", floor_us=floor)
    return Prediction(predicted_us=floor, model=f"roofline on {chip.name}", floor_us=floor)
