"""The second witness: which kernels of a model the emulator proves, and how its verdict changes their steps."""

from collections.abc import Sequence

from cudal2_agent.agent.observe.ranking import Ranked, leader
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.history import History
from cudal2_agent.contract.events import Emit, Witnessed
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import (
    WITNESS,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Prediction,
    Rejected,
    TestResult,
    TimedOut,
    Unmeasured,
    Witness,
    Wrong,
    ran_in_part,
)
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.reward import reward

# The witness's verdict: how far it confirms a candidate, or the test that failed.
WitnessVerdict = Witness | TestResult


def unproved_leader(ranked: Sequence[Ranked]) -> Step | None:
    """The best measured kernel that a model wrote, if it has no verdict of a second witness yet.

    Slower kernels are not proved. They become neither leader, exemplar nor winner, and they have no reward.
    """
    written = [one for one in ranked if not one.step.candidate.origin.trusted_writer]
    plausible = {one.attempt.candidate_id for one in written if one.plausible}
    best = leader([one for one in written if one.attempt.candidate_id in plausible], proved_only=False)
    if best is None or not isinstance(best.step.evaluation, Measured) or best.step.evaluation.witness is not None:
        return None
    return best.step


def unexplained(ranked: Sequence[Ranked]) -> list[Step]:
    """The last round's kernels of a model that a GPU refused, and in which the emulator has not looked for the cause."""
    last = max((one.step.round for one in ranked), default=0)
    written = (one.step for one in ranked if one.step.round == last and not one.step.candidate.origin.trusted_writer)
    return [step for step in written if _refused_by_gpu(step.evaluation) and "witness" not in step.seconds]


def _refused_by_gpu(evaluation: Evaluation) -> bool:
    match evaluation:
        case Wrong(refused=refused):
            return refused is None
        case Crashed(stage=stage) | TimedOut(stage=stage):
            return stage != "build"
    return False


def proof_fits(ranked: Sequence[Ranked], left_s: float) -> bool:
    """Whether a proof as long as the longest so far fits in the time left. The first proof is always made."""
    taken_s = [one.step.seconds["witness"] for one in ranked if "witness" in one.step.seconds]
    return not taken_s or max(taken_s) <= left_s


def verdict_of(said: Evaluation) -> WitnessVerdict:
    """The emulator's verdict on a candidate that a GPU found right. A time limit and a lost worker give no verdict."""
    match said:
        case Unmeasured(verified_by="emulator", tests=tests):
            return Witness(status="in-part" if ran_in_part(tests) else "agreed", tests=tests)
        case Wrong(test=test):
            found = f"{test.message} (the emulator's {test.tier} test; a GPU found the kernel right)"
            return test.model_copy(update={"tier": WITNESS, "message": found})
        case Unmeasured(reason=reason):
            return Witness(status="unavailable", reason=reason or "the emulator did not execute the kernel")
        case Crashed() | TimedOut() | Rejected() | CompileFailed() | Measured():
            return Witness(status="unavailable", reason=f"the emulator gave no verdict: {said.fault or said.status}")


def modelled_by(said: Evaluation) -> Prediction | None:
    """What the emulator's timing model says of the kernel; None where it does not know it."""
    return said.prediction if isinstance(said, Unmeasured) and said.prediction.launches else None


def known_verdict(candidate_id: str, ranked: Sequence[Ranked]) -> WitnessVerdict | None:
    """The verdict that a step of the candidate holds already."""
    for one in ranked:
        if one.attempt.candidate_id == candidate_id:
            match one.step.evaluation:
                case Measured(witness=Witness() as witness):
                    return witness
                case Wrong(test=test, refused=Measured()):
                    return test
    return None


def judged(measured: Measured, verdict: WitnessVerdict) -> Measured | Wrong:
    """The measurement with its witness. After a fault it is `Wrong`, and the measurement is kept as `refused`."""
    if isinstance(verdict, Witness):
        return measured.model_copy(update={"witness": verdict})
    tests = (*measured.tests, verdict)
    return Wrong(test=verdict, tests=tests, inspection=measured.inspection, refused=measured)


def with_what_is_known(measured: Measured, candidate_id: str, ranked: Sequence[Ranked]) -> Measured | Wrong:
    """The measurement with the verdict and the modelled time that an earlier step of the candidate holds."""
    earlier = [one.step.evaluation for one in ranked if one.attempt.candidate_id == candidate_id]
    modelled = next((each.modelled for each in earlier if isinstance(each, Measured) and each.modelled), None)
    verdict = known_verdict(candidate_id, ranked)
    known = measured.model_copy(update={"modelled": modelled}) if modelled else measured
    return judged(known, verdict) if verdict else known


class SecondWitness:
    """Proves the candidates of one run. A recorded verdict is reused, so that a killed run repeats at most the last proof."""

    def __init__(self, run: RunRecord, sandbox: Sandbox, history: History, clock: RunClock, emit: Emit) -> None:
        self._run, self._sandbox, self._history = run, sandbox, history
        self._clock, self._emit = clock, emit

    def prove(self, step: Step, built: Built | None) -> None:
        """Record the verdict with every measured step of the candidate. `built`: None where the rebuild failed."""
        begin_s = self._clock.worked_s(self._sandbox)
        known = known_verdict(step.candidate.id, self._history.ranked)
        verdict, modelled = (known, None) if known else self._verdict(built)
        took_s = self._clock.worked_s(self._sandbox) - begin_s
        for one in self._history.steps:
            if one.candidate.id == step.candidate.id and isinstance(one.evaluation, Measured):
                seconds = {**one.seconds, "witness": took_s} if one.index == step.index else one.seconds
                self._record(one, one.evaluation, verdict, modelled, seconds)
        self._report(step, took_s)

    def explain(self, step: Step, built: Built | None) -> None:
        """Record what the emulator finds in a kernel that the GPU refused. Raises: what the sandbox raises."""
        begin_s = self._clock.worked_s(self._sandbox)
        said: Evaluation | None = None
        if built is not None:
            with self._clock.outside():
                said = self._sandbox.witness(built, self._run.task)
        seconds = {**step.seconds, "witness": self._clock.worked_s(self._sandbox) - begin_s}
        found = {"emulated": said.test} if isinstance(said, Wrong) else {}
        self._history.replace(
            step.model_copy(update={"evaluation": step.evaluation.model_copy(update=found), "seconds": seconds})
        )

    def _verdict(self, built: Built | None) -> tuple[WitnessVerdict, Prediction | None]:
        if built is None:
            return Witness(status="unavailable", reason="the kernel could not be built again"), None
        with self._clock.outside():
            said = self._sandbox.witness(built, self._run.task)
        return verdict_of(said), modelled_by(said)

    def _record(
        self,
        step: Step,
        measured: Measured,
        verdict: WitnessVerdict,
        modelled: Prediction | None,
        seconds: dict[str, float],
    ) -> None:
        """Record the step with the verdict. A refused time has no diagnosis."""
        evaluation = judged(measured.model_copy(update={"modelled": modelled or measured.modelled}), verdict)
        changes = {
            "evaluation": evaluation,
            "diagnosis": step.diagnosis if evaluation.passed else None,
            "reward": reward(evaluation, self._run.task, self._run.chip, step.candidate.origin),
            "seconds": seconds,
        }
        self._history.replace(step.model_copy(update=changes))

    def _report(self, step: Step, seconds: float) -> None:
        now = next(one for one in self._history.steps if one.index == step.index)
        best = leader(self._history.ranked)
        self._emit(
            Witnessed(
                candidate_id=now.candidate.id,
                seconds=seconds,
                evaluation=now.evaluation,
                reward=now.reward,
                best_candidate_id=best.attempt.candidate_id if best and not best.attempt.unproved else None,
            )
        )
