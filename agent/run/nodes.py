"""The nodes of the graph. Each takes the state, does one stage and returns what changed."""

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from cudal2_agent.agent.observe.failures import unrepaired
from cudal2_agent.agent.observe.notes_of_source import notes_of_source
from cudal2_agent.agent.observe.observation import in_hand, observe
from cudal2_agent.agent.observe.ranking import Ranked, finalists, leader
from cudal2_agent.agent.observe.retrieval import Place, constructs_of, look_up, place_of, questions_of, shown_in, with_chunks
from cudal2_agent.agent.run.batch_build import BatchBuild, Finished, RoundProposal
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.counters import RunProfiler, affordable, diagnosis_of, subjects, unprofiled
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.history import History
from cudal2_agent.agent.run.measurements import Measurements
from cudal2_agent.agent.run.state import RunState
from cudal2_agent.agent.run.stopping import Budget, SearchEnd
from cudal2_agent.agent.run.witnessing import SecondWitness, proof_fits, unexplained, unproved_leader, with_what_is_known
from cudal2_agent.contract.events import CandidateBuilt, Emit, Proposed, StepFinished
from cudal2_agent.contract.protocols import MeasuresAhead
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.contract.reward.reward import reward

EMPTY_ROUNDS = 3  # consecutive empty rounds that end the run of a model, which may still find something
Changes = dict[str, Any]
Measurement = tuple[Built, Evaluation, float]  # with its seconds

logger = logging.getLogger(__name__)
_CANDIDATES: TypeAdapter[list[AnyCandidate]] = TypeAdapter(list[AnyCandidate])


class Nodes:
    """The nodes of one run, bound to its parts. A node that runs again after a kill repeats no recorded step.

    Where a GPU screens the candidates of a policy without a model, the next round is proposed and built meanwhile.
    """

    def __init__(self, run: RunRecord, parts: Dependencies, clock: RunClock, emit: Emit) -> None:
        self._run = run
        self._parts = parts
        self._budget = Budget(candidates=run.settings.budget, minutes=run.settings.minutes)
        self._ending = SearchEnd(
            run.task,
            run.chip,
            self._budget,
            can_measure=parts.sandbox.can_measure,
            reads_code=parts.policy.reads_code,
            stops_near_roofline=run.settings.stop_near_roofline,
        )
        self._clock = clock
        self._emit = emit
        self.history = History(parts.store, run, describes=parts.policy.reads_code)
        self._profiler = RunProfiler(run, parts, self.history, clock, emit)
        self._measurements = Measurements(run, parts.sandbox, clock, emit)
        self._second_witness = SecondWitness(run, parts.sandbox, self.history, clock, emit)
        self._builds: BatchBuild | None = None  # of this round
        self._ahead: tuple[Observation, BatchBuild] | None = None  # the next round, where it was begun
        self._built: dict[str, Built] = {}
        self._tried, self._tried_s = 0, 0.0  # candidates of the search, and the seconds of their measurements

    def close(self) -> None:
        """Ends what goes on in the background."""
        for builds in (self._builds, self._ahead[1] if self._ahead else None):
            if builds is not None:
                builds.close()
        self._builds = self._ahead = None

    def retrieve(self, state: RunState) -> Changes:
        """Record the observation of the next round: task, attempts, the best of them, and hits of the knowledge base."""
        if self._ahead is not None and not self._proposed(self._ahead[1]).batch:
            self._ahead[1].close()
            self._ahead = None  # with what is known now the policy may find something
        observation = self._ahead[0] if self._ahead else self._observed(state["round"] + 1)
        observation_id = self._parts.store.record_observation(self._run.run_id, observation)
        return self._changes(round=observation.round, observation_id=observation_id)

    def propose(self, state: RunState) -> Changes:
        """New candidates from the policy, without those that the run has tried."""
        if self._ahead is not None:
            self._builds, self._ahead = self._ahead[1], None
            proposal = self._proposed(self._builds)
        else:
            observation = self._parts.store.observation(state["observation_id"])
            with self._clock.outside():
                proposal = self._propose(observation, self._round_size(), frozenset())
        self._emit(
            Proposed(
                round=state["round"],
                policy=self._parts.policy.name,
                count=len(proposal.batch),
                dropped=proposal.dropped,
            )
        )
        empty_rounds = 0 if proposal.batch else state.get("empty_rounds", 0) + 1  # absent in a checkpoint of 0.1.0
        # A search that proposes nothing is exhausted. A model without a usable reply may have one in the next round.
        nothing_new = empty_rounds >= (EMPTY_ROUNDS if self._parts.policy.reads_code else 1)
        exhausted = self._parts.policy.exhausted or ("the policy has nothing new" if nothing_new else "")
        share_s = proposal.seconds / max(len(proposal.batch), 1)
        stop = "" if proposal.batch else exhausted or self._stop_reason(state["round"], waiting=0)
        batch = [candidate.model_dump(mode="json") for candidate in proposal.batch]
        return self._changes(batch=batch, propose_s=share_s, empty_rounds=empty_rounds, stop=stop)

    def build(self, state: RunState) -> Changes:
        """Begin to check, compile and inspect the batch in parallel, unless that was begun ahead."""
        self._building(state)
        return self._changes()

    def evaluate(self, state: RunState) -> Changes:
        """Verify and time the candidates of the round as they are built. Each is a step before the next one begins."""
        builds = self._building(state)
        waiting: list[Built] = []
        stop = ""
        while not stop:
            waiting += self._taken(state, builds, wait=not waiting)
            left = len(waiting) + builds.waiting
            stop = self._stop_reason(state["round"], left)
            if stop or not left:
                break
            with closing(self._measurements.of(tuple(waiting))) as measured:
                for built, evaluation, seconds in measured:
                    waiting.remove(built)
                    self._tried, self._tried_s = self._tried + 1, self._tried_s + seconds
                    self._finish(state, built, evaluation, seconds)
                    stop = self._stop_reason(state["round"], len(waiting) + builds.waiting)
                    if stop:
                        break
                    self._look_ahead(state, waiting, builds)
        builds.close()
        self._builds = None
        return self._changes(batch=[], stop=stop)

    def witness(self, state: RunState) -> Changes:
        """Prove the best kernel that a model wrote on the emulator; after a refusal, the next best one.

        It also looks for the cause of what the GPU refused in this round, which a repair is told.
        """
        searching = state["phase"] == "search"
        limit_s = self._budget.search_s(self._parts.sandbox.can_measure) if searching else self._budget.total_s
        while step := unproved_leader(self.history.ranked):
            if not proof_fits(self.history.ranked, limit_s - self._clock.spent_s()):
                break
            self._second_witness.prove(step, self._rebuilt(step.candidate))
        for step in unexplained(self.history.ranked) if searching and self._parts.sandbox.can_measure else ():
            if proof_fits(self.history.ranked, limit_s - self._clock.spent_s()):
                self._second_witness.explain(step, self._rebuilt(step.candidate))
        ended = state["stop"] or not searching
        return self._changes(stop=state["stop"] if ended else self._stop_reason(state["round"], waiting=0))

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

    def choose(self, state: RunState) -> Changes:  # noqa: ARG002
        """Choose the finalists of the race: the best by screening. After the run's time is spent, the best one alone.

        Without a GPU there are none: the emulator's proof has no short form and would be repeated unchanged.
        """
        self.close()  # what was begun ahead and never runs is not recorded
        self._clock.lap_s()
        if not self._parts.sandbox.can_measure:
            return self._changes(phase="final", batch=[])
        late = self._clock.spent_s() > self._budget.total_s
        chosen = finalists(self.history.ranked, 1 if late else self._run.settings.finalists)
        return self._changes(phase="final", propose_s=0.0, batch=[step.candidate.model_dump(mode="json") for step in chosen])

    def race(self, state: RunState) -> Changes:
        """Measure the finalists together, in the same rounds. Those that were recorded before a kill do not race again."""
        recorded = {step.candidate.id for step in self.history.steps if step.index >= state["next_index"]}
        entered = [one for one in _CANDIDATES.validate_python(state["batch"]) if one.id not in recorded]
        rebuilt = [self._rebuilt(candidate) for candidate in entered]
        for built, evaluation, seconds in self._measurements.raced([one for one in rebuilt if one is not None]):
            self._finish(state, built, evaluation, seconds)
        return self._changes(batch=[])

    def _observed(self, number: int) -> Observation:
        """The observation of a round, from the steps so far."""
        task, ranked = self._run.task, self.history.ranked
        step = in_hand(ranked)
        having, diagnosis = (step.candidate, step.diagnosis) if step else (None, None)
        questions, constructs = questions_of(task, having, diagnosis), constructs_of(task, having, diagnosis)
        failures = unrepaired(ranked, 1) if self._parts.policy.reads_code else ()
        notes = [hit for each in failures for hit in notes_of_source(each.candidate.source, each.evaluation, task.arch)]
        known = self._shown() | {place_of(hit) for hit in notes}
        hits = [*notes, *look_up(self._parts.retriever, questions, task, constructs, known)]
        return observe(
            self._run,
            ranked,
            number,
            hits,
            self._parts.explain,
            seconds_left=self._budget.search_s(self._parts.sandbox.can_measure) - self._clock.spent_s(),
            candidates_left=self._budget.candidates - len(ranked),
            reads_code=self._parts.policy.reads_code,
            cutlass=self._parts.sandbox.builds_cutlass,
        )

    def _shown(self) -> frozenset[Place]:
        """The chunks that a model was shown in this run."""
        if not self._parts.policy.reads_code:
            return frozenset()
        exchanges = self._parts.store.exchanges(self._run.run_id)
        ids = {exchange.observation_id for exchange in exchanges if exchange.shown}
        return shown_in(exchanges, {id_: self._parts.store.observation(id_) for id_ in ids})

    def _round_size(self, in_flight: int = 0) -> int:
        return min(self._run.settings.round_size, self._budget.candidates - len(self.history.ranked) - in_flight)

    def _propose(self, observation: Observation, count: int, in_flight: frozenset[str]) -> RoundProposal:
        """At most `count` candidates that are neither steps of the run nor `in_flight`. Safe in a thread beside the graph's."""
        begin_s = time.monotonic()
        proposed = self._parts.policy.propose(observation, count + len(in_flight))
        unique = {candidate.id: candidate for candidate in proposed if candidate.id not in in_flight}
        fresh = [one for candidate_id, one in unique.items() if self.history.first(candidate_id) is None]
        known = sum(candidate.id in in_flight for candidate in proposed)
        batch = [with_chunks(candidate, observation.hits) for candidate in fresh[:count]]
        # Only what the policy should not have proposed counts as dropped: not what it could not know, nor what was not asked.
        surplus = min(len(fresh) - len(batch), len(in_flight))
        return RoundProposal(batch, len(proposed) - known - surplus - len(batch), time.monotonic() - begin_s)

    def _proposed(self, builds: BatchBuild) -> RoundProposal:
        with self._clock.outside():
            return builds.proposal()

    def _building(self, state: RunState) -> BatchBuild:
        """The builds of the state's batch. What is a step already is not built again."""
        if self._builds is None:
            batch = _CANDIDATES.validate_python(state["batch"])
            skip = {candidate.id for candidate in batch if self.history.first(candidate.id) is not None}
            proposal = RoundProposal([candidate for candidate in batch if candidate.id not in skip])
            counters = self._profiler.able and self._parts.policy.reads_code
            self._builds = BatchBuild(self._parts.sandbox, self._run.task, lambda: proposal, counters=counters)
        return self._builds

    @property
    def _streams(self) -> bool:
        """Whether candidates are measured while others are built: on a GPU, for a policy without a model.

        Without `build_ahead` a round is measured at once, so that searches which share a GPU alternate by whole rounds. So it
        is by a sandbox whose builds bring their measurements.
        """
        sandbox = self._parts.sandbox
        streams = sandbox.can_measure and not self._parts.policy.reads_code and self._run.settings.build_ahead
        return streams and not isinstance(sandbox, MeasuresAhead)

    def _taken(self, state: RunState, builds: BatchBuild, *, wait: bool) -> list[Built]:
        """What has been built. Candidates that failed become steps at once."""
        taken: list[Built] = []
        while finished := self._ready(builds, wait=(wait and not taken) or not self._streams):
            for one in finished:
                self._emit(_built_event(one.candidate, one.outcome, one.seconds))
                if isinstance(one.outcome, Built):
                    taken.append(one.outcome)
                    self._built[one.candidate.id] = one.outcome
                else:
                    self._record(state, one.candidate, one.outcome, None, {"build": one.seconds})
        order = {id_: place for place, id_ in enumerate(one.id for one in builds.proposal().batch)}
        return sorted(taken, key=lambda built: order[built.candidate.id])

    def _ready(self, builds: BatchBuild, *, wait: bool) -> list[Finished]:
        with self._clock.outside():
            return builds.ready(wait=wait)

    def _look_ahead(self, state: RunState, left: Sequence[Built], builds: BatchBuild) -> None:
        """Begin the next round once the rest of this one takes the GPU no longer than a batch takes the compilers.

        Later is better: the policy then knows more times.
        """
        rest = len(left) + builds.waiting
        if self._ahead or not rest or not self._streams or builds.build_s is None:
            return
        if rest * self._tried_s / self._tried > builds.build_s:
            return
        in_flight = frozenset(one.id for one in builds.proposal().batch if self.history.first(one.id) is None)
        count = self._round_size(len(in_flight))
        if count > 0:
            observation = self._observed(state["round"] + 1)
            propose = partial(self._propose, observation, count, in_flight)
            self._ahead = observation, BatchBuild(self._parts.sandbox, self._run.task, propose)

    def _finish(self, state: RunState, built: Built, evaluation: Evaluation, seconds: float) -> None:
        """Diagnose a candidate and record it, durably. Raises: the error that ended its evaluation."""
        profile = self.history.profile_of(built.candidate.id)
        diagnosis = diagnosis_of(self._parts, self._run, built, evaluation, profile)
        self._record(state, built.candidate, evaluation, diagnosis, {"build": built.seconds, "evaluate": seconds})
        if self._measurements.failed is not None:  # the candidate is a step now, and a resumed run goes on after it
            raise self._measurements.failed

    def _changes(self, **changes: Any) -> Changes:
        return {**changes, "next_index": self.history.next_index, "spent_s": self._clock.spent_s()}

    def _rebuilt(self, candidate: AnyCandidate) -> Built | None:
        """A built candidate, of this process or from the compile cache; None where the build fails now."""
        if candidate.id not in self._built:
            with self._clock.outside():
                [(_, outcome)] = self._parts.sandbox.build([candidate], self._run.task)
            if isinstance(outcome, Built):
                self._built[candidate.id] = outcome
        return self._built.get(candidate.id)

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
        if isinstance(evaluation, Measured):
            evaluation = with_what_is_known(evaluation, candidate.id, self.history.ranked)
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
            reward=None if self._measurements.failed else reward(evaluation, self._run.task, self._run.chip, candidate.origin),
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
