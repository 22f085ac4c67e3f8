"""Which kernels a model wrote are proved on the emulator, and what its answer makes of their measurements. Pure."""

from collections.abc import Sequence

from agent.ranking import Ranked, leader
from agent.summary import message_of
from contract.evaluation import (
    WITNESS,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TestResult,
    TimedOut,
    Unmeasured,
    Witness,
    Wrong,
    ran_in_part,
)
from contract.trajectory import Step

# What the witness says of a candidate: how far it confirms it, or the test that failed.
Verdict = Witness | TestResult


def unproved_leader(ranked: Sequence[Ranked]) -> Step | None:
    """The best measured kernel of those that models wrote, where no second witness was asked about it yet.

    Slower ones are not proved: their times are no exemplar's, no leader's and no winner's, and they have no reward.
    """
    written = [one for one in ranked if not one.step.candidate.origin.trusted_writer]
    plausible = {one.attempt.candidate_id for one in written if one.plausible}
    best = leader([one for one in written if one.attempt.candidate_id in plausible], proved_only=False)
    if best is None or not isinstance(best.step.evaluation, Measured) or best.step.evaluation.witness is not None:
        return None
    return best.step


def proof_fits(ranked: Sequence[Ranked], left_s: float) -> bool:
    """Whether a proof fits in the time left, by the longest so far; the first one is made in any case."""
    taken_s = [one.step.seconds["witness"] for one in ranked if "witness" in one.step.seconds]
    return not taken_s or max(taken_s) <= left_s


def verdict_of(said: Evaluation) -> Verdict:
    """The emulator's verdict on a candidate that a GPU found right. A time limit or a lost worker is no verdict."""
    match said:
        case Unmeasured(verified_by="emulator", tests=tests):
            return Witness(status="in-part" if ran_in_part(tests) else "agreed", tests=tests)
        case Wrong(test=test):
            found = f"{test.message} (the emulator's {test.tier} test; a GPU found the kernel right)"
            return test.model_copy(update={"tier": WITNESS, "message": found})
        case Unmeasured(reason=reason):
            return Witness(status="unavailable", reason=reason or "the emulator did not execute the kernel")
        case Crashed() | TimedOut() | Rejected() | CompileFailed() | Measured():
            return Witness(status="unavailable", reason=f"the emulator gave no verdict: {message_of(said) or said.status}")


def known_verdict(candidate_id: str, ranked: Sequence[Ranked]) -> Verdict | None:
    """The verdict that a step of the candidate already holds."""
    for one in ranked:
        if one.attempt.candidate_id == candidate_id:
            match one.step.evaluation:
                case Measured(witness=Witness() as witness):
                    return witness
                case Wrong(test=test, refused=Measured()):
                    return test
    return None


def judged(measured: Measured, verdict: Verdict) -> Measured | Wrong:
    """The measurement with its witness; refused where the witness found a fault, its times kept beside the fault."""
    if isinstance(verdict, Witness):
        return measured.model_copy(update={"witness": verdict})
    tests = (*measured.tests, verdict)
    return Wrong(test=verdict, tests=tests, inspection=measured.inspection, refused=measured)


def refusals(steps: Sequence[Step]) -> list[tuple[Step, Wrong, Measured]]:
    """Steps that a GPU found right and a second witness did not, with the measurement that counts for nothing."""
    return [
        (step, step.evaluation, step.evaluation.refused)
        for step in steps
        if isinstance(step.evaluation, Wrong) and step.evaluation.refused is not None
    ]
