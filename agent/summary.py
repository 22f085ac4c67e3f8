"""Evaluations and candidates in one line each, for tables, progress and attempts."""

from typing import assert_never

from contract.candidate import UNPROVEN, AnyCandidate, HostCandidate, Origin, axes_in_use
from contract.evaluation import (
    AUTOTUNED,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Prediction,
    Rejected,
    TimedOut,
    Unmeasured,
    Wrong,
)
from contract.reward import confirmed
from contract.speedup import median_us, speedup_over

_TILE_AXES = ("block_m", "block_n", "block_k")
MESSAGE_CHARS = 200


def message_of(evaluation: Evaluation) -> str:
    """What became of a candidate, in a line; empty where a time says it all."""
    match evaluation:
        case Rejected(rule=rule, message=message):
            text = f"{rule}: {message}"
        case CompileFailed(message=message):
            text = message
        case Crashed(stage=stage, message=message):
            text = f"while {stage}: {message}"
        case TimedOut(stage=stage, limit_s=limit_s, message=message):
            text = f"{stage} took more than {limit_s:g} s{f', {message}' if message else ''}"
        case Wrong(test=test):
            text = f"{test.tier}/{test.name}: {test.message}"
        case Unmeasured() | Measured():
            text = ""
        case _:
            assert_never(evaluation)
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def result_of(evaluation: Evaluation) -> str:
    """The time, measured or predicted and marked as such, or what went wrong."""
    match evaluation:
        case Measured():
            speedup = speedup_over(evaluation, AUTOTUNED)
            versus = f", {speedup.ratio:.3f}x cuBLASLt-AutoTuning" if speedup else ""
            return f"{median_us(evaluation.timing):.2f} us{versus}"
        case Unmeasured():
            return f"{predicted_of(evaluation.prediction)}, {proof_of(evaluation)}"
        case _:
            return f"{evaluation.status.replace('_', ' ')}: {message_of(evaluation)}"


def proof_of(evaluation: Unmeasured) -> str:
    """What found a kernel right that was not timed, or why nothing did."""
    match evaluation.verified_by:
        case "gpu":
            return "verified by a GPU"
        case "emulator":
            return f"verified by the emulator{' in part' if evaluation.in_part else ''}"
        case "nothing":
            return f"verified by nothing: {evaluation.reason}" if evaluation.reason else "not executed"


def witness_of(measured: Measured, origin: Origin) -> str:
    """Whether a second witness confirms a measured kernel; empty where none is needed or was asked."""
    witness = measured.witness
    if witness is None:
        return "" if confirmed(measured, origin) else "not proved by a second witness"
    if not witness.confirms:
        return f"not proved by a second witness: {' '.join(witness.reason.split())}"
    return f"proved by the {witness.by} too{', in part' if witness.status == 'in-part' else ''}"


def predicted_of(prediction: Prediction) -> str:
    """A predicted time; where no model knows the candidate, what no candidate can be faster than."""
    if prediction.is_floor:
        return f"{prediction.predicted_us:.2f} us at the least (roofline)"
    return f"{prediction.predicted_us:.2f} us predicted"


def label_of(candidate: AnyCandidate) -> str:
    """A candidate in short: its schedule's axes in use where a policy wrote one, else who wrote it and its id."""
    schedule = candidate.origin.schedule
    if isinstance(candidate, HostCandidate):
        return f"{candidate.origin.policy} {candidate.id[:8]} ({UNPROVEN})"
    if not schedule:
        return f"{candidate.origin.policy} {candidate.id[:8]}"
    rest = dict(schedule)
    words = [str(rest.pop("family", ""))]
    if all(axis in rest for axis in _TILE_AXES):
        words.append("x".join(str(rest.pop(axis)) for axis in _TILE_AXES))
    words += axes_in_use(rest)
    return " ".join(word for word in words if word)
