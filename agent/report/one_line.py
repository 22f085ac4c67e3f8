"""Evaluations with their times, in one line each: for tables, progress and answers."""

from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.reward.reward import confirmed
from cudal2_agent.contract.reward.speedup import median_us, speedup_that_counts, yardstick_of

_NAMES = {AUTOTUNED: "cuBLASLt-AutoTuning"}  # where prose differs from what records say


def result_of(evaluation: Evaluation) -> str:
    """The time, marked as measured or predicted, or the fault."""
    match evaluation:
        case Measured():
            yardstick, ratio = yardstick_of(evaluation), speedup_that_counts(evaluation)
            versus = f", {ratio:.3f}x {_NAMES.get(yardstick.name, yardstick.name)}" if yardstick and ratio else ""
            return f"{median_us(evaluation.timing):.2f} us{versus}"
        case Unmeasured():
            return f"{predicted_of(evaluation.prediction)}, {evaluation.headline}"
        case _:
            return evaluation.headline


def witness_of(measured: Measured, origin: Origin) -> str:
    """Whether a second witness confirms a measured kernel; empty where none was needed."""
    witness = measured.witness
    if witness is None:
        return "" if confirmed(measured, origin) else "not proved by a second witness"
    if not witness.confirms:
        return f"not proved by a second witness: {' '.join(witness.reason.split())}"
    return f"proved by the {witness.by} too{', in part' if witness.status == 'in-part' else ''}"


def predicted_of(prediction: Prediction) -> str:
    """A predicted time. Where no model knows the candidate, the roofline takes its place."""
    if prediction.is_floor:
        return f"{prediction.predicted_us:.2f} us at minimum (roofline)"
    return f"{prediction.predicted_us:.2f} us predicted"
