"""Asks the second witness about a measured kernel and records its verdict with the kernel's steps."""

from agent.clock import RunClock
from agent.history import History
from agent.ranking import leader
from agent.witnessing import Verdict, judged, known_verdict, verdict_of
from contract.build import Built
from contract.evaluation import Measured, Witness
from contract.events import Emit, Witnessed
from contract.protocols import Sandbox
from contract.reward import reward
from contract.trajectory import RunRecord, Step


class Prover:
    """One run's. A verdict that a step holds is not asked for again, so that a killed run repeats at most the last proof."""

    def __init__(self, run: RunRecord, sandbox: Sandbox, history: History, clock: RunClock, emit: Emit) -> None:
        self._run, self._sandbox, self._history = run, sandbox, history
        self._clock, self._emit = clock, emit

    def prove(self, step: Step, built: Built | None) -> None:
        """Record the verdict with every measured step of the candidate. `built`: None where it could not be built again."""
        begin_s = self._clock.spent_s()
        verdict = known_verdict(step.candidate.id, self._history.ranked) or self._verdict(built)
        took_s = self._clock.spent_s() - begin_s
        for one in self._history.steps:
            if one.candidate.id == step.candidate.id and isinstance(one.evaluation, Measured):
                seconds = {**one.seconds, "witness": took_s} if one.index == step.index else one.seconds
                self._record(one, one.evaluation, verdict, seconds)
        self._tell(step, took_s)

    def _verdict(self, built: Built | None) -> Verdict:
        if built is None:
            return Witness(status="unavailable", reason="the kernel could not be built again")
        with self._clock.outside():
            return verdict_of(self._sandbox.witness(built, self._run.task))

    def _record(self, step: Step, measured: Measured, verdict: Verdict, seconds: dict[str, float]) -> None:
        """The step anew. A refused time explains nothing, so that its diagnosis goes."""
        evaluation = judged(measured, verdict)
        changes = {
            "evaluation": evaluation,
            "diagnosis": step.diagnosis if isinstance(evaluation, Measured) else None,
            "reward": reward(evaluation, self._run.task, self._run.chip, step.candidate.origin),
            "seconds": seconds,
        }
        self._history.replace(step.model_copy(update=changes))

    def _tell(self, step: Step, seconds: float) -> None:
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
