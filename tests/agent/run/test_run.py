"""The real graph, the real store and the real checkpoints over a scripted policy and sandbox."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from sqlalchemy import event

from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.run.state import open_checkpoints
from cudal2_agent.contract.errors import MachineError, ProfileFailed, ProfilerUnavailable, StoreError, UsageError, WorkerError
from cudal2_agent.contract.events import Event, Notice, Profiled, Proposed, StepFinished
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import BASELINES, Evaluation, Measured, TestResult, TimedOut, Unmeasured, Wrong
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Step
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import Store, open_store
from tests import doubles
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, number_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", budget=12, round_size=4, minutes=1.0, finalists=3)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings.store_url)


def parts(store: Store, sandbox: ScriptedSandbox, count: int = 12) -> Dependencies:
    policy = ScriptedPolicy([candidate(number) for number in range(count)])
    return Dependencies(
        sandbox=sandbox,
        policy=policy,
        retriever=ScriptedRetriever(),
        store=store,
        diagnose=doubles.diagnose,
        explain=doubles.explain,
    )


def drive(settings: Settings, made: Dependencies, events: list[Event] | None = None) -> RunResult:
    emit = events.append if events is not None else (lambda _: None)
    return start_run(name_run(TASK), TASK, settings, made, emit)


def screened(sandbox: ScriptedSandbox) -> list[int]:
    """The candidates that were screened, in order of their numbers: within a round, the first to be built is the first."""
    return sorted(number for number, effort in sandbox.evaluated if effort == "screen")


def test_search_then_a_race_of_the_three_fastest(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({number: 20.0 - number for number in range(12)})
    outcome = drive(settings, parts(store, sandbox))
    assert screened(sandbox) == list(range(12))
    assert sandbox.evaluated[12:] == [(11, "race"), (10, "race"), (9, "race")]
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 11
    assert isinstance(outcome.best.evaluation, Measured)
    assert {timing.name for timing in outcome.best.evaluation.baselines} == set(BASELINES)
    assert [step.index for step in outcome.steps] == list(range(15))
    assert outcome.reason == "the budget of 12 candidates is spent"
    assert store.run(outcome.run.run_id).status == "finished"
    assert store.steps(outcome.run.run_id) == outcome.steps


def test_what_fails_to_build_is_a_step_and_never_runs(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox(failures=(0, 5))
    outcome = drive(settings, parts(store, sandbox))
    failed = [number_of(s.candidate) for s in outcome.steps if s.evaluation.status == "compile_failed"]
    assert sorted(failed) == [0, 5]
    assert {number for number, _ in sandbox.evaluated}.isdisjoint(failed)
    assert len(outcome.steps) == 12 + 3


def test_the_race_decides_not_the_screening(settings: Settings, store: Store) -> None:
    """Candidate 0 looks fastest when it is screened and turns out wrong in the race; 1 wins."""
    failed = TestResult(tier="again", name="fresh", passed=False)

    class Fickle(ScriptedSandbox):
        def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
            if number_of(built.candidate) == 0 and effort == "race":
                return Wrong(test=failed, tests=(failed,), inspection=doubles.INSPECTION)
            return super().evaluate(built, task, effort)

    outcome = drive(settings, parts(store, Fickle({0: 5.0, 1: 6.0})))
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 1


def test_a_time_beyond_the_roofline_is_no_winner(settings: Settings, store: Store) -> None:
    outcome = drive(settings, parts(store, ScriptedSandbox({3: 0.001, 4: 6.0})))
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 4
    [alarm] = [step for step in outcome.steps if number_of(step.candidate) == 3]
    assert alarm.reward == FLOOR


def test_ends_when_the_roofline_is_near_and_the_baseline_beaten(settings: Settings, store: Store) -> None:
    near_us = roofline_us(TASK, doubles.CHIP)
    sandbox = ScriptedSandbox({5: near_us})
    outcome = drive(settings, parts(store, sandbox))
    assert outcome.reason == "the roofline is near"
    assert set(screened(sandbox)) <= set(range(8)), "the third round is not tried"
    assert [number for number, effort in sandbox.evaluated if effort == "screen"][-1] == 5


def test_ends_when_the_policy_has_nothing_new(settings: Settings, store: Store) -> None:
    outcome = drive(settings, parts(store, ScriptedSandbox(), count=3))
    assert outcome.reason == "the policy has nothing new"
    assert len(outcome.steps) == 3 + 3


class Hesitant(ScriptedPolicy):
    """Proposes nothing in some rounds."""

    def __init__(self, script: Sequence[Candidate], silent: Sequence[int], *, reads_code: bool) -> None:
        super().__init__(script, reads_code=reads_code)
        self._silent = silent

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        written = super().propose(observation, count)
        return [] if observation.round in self._silent else written


@pytest.mark.parametrize(
    ("silent", "reads_code", "rounds", "steps"),
    [((1, 2, 4), True, 6, 12), ((2, 3, 4), True, 4, 4), ((2,), False, 2, 4)],
    ids=["a model may be silent", "not for ever", "a search is exhausted"],
)
def test_rounds_without_a_candidate(
    settings: Settings, store: Store, silent: Sequence[int], reads_code: bool, rounds: int, steps: int
) -> None:
    policy = Hesitant([candidate(number) for number in range(12)], silent, reads_code=reads_code)
    made = replace(parts(store, ScriptedSandbox()), policy=policy)
    outcome = drive(settings.model_copy(update={"build_ahead": False}), made)  # which would ask the policy once more
    assert len(policy.seen) == rounds
    assert len({step.candidate.id for step in outcome.steps}) == steps


def test_repeated_proposals_are_dropped(settings: Settings, store: Store) -> None:
    class Stubborn(ScriptedPolicy):
        def propose(self, _: Observation, __: int) -> list[Candidate]:
            return [candidate(0), candidate(0), candidate(1)]

    events: list[Event] = []
    made = parts(store, ScriptedSandbox())
    outcome = drive(settings, Dependencies(**{**vars(made), "policy": Stubborn([])}), events)
    assert [(e.count, e.dropped) for e in events if isinstance(e, Proposed)] == [(2, 1), (0, 3)]
    assert outcome.reason == "the policy has nothing new"


def test_time_is_spent_and_one_candidate_is_tried_still(settings: Settings, store: Store) -> None:
    hasty = settings.model_copy(update={"minutes": 1e-6})
    sandbox = ScriptedSandbox()
    outcome = drive(hasty, parts(store, sandbox))
    assert outcome.reason == "the time is spent"
    [(first, effort), final] = sandbox.evaluated
    assert (effort, final) == ("screen", (first, "race"))
    assert outcome.best is not None


def test_without_a_gpu_the_best_prediction_leads_and_nothing_is_measured(settings: Settings, store: Store) -> None:
    predictions = {number: 10.0 + number for number in range(12)}
    sandbox = ScriptedSandbox(predictions, can_execute=False)
    outcome = drive(settings, parts(store, sandbox))
    assert outcome.reason == "another round brought no better prediction"
    assert {effort for _, effort in sandbox.evaluated} == {"quick"}
    assert outcome.best is not None
    assert isinstance(outcome.best.evaluation, Unmeasured)
    assert number_of(outcome.best.candidate) == 0
    assert all(step.reward is None for step in outcome.steps)


def test_what_the_emulator_proved_is_not_proved_again_at_the_end(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({number: 20.0 - number for number in range(12)}, emulates=True)
    made = parts(store, sandbox)
    outcome = drive(settings, made)
    assert outcome.reason == "the budget of 12 candidates is spent"
    assert sandbox.evaluated == [(number, "quick") for number in range(12)]
    assert outcome.best is not None
    assert isinstance(outcome.best.evaluation, Unmeasured)
    assert (number_of(outcome.best.candidate), outcome.best.evaluation.verified_by) == (11, "emulator")
    assert isinstance(made.policy, ScriptedPolicy)
    left_s = made.policy.seen[0].seconds_left
    assert left_s is not None
    assert left_s > 45, "no time is kept for measurements that will not be"


@pytest.mark.parametrize("builds", [True, False])
def test_a_policy_sees_whether_the_sandbox_builds_cute(settings: Settings, store: Store, builds: bool) -> None:
    sandbox = ScriptedSandbox()
    sandbox.builds_cutlass = builds
    made = parts(store, sandbox)
    drive(settings, made)
    assert isinstance(made.policy, ScriptedPolicy)
    assert {observation.cutlass for observation in made.policy.seen} == {builds}


def test_an_emulated_run_that_was_interrupted_goes_on_where_it_was(settings: Settings, store: Store) -> None:
    sandbox = Lost(KeyboardInterrupt(), emulates=True)
    made = parts(store, sandbox)
    outcome = drive(settings, made)
    assert (outcome.run.status, len(outcome.steps)) == ("interrupted", 3)
    again = resume_run(store.run(outcome.run.run_id), settings, made, lambda _: None)
    assert again.run.status == "finished"
    assert again.steps[:3] == outcome.steps
    proved = [number for number, _ in sandbox.evaluated]
    assert sorted(proved) == sorted(set(proved)), "none is proved twice"


def test_nothing_passes(settings: Settings, store: Store) -> None:
    hang = TimedOut(stage="verify", limit_s=1.0)
    outcome = drive(settings, parts(store, ScriptedSandbox(outcomes=dict.fromkeys(range(12), hang))))
    assert outcome.best is None
    assert len(outcome.steps) == 12
    assert store.run(outcome.run.run_id).best_candidate_id is None


def test_the_policy_sees_attempts_best_diagnosis_and_hits(settings: Settings, store: Store) -> None:
    made = parts(store, ScriptedSandbox({1: 5.0}, failures=(2,)))
    outcome = drive(settings.model_copy(update={"build_ahead": False}), made)  # so that round 2 knows all of round 1
    assert isinstance(made.policy, ScriptedPolicy)
    first, second, *_ = made.policy.seen
    assert first.attempts == ()
    assert {a.candidate_id: a.status for a in second.attempts}[candidate(2).id] == "compile_failed"
    assert second.best is not None
    assert second.best.id == candidate(1).id
    assert second.diagnosis is not None
    assert outcome.steps[0].candidate.origin.chunk_ids == tuple(hit.chunk.id for hit in first.hits)
    assert outcome.looked_up == first.hits != ()
    assert store.observation(outcome.steps[-1].observation_id).task == TASK


def test_the_query_asks_for_what_is_wrong(settings: Settings, store: Store) -> None:
    made = parts(store, ScriptedSandbox())
    drive(settings, made)
    assert isinstance(made.retriever, ScriptedRetriever)
    assert "occupancy" not in made.retriever.queries[0].words
    assert any("use fewer registers" in query.words for query in made.retriever.queries)


class Lost(ScriptedSandbox):
    """Raises the given error at its fourth evaluation, the given number of times."""

    def __init__(self, error: BaseException, *, emulates: bool = False) -> None:
        super().__init__(emulates=emulates)
        self.error: BaseException | None = error

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if len(self.evaluated) == 3 and self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().evaluate(built, task, effort)


def test_interrupted_ends_cleanly_and_continues(settings: Settings, store: Store) -> None:
    sandbox = Lost(KeyboardInterrupt())
    made = parts(store, sandbox)
    outcome = drive(settings, made)
    assert (outcome.run.status, outcome.reason, len(outcome.steps)) == ("interrupted", "interrupted", 3)
    assert outcome.best is not None
    again = resume_run(store.run(outcome.run.run_id), settings, made, lambda _: None)
    assert again.run.status == "finished"
    assert unprofiled(again.steps[:3]) == unprofiled(outcome.steps)
    assert screened(sandbox) == list(range(12))
    assert again.spent_s > outcome.spent_s


def unprofiled(steps: Sequence[Step]) -> list[Step]:
    """The steps as they were before the end of a round profiled one of them."""
    return [step.model_copy(update={"profile": None, "diagnosis": None, "seconds": {}}) for step in steps]


def test_a_lost_worker_fails_the_run_and_keeps_its_steps(settings: Settings, store: Store) -> None:
    made = parts(store, Lost(WorkerError("the worker does not start")))
    with pytest.raises(WorkerError):
        drive(settings, made)
    [run] = store.runs()
    assert run.status == "failed"
    assert len(store.steps(run.run_id)) == 4, "the candidate in hand is recorded, so that no resume meets it again"
    assert resume_run(run, settings, made, lambda _: None).run.status == "finished"


class Hostile(ScriptedSandbox):
    """Raises at one candidate, whenever it is evaluated with one of the efforts."""

    def __init__(self, error: BaseException, *efforts: Effort) -> None:
        super().__init__({3: 1.5})
        self._error, self._efforts = error, efforts
        self.met = 0

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        if number_of(built.candidate) == 3 and effort in self._efforts:
            self.met += 1
            raise self._error
        return super().evaluate(built, task, effort)


@pytest.mark.parametrize("efforts", [("screen",), ("race", "full")])
@pytest.mark.parametrize("error", [WorkerError("two workers in a row were lost"), ValueError("a bug"), RecursionError()])
def test_a_run_that_failed_on_a_candidate_goes_on_after_it(
    settings: Settings, store: Store, error: Exception, efforts: tuple[Effort, ...]
) -> None:
    sandbox = Hostile(error, *efforts)
    made = parts(store, sandbox)
    with pytest.raises(WorkerError) as caught:
        drive(settings, made)
    assert str(error) in str(caught.value)
    [run] = store.runs()
    assert run.status == "failed"
    last = store.steps(run.run_id)[-1]
    assert (number_of(last.candidate), last.evaluation.status, last.reward) == (3, "crashed", None)
    again = resume_run(run, settings, made, lambda _: None)
    assert again.run.status == "finished"
    assert sandbox.met == len(efforts)
    assert {number_of(step.candidate) for step in again.steps} == set(range(12))
    assert [step.index for step in again.steps] == list(range(len(again.steps)))
    assert again.best is not None


def test_what_the_machine_lacks_is_no_candidates_fault(settings: Settings, store: Store) -> None:
    """A resumed run evaluates the candidate again; the run fails for as long as the machine fails."""
    sandbox = Hostile(MachineError("no space left on the device"), "screen")
    made = parts(store, sandbox)
    with pytest.raises(MachineError):
        drive(settings, made)
    [run] = store.runs()
    assert 3 not in [number_of(step.candidate) for step in store.steps(run.run_id)]
    sandbox._efforts = ("race",)  # the screening works again
    with pytest.raises(MachineError):
        resume_run(run, settings, made, lambda _: None)
    assert sorted(number_of(step.candidate) for step in store.steps(run.run_id)) == list(range(12)), "and no finalist"


def test_a_diagnosis_that_fails_costs_only_itself(settings: Settings, store: Store) -> None:
    def diagnose(*_: object) -> Diagnosis:
        raise KeyError("an opcode that nobody knows")

    outcome = drive(settings, replace(parts(store, ScriptedSandbox()), diagnose=diagnose))
    assert outcome.run.status == "finished"
    assert all(step.diagnosis is None for step in outcome.steps)


def fill_up(store: Store, pages: int) -> Callable[[], None]:
    """Limits the growth of the store's database to some pages, as on a full disk; the returned function lifts the limit."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        [[there]] = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {there + pages}")

    store._engine.dispose()
    event.listen(store._engine, "connect", limit)

    def free() -> None:
        event.remove(store._engine, "connect", limit)
        store._engine.dispose()

    return free


def test_a_full_disk_is_one_message_and_the_run_goes_on_once_there_is_space(settings: Settings, store: Store) -> None:
    made, events = parts(store, ScriptedSandbox({5: 3.0})), list[Event]()
    free = fill_up(store, 1)
    with pytest.raises(StoreError, match="full"):
        drive(settings, made, events)
    free()
    assert [one for one in events if isinstance(one, Notice) and "runs resume" in one.message]
    [run] = store.runs()
    recorded = store.steps(run.run_id)
    assert 0 < len(recorded) < 12
    again = resume_run(run, settings, made, lambda _: None)
    assert again.run.status == "finished"
    assert unprofiled(again.steps[: len(recorded)]) == unprofiled(recorded)
    assert {number_of(step.candidate) for step in again.steps} == set(range(12))


def test_a_full_disk_under_the_checkpoints_is_one_message_too(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, events, connect = parts(store, ScriptedSandbox({5: 3.0})), list[Event](), sqlite3.connect

    def small(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    monkeypatch.setattr("cudal2_agent.agent.run.state.sqlite3.connect", small)
    with pytest.raises(StoreError, match="full"):
        drive(settings, made, events)
    monkeypatch.undo()
    assert [one for one in events if isinstance(one, Notice) and "runs resume" in one.message]
    [run] = store.runs()
    assert run.status == "failed"
    assert resume_run(run, settings, made, lambda _: None).run.status == "finished"
    assert sorted({number_of(step.candidate) for step in store.steps(run.run_id)}) == list(range(12))


def test_without_its_checkpoints_a_run_goes_on_from_its_steps(settings: Settings, store: Store) -> None:
    made = parts(store, Lost(KeyboardInterrupt()))
    outcome = drive(settings, made)
    settings.checkpoint_path.unlink()
    again = resume_run(store.run(outcome.run.run_id), settings, made, lambda _: None)
    assert unprofiled(again.steps[:3]) == unprofiled(outcome.steps)
    assert sorted({number_of(step.candidate) for step in again.steps}) == list(range(12))


def test_time_spent_before_counts(settings: Settings, store: Store) -> None:
    """A resumed run does not get a new time budget."""
    sandbox = Lost(KeyboardInterrupt())
    made = parts(store, sandbox)
    outcome = drive(settings, made)
    spent = settings.model_copy(update={"minutes": outcome.spent_s / 60})
    assert resume_run(store.run(outcome.run.run_id), spent, made, lambda _: None).reason == "the time is spent"


def test_a_finished_run_is_not_resumed(settings: Settings, store: Store) -> None:
    made = parts(store, ScriptedSandbox(), count=1)
    outcome = drive(settings, made)
    with pytest.raises(UsageError, match="has finished"):
        resume_run(outcome.run, settings, made, lambda _: None)


def test_another_chip_is_refused(settings: Settings, store: Store) -> None:
    made = parts(store, Lost(KeyboardInterrupt()))
    run = drive(settings, made).run
    elsewhere = run.model_copy(update={"chip": run.chip.model_copy(update={"name": "A100"})})
    with pytest.raises(UsageError, match="was for A100"):
        resume_run(elsewhere, settings, made, lambda _: None)


def test_two_processes_do_not_work_on_one_run(settings: Settings, store: Store) -> None:
    made = parts(store, Lost(KeyboardInterrupt()))
    run = drive(settings, made).run
    (settings.home / "locks").mkdir(exist_ok=True)
    with FileLock(settings.home / "locks" / f"{run.run_id}.lock"), pytest.raises(UsageError, match="another process"):
        resume_run(run, settings, made, lambda _: None)


def test_corrupt_checkpoints_are_one_line_and_left_alone(settings: Settings, store: Store) -> None:
    settings.checkpoint_path.write_bytes(b"no checkpoints\n" * 500)
    with pytest.raises(StoreError, match="move the file away"):
        drive(settings, parts(store, ScriptedSandbox()))
    assert settings.checkpoint_path.read_bytes() == b"no checkpoints\n" * 500


def test_checkpoints_are_plain_and_go_with_the_run(settings: Settings, store: Store) -> None:
    made = parts(store, Lost(KeyboardInterrupt()))
    run = drive(settings, made).run
    with open_checkpoints(settings.checkpoint_path) as checkpoints:
        saved = checkpoints.get_tuple({"configurable": {"thread_id": run.run_id}})
        assert saved is not None
        json.dumps(saved.checkpoint["channel_values"])
    resume_run(run, settings, made, lambda _: None)
    with open_checkpoints(settings.checkpoint_path) as checkpoints:
        assert checkpoints.get_tuple({"configurable": {"thread_id": run.run_id}}) is None


def test_events_tell_the_run(settings: Settings, store: Store) -> None:
    events: list[Event] = []
    outcome = drive(settings, parts(store, ScriptedSandbox(), count=2), events)
    kinds = [event.event for event in events]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_finished"
    assert kinds.count("step_finished") == len(outcome.steps)
    finished = [event for event in events if isinstance(event, StepFinished)]
    assert finished[0].label == "mma_sync 64x64x32 number=0"


def test_the_agents_own_time_is_recorded_and_small(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox(evaluate_s=1.0)
    outcome = drive(settings, parts(store, sandbox, count=2))
    for step in outcome.steps:
        assert step.seconds["evaluate"] >= 1.0
        assert 0 < step.seconds["agent"] < 1.0


def profiled(outcome: RunResult) -> list[int]:
    return [number_of(step.candidate) for step in outcome.steps if step.profile is not None]


def test_the_leader_of_a_round_is_profiled_once_and_its_step_recorded_anew(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({0: 8.0, 5: 6.0, 9: 7.0}, profile_s=0.5)
    events: list[Event] = []
    outcome = drive(settings.model_copy(update={"profile": "leaders"}), parts(store, sandbox), events)
    assert sandbox.profiled == [0, 5]  # 5 leads at once, but the profiling budget is spent; it is profiled as the winner
    [step] = [step for step in outcome.steps if step.index == 0]
    assert step.profile == doubles.profile(8000.0)
    assert step.diagnosis is not None
    assert (step.diagnosis.basis, step.diagnosis.findings[0].bottleneck) == ("counters", "tail-wave")
    assert store.steps(outcome.run.run_id) == outcome.steps
    said = [(event.candidate_id, event.bottleneck) for event in events if isinstance(event, Profiled)]
    assert said == [(candidate(0).id, "tail-wave"), (candidate(5).id, "tail-wave")]
    assert outcome.best is not None
    assert outcome.best.profile == doubles.profile(6000.0)


def test_a_search_over_schedules_has_its_winner_profiled_alone(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({0: 8.0, 5: 6.0, 9: 7.0})
    outcome = drive(settings, parts(store, sandbox))
    assert sandbox.profiled == [5]
    assert outcome.best is not None
    assert outcome.best.diagnosis is not None
    assert outcome.best.diagnosis.basis == "counters"
    assert store.steps(outcome.run.run_id) == outcome.steps


def test_the_next_round_sees_the_profile_and_what_changed(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.agent.run.counters.SHARE", 1000.0)
    made = parts(store, ScriptedSandbox({0: 8.0, 5: 6.0}))
    policy = made.policy
    assert isinstance(policy, ScriptedPolicy)
    by_rounds = {"profile": "leaders", "build_ahead": False}  # a round that is begun early cannot know the profile before it
    outcome = drive(settings.model_copy(update=by_rounds), made)
    first, second, third = policy.seen[:3]
    assert (first.profile, first.diagnosed, first.differences) == (None, None, ())
    assert (second.profile, second.diagnosed) == (doubles.profile(8000.0), candidate(0).id)
    assert third.diagnosed == candidate(5).id
    assert [(d.before, d.after) for d in third.differences] == [(8000.0, 6000.0)]
    assert third.seconds_left is not None
    assert second.seconds_left is not None
    assert third.seconds_left < second.seconds_left <= 45.0
    assert profiled(outcome)[:2] == [0, 5]
    final = [step for step in outcome.steps if step.index >= 12]
    assert [step.profile is not None for step in final] == [number_of(step.candidate) in (0, 5) for step in final]


def test_a_model_sees_sources_for_contrast_and_failures_and_a_schedule_search_does_not(
    settings: Settings, store: Store
) -> None:
    script = [candidate(number).model_copy(update={"origin": Origin(policy="chat")}) for number in range(12)]
    for reads_code in (True, False):
        sandbox = ScriptedSandbox({number: 20.0 - number for number in range(12)}, failures=(1,))
        policy = ScriptedPolicy(script, reads_code=reads_code)
        made = replace(parts(store, sandbox), policy=policy)
        drive(settings, made)
        last = policy.seen[-1]
        assert bool(last.exemplars) is reads_code
        assert [number_of(failure.candidate) for failure in last.failures] == ([1] if reads_code else [])


def test_what_a_model_wrote_is_profiled_in_every_round(settings: Settings, store: Store) -> None:
    """A model's candidate costs a request; its author needs the counters even when it does not lead."""
    script = [candidate(number).model_copy(update={"origin": Origin(policy="chat")}) for number in range(12)]
    sandbox = ScriptedSandbox({0: 5.0, 5: 7.0, 10: 6.0}, profile_s=0.5)
    drive(settings, replace(parts(store, sandbox), policy=ScriptedPolicy(script, reads_code=True)))
    assert sandbox.profiled == [0, 5, 10]


def test_a_profiler_that_cannot_work_is_said_once_and_the_run_goes_on(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({n: 20.0 - n for n in range(12)}, profile_error=ProfilerUnavailable("no ncu; install it"))
    events: list[Event] = []
    outcome = drive(settings.model_copy(update={"profile": "leaders"}), parts(store, sandbox), events)
    assert outcome.run.status == "finished"
    assert len(sandbox.profiled) == 1
    said = [event.message for event in events if isinstance(event, Notice)]
    assert said == ["no hardware counters: no ncu; install it; the run goes on with times and inspection alone"]
    assert all(step.diagnosis and step.diagnosis.basis == "timed" for step in outcome.steps)


def test_a_candidate_that_cannot_be_profiled_is_not_tried_again(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.agent.run.counters.SHARE", 1000.0)
    sandbox = ScriptedSandbox({2: 5.0, 9: 4.0}, profile_error=ProfileFailed("it hung under ncu"))
    outcome = drive(settings.model_copy(update={"profile": "leaders"}), parts(store, sandbox))
    assert sandbox.profiled == [2, 9]
    assert outcome.run.status == "finished"


@pytest.mark.parametrize("reason", ["off", "no gpu"])
def test_nothing_is_profiled_where_it_is_not_wanted_or_nothing_runs(settings: Settings, store: Store, reason: str) -> None:
    chosen = settings.model_copy(update={"profile": "off"}) if reason == "off" else settings
    sandbox = ScriptedSandbox({3: 5.0}, can_execute=reason == "off")
    drive(chosen, parts(store, sandbox))
    assert sandbox.profiled == []
