"""The nodes of the graph. Each takes the state, does one stage and returns what changed."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from agent.observe.observation import in_hand, observe
from agent.observe.ranking import Ranked, finalists, leader
from agent.observe.retrieval import look_up, questions_of, with_chunks
from agent.run.clock import RunClock
from agent.run.counters import RunProfiler, affordable, diagnosis_of, subjects, unprofiled
from agent.run.dependencies import Dependencies
from agent.run.history import History
from agent.run.state import Pending, RunState
from agent.run.stopping import Budget, SearchEnd
from agent.run.witnessing import SecondWitness, judged, known_verdict, proof_fits, unproved_leader
from contract.build import Built
from contract.candidate import AnyCandidate, Candidate
from contract.diagnosis import Diagnosis
from contract.errors import Cudal2Error, MachineError, UsageError, WorkerError
from contract.evaluation import Crashed, Evaluation, Measured
from contract.events import CandidateBuilt, Emit, Proposed, StepFinished
from contract.options import Effort
from contract.reward import reward
from contract.trajectory import RunRecord, Step

FINALISTS = 3
EMPTY_ROUNDS = 3  # consecutive empty rounds that end the run of a model, which may still find something
Changes = dict[str, Any]

logger = logging.getLogger(__name__)
_CANDIDATES: TypeAdapter[list[AnyCandidate]] = TypeAdapter(list[AnyCandidate])


class Nodes:
    """The nodes of one run, bound to its parts. A node that runs again after a kill repeats no recorded step."""

    def __init__(self, run: RunRecord, parts: Dependencies, clock: RunClock, emit: Emit) -> None:
        self._run = run
        self._parts = parts
        self._budget = Budget(candidates=run.settings.budget, minutes=run.settings.minutes)
        self._ending = SearchEnd(run.task, run.chip, self._budget, can_measure=parts.sandbox.can_measure)
        self._clock = clock
        self._emit = emit
        self.history = History(parts.store, run)
        self._profiler = RunProfiler(run, parts, self.history, clock, emit)
        self._second_witness = SecondWitness(run, parts.sandbox, self.history, clock, emit)
        self._failed: Cudal2Error | None = None  # ends the run once the current candidate is recorded

    def retrieve(self, state: RunState) -> Changes:
        """Record the observation of the next round: task, attempts, the best of them, and hits of the knowledge base."""
        task, ranked = self._run.task, self.history.ranked
        step = in_hand(ranked)
        failure = ranked[-1].attempt.message if ranked else ""
        questions = questions_of(task, step.candidate if step else None, step.diagnosis if step else None, failure)
        hits = look_up(self._parts.retriever, questions, task)
        observation = observe(
            self._run,
            ranked,
            state["round"] + 1,
            hits,
            self._parts.explain,
            seconds_left=self._budget.search_s(self._parts.sandbox.can_measure) - self._clock.spent_s(),
            reads_code=self._parts.policy.reads_code,
        )
        observation_id = self._parts.store.record_observation(self._run.run_id, observation)
        return self._changes(round=observation.round, observation_id=observation_id)

    def propose(self, state: RunState) -> Changes:
        """New candidates from the policy, without those that the run has tried."""
        observation = self._parts.store.observation(state["observation_id"])
        count = min(self._run.settings.round_size, self._budget.candidates - len(self.history.ranked))
        begin_s = self._clock.spent_s()
        with self._clock.outside():
            proposed = self._parts.policy.propose(observation, count)
        propose_s = self._clock.spent_s() - begin_s
        fresh = self._fresh(proposed)[:count]
        batch = [with_chunks(candidate, observation.hits) for candidate in fresh]
        dropped = len(proposed) - len(batch)
        self._emit(Proposed(round=state["round"], policy=self._parts.policy.name, count=len(batch), dropped=dropped))
        empty_rounds = 0 if batch else state.get("empty_rounds", 0) + 1  # absent in a checkpoint of 0.1.0
        # A search that proposes nothing is exhausted. A model without a usable reply may have one in the next round.
        nothing_new = empty_rounds >= (EMPTY_ROUNDS if self._parts.policy.reads_code else 1)
        exhausted = self._parts.policy.exhausted or ("the policy has nothing new" if nothing_new else "")
        share_s = propose_s / max(len(batch), 1)
        stop = "" if batch else exhausted or self._stop_reason(state["round"], waiting=0)
        waiting = [candidate.model_dump(mode="json") for candidate in batch]
        return self._changes(batch=waiting, propose_s=share_s, empty_rounds=empty_rounds, stop=stop)

    def build(self, state: RunState) -> Changes:
        """Check, compile and inspect the batch in parallel. Candidates that fail become steps at once."""
        batch = [c for c in _CANDIDATES.validate_python(state["batch"]) if self.history.first(c.id) is None]
        built: dict[int, Built] = {}
        for position, outcome, seconds in self._outcomes(batch):
            candidate = batch[position]
            self._emit(_built_event(candidate, outcome, seconds))
            if isinstance(outcome, Built):
                built[position] = outcome
            else:
                self._record(state, candidate, outcome, None, {"build": seconds})
        queue = [built[position].model_dump(mode="json") for position in sorted(built)]
        stop = self._stop_reason(state["round"], waiting=len(queue))
        return self._changes(batch=[], queue=queue, next_index=self.history.next_index, stop=stop)

    def evaluate(self, state: RunState) -> Changes:
        """Verify and time the next built candidate."""
        built = Built.model_validate(state["queue"][0])
        effort: Effort = "quick" if state["phase"] == "search" else "full"
        begin_s = self._clock.spent_s()
        with self._clock.outside():
            evaluation = self._evaluated(built, effort)
        pending = Pending(built=built, evaluation=evaluation, evaluate_s=self._clock.spent_s() - begin_s)
        return self._changes(queue=state["queue"][1:], pending=pending.model_dump(mode="json"))

    def diagnose(self, state: RunState) -> Changes:
        """Diagnose the candidate that was just evaluated."""
        pending = Pending.model_validate(state["pending"])
        profile = self.history.profile_of(pending.built.candidate.id)
        diagnosis = diagnosis_of(self._parts, self._run, pending.built, pending.evaluation, profile)
        return self._changes(pending=pending.model_copy(update={"diagnosis": diagnosis}).model_dump(mode="json"))

    def record(self, state: RunState) -> Changes:
        """Record the evaluated candidate as a step, which is durable before the graph goes on.

        A step that exists was recorded before a kill, ahead of the checkpoint. It stays unchanged.
        """
        pending = Pending.model_validate(state["pending"])
        seconds = {"build": pending.built.seconds, "evaluate": pending.evaluate_s}
        known = state["phase"] == "search" and self.history.first(pending.built.candidate.id) is not None
        if self.history.next_index == state["next_index"] and not known:
            self._record(state, pending.built.candidate, pending.evaluation, pending.diagnosis, seconds)
        if self._failed is not None:  # the candidate is a step now, and a resumed run goes on after it
            raise self._failed
        waiting = len(state["queue"])
        if state["phase"] == "search":
            stop = self._stop_reason(state["round"], waiting)
            return self._changes(pending=None, next_index=self.history.next_index, stop=stop)
        late = self._clock.spent_s() > self._budget.total_s
        return self._changes(pending=None, next_index=self.history.next_index, queue=[] if late else state["queue"])

    def witness(self, state: RunState) -> Changes:
        """Prove the best kernel that a model wrote on the emulator; after a refusal, the next best one."""
        searching = state["phase"] == "search"
        limit_s = self._budget.search_s(self._parts.sandbox.can_measure) if searching else self._budget.total_s
        while step := unproved_leader(self.history.ranked):
            if not proof_fits(self.history.ranked, limit_s - self._clock.spent_s()):
                break
            self._second_witness.prove(step, self._rebuilt(step.candidate))
        ended = state["stop"] or not searching
        return self._changes(stop=state["stop"] if ended else self._stop_reason(state["round"], len(state["queue"])))

    def profile(self, state: RunState) -> Changes:
        """Profile the round's best kernels, or at the end the winner, with Nsight Compute, and record their steps again."""
        if state["phase"] == "final":
            best = leader(self.history.ranked)
            steps = [best.step] if best and self._clock.spent_s() < self._budget.total_s else []
        else:
            steps = subjects(self.history.ranked) if self._profiler.every_round else []
            steps = [step for step in steps if affordable(step, self.history.ranked, self._clock.spent_s())]
        for step in unprofiled(steps, self.history.ranked):
            if self._profiler.able and (built := self._rebuilt(step.candidate)):
                self._profiler.profile(step, built)
        return self._changes()

    def choose(self, state: RunState) -> Changes:
        """Queue the finalists for a full measurement. The compile cache makes their rebuild free.

        Without a GPU there are none: the emulator's proof has no short form and would be repeated unchanged.
        """
        self._clock.lap_s()
        if not self._parts.sandbox.can_measure:
            return self._changes(phase="final", queue=[])
        best = [step.candidate for step in finalists(self.history.ranked, FINALISTS)]
        built = {position: outcome for position, outcome, _ in self._outcomes(best) if isinstance(outcome, Built)}
        queue = [built[position].model_dump(mode="json") for position in sorted(built)]
        return self._changes(phase="final", queue=queue, propose_s=0.0, stop=state["stop"])

    def _evaluated(self, built: Built, effort: Effort) -> Evaluation:
        """The sandbox's evaluation. If the sandbox itself fails, the candidate is recorded before the run ends.

        Raises: MachineError, UsageError: a resumed run tries the candidate again.
        """
        try:
            return self._parts.sandbox.evaluate(built, self._run.task, effort)
        except (MachineError, UsageError):
            raise
        except Exception as exc:
            self._failed = exc if isinstance(exc, Cudal2Error) else WorkerError(f"internal error: {type(exc).__name__}: {exc}")
            logger.warning("candidate %s could not be evaluated", built.candidate.id, exc_info=exc)
            message = f"the run failed while this candidate was evaluated: {exc}"
            return Crashed(stage="evaluate", message=message, inspection=built.inspection)

    def _changes(self, **changes: Any) -> Changes:
        return {**changes, "spent_s": self._clock.spent_s()}

    def _fresh(self, proposed: Sequence[Candidate]) -> list[Candidate]:
        return [c for candidate_id, c in {c.id: c for c in proposed}.items() if self.history.first(candidate_id) is None]

    def _outcomes(self, candidates: Sequence[AnyCandidate]) -> Iterator[tuple[int, Built | Evaluation, float]]:
        """The sandbox's outcomes as they finish, with their seconds. Waiting does not count as the agent's own time."""
        begin_s = self._clock.spent_s()
        outcomes = iter(self._parts.sandbox.build(candidates, self._run.task)) if candidates else iter(())
        while True:
            with self._clock.outside():
                item = next(outcomes, None)
            if item is None:
                return
            position, outcome = item
            yield position, outcome, outcome.seconds if isinstance(outcome, Built) else self._clock.spent_s() - begin_s

    def _rebuilt(self, candidate: AnyCandidate) -> Built | None:
        """A candidate, built again from the compile cache; None where the build fails now."""
        return next((outcome for _, outcome, _ in self._outcomes([candidate]) if isinstance(outcome, Built)), None)

    def _record(
        self,
        state: RunState,
        candidate: AnyCandidate,
        evaluation: Evaluation,
        diagnosis: Diagnosis | None,
        seconds: dict[str, float],
    ) -> None:
        """Record the next step. A final measurement keeps the round and the observation of its candidate's first step."""
        first = self.history.first(candidate.id) if state["phase"] == "final" else None
        verdict = known_verdict(candidate.id, self.history.ranked)
        if verdict and isinstance(evaluation, Measured):  # the candidate was proved before this measurement
            evaluation = judged(evaluation, verdict)
        shared_s = state["propose_s"] if candidate.origin.seconds is None else candidate.origin.seconds
        step = Step(
            run_id=self._run.run_id,
            index=self.history.next_index,
            round=first.round if first else state["round"],
            observation_id=first.observation_id if first else state["observation_id"],
            candidate=first.candidate if first else candidate,
            evaluation=evaluation,
            diagnosis=diagnosis,
            profile=self.history.profile_of(candidate.id),
            reward=None if self._failed else reward(evaluation, self._run.task, self._run.chip, candidate.origin),
            seconds={"propose": shared_s, **seconds, "agent": self._clock.lap_s()},
            created_at=datetime.now(UTC),
        )
        self.history.add(step)
        self._emit(_finished_event(self.history.ranked[-1], leader(self.history.ranked)))

    def _stop_reason(self, round_number: int, waiting: int) -> str:
        return self._ending.reason(self.history.ranked, round_number, waiting, self._clock.spent_s())


def _finished_event(last: Ranked, best: Ranked | None) -> StepFinished:
    return StepFinished(
        index=last.step.index,
        candidate_id=last.attempt.candidate_id,
        label=last.step.candidate.short_name,
        evaluation=last.step.evaluation,
        reward=last.step.reward,
        best_candidate_id=best.attempt.candidate_id if best and not best.attempt.unproved else None,
    )


def _built_event(candidate: AnyCandidate, outcome: Built | Evaluation, seconds: float) -> CandidateBuilt:
    if isinstance(outcome, Built):
        return CandidateBuilt(candidate_id=candidate.id, seconds=seconds, cached=outcome.cached)
    return CandidateBuilt(candidate_id=candidate.id, seconds=seconds, cached=False, failed=outcome)
