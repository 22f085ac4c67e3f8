"""Batches, builds ahead and races: what overlaps, what is recorded, and what a kill or a failure leaves behind."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event as Flag

import pytest

from cudal2_agent.agent.run.batch_build import BatchBuild, RoundProposal
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.run.state import open_checkpoints
from cudal2_agent.contract.errors import MachineError, WorkerError
from cudal2_agent.contract.events import CandidateBuilt, Event, Notice, Proposed, RaceStarted, StepFinished
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Crashed, Evaluation
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Step
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import Store, open_store
from tests import doubles
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, number_of

SCREEN_S, BUILD_S = 0.06, 0.12  # the last candidate is built while the second is screened


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", budget=12, round_size=4, minutes=1.0, finalists=3)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings.store_url)


def parts(store: Store, sandbox: ScriptedSandbox, count: int = 12) -> Dependencies:
    return Dependencies(
        sandbox=sandbox,
        policy=ScriptedPolicy([candidate(number) for number in range(count)]),
        retriever=ScriptedRetriever(),
        store=store,
        diagnose=doubles.diagnose,
        explain=doubles.explain,
    )


def drive(settings: Settings, made: Dependencies, events: list[Event] | None = None) -> RunResult:
    emit = events.append if events is not None else (lambda _: None)
    return start_run(name_run(TASK), TASK, settings, made, emit)


def background() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "batch-build"]


class Slow(ScriptedSandbox):
    """Builds in parallel for BUILD_S each batch, with a little between the candidates, and screens for SCREEN_S each.

    `began`: the numbers of each batch when its build begins, with how many candidates were evaluated by then.
    """

    def __init__(self, times_us: dict[int, float] | None = None, *, fail_batch: int = 0) -> None:
        super().__init__(times_us, evaluate_s=SCREEN_S)
        self.began: list[tuple[list[int], int]] = []
        self._fail_batch = fail_batch

    def build(
        self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: Flag | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        self.began.append(([number_of(one) for one in candidates], len(self.evaluated)))
        if len(self.began) == self._fail_batch:
            raise MachineError("no space left on the device")
        for outcome in super().build(candidates, task):
            if (cancel or Flag()).wait(BUILD_S / len(candidates)):
                return
            yield outcome


@pytest.mark.parametrize("ahead", [True, False])
def test_candidates_are_measured_while_others_are_built_or_round_by_round(
    settings: Settings, store: Store, ahead: bool
) -> None:
    """Searches that share a GPU build nothing ahead, and alternate by whole rounds."""
    events: list[Event] = []
    drive(settings.model_copy(update={"build_ahead": ahead}), parts(store, Slow()), events)
    kinds = [event.event for event in events if isinstance(event, CandidateBuilt | StepFinished)]
    assert (kinds.index("step_finished") < 4) == ahead


def test_the_next_round_is_built_while_this_one_is_measured(settings: Settings, store: Store) -> None:
    sandbox = Slow()
    outcome = drive(settings, parts(store, sandbox))
    assert [sorted(numbers) for numbers, _ in sandbox.began] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert sandbox.began[1][1] < 4, "round 2 begins before round 1 is measured"
    assert sandbox.began[2][1] < 8
    assert sorted(number_of(step.candidate) for step in outcome.steps[:12]) == list(range(12))
    assert {step.round for step in outcome.steps} == {1, 2, 3}
    assert background() == []


def test_what_the_policy_knew_is_recorded_with_a_round_that_was_begun_ahead(settings: Settings, store: Store) -> None:
    made = parts(store, Slow())
    outcome = drive(settings, made)
    assert isinstance(made.policy, ScriptedPolicy)
    seen = {observation.id for observation in made.policy.seen}
    assert {step.observation_id for step in outcome.steps} <= seen
    second = store.observation(next(step.observation_id for step in outcome.steps if step.round == 2))
    assert len(second.attempts) < 4


def test_without_building_ahead_every_round_knows_the_rounds_before(settings: Settings, store: Store) -> None:
    made = parts(store, Slow())
    drive(settings.model_copy(update={"build_ahead": False}), made)
    assert isinstance(made.policy, ScriptedPolicy)
    assert [len(observation.attempts) for observation in made.policy.seen] == [0, 4, 8]


def test_a_round_begun_ahead_that_never_runs_is_not_recorded(settings: Settings, store: Store) -> None:
    """Candidate 0, which is measured last in its round, is so near the roofline that the search ends."""

    class Early(Slow):
        def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
            for position, one in sorted(enumerate(built), key=lambda pair: -number_of(pair[1].candidate)):
                while number_of(one.candidate) == 0 and len(self.began) < 2:
                    time.sleep(0.01)
                yield position, self.evaluate(one, task, "screen")

    sandbox, events = Early({0: roofline_us(TASK, doubles.CHIP)}), list[Event]()
    outcome = drive(settings, parts(store, sandbox), events)
    assert outcome.reason == "the roofline is near"
    assert len(sandbox.began) > 1, "the next round was begun"
    assert {number_of(step.candidate) for step in outcome.steps} <= {0, 1, 2, 3}
    assert len([event for event in events if isinstance(event, Proposed)]) == 1
    assert background() == []


def test_a_failure_of_builds_ahead_ends_the_run_when_their_round_begins(settings: Settings, store: Store) -> None:
    made = parts(store, Slow(fail_batch=2))
    with pytest.raises(MachineError, match="no space"):
        drive(settings, made)
    [run] = store.runs()
    assert sorted(number_of(step.candidate) for step in store.steps(run.run_id)) == [0, 1, 2, 3], "the first round is kept"
    again = resume_run(run, settings, made, lambda _: None)
    assert sorted(number_of(step.candidate) for step in again.steps[:12]) == list(range(12))


def test_a_policy_that_fails_ahead_fails_the_run_where_it_stands(settings: Settings, store: Store) -> None:
    class Broken(ScriptedPolicy):
        def propose(self, observation: Observation, count: int) -> list[Candidate]:
            if self.seen:
                raise WorkerError("the policy is lost")
            return super().propose(observation, count)

    made = replace(parts(store, Slow()), policy=Broken([candidate(number) for number in range(12)]))
    with pytest.raises(WorkerError, match="the policy is lost"):
        drive(settings, made)
    assert len(store.steps(store.runs()[0].run_id)) == 4


def test_an_interrupt_ends_the_builds_in_the_background(settings: Settings, store: Store) -> None:
    class Interrupted(Slow):
        def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
            if self.evaluated:
                raise KeyboardInterrupt
            return super().evaluate(built, task, effort)

        def build(
            self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: Flag | None = None
        ) -> Iterator[tuple[int, Built | Evaluation]]:
            outcomes = super().build(candidates, task, cancel)
            yield next(outcomes)
            yield next(outcomes)
            assert cancel is not None
            cancel.wait(60)

    begin_s = time.monotonic()
    outcome = drive(settings, parts(store, Interrupted()))
    assert (outcome.run.status, len(outcome.steps)) == ("interrupted", 1)
    assert background() == []
    assert time.monotonic() - begin_s < 30


def test_a_sandbox_that_fails_in_the_middle_of_a_batch_costs_one_candidate(settings: Settings, store: Store) -> None:
    class Failing(ScriptedSandbox):
        broken = True

        def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
            for position, one in enumerate(built):
                if self.broken and len(self.evaluated) == 5:
                    self.broken = False
                    raise WorkerError("two workers in a row were lost")
                yield position, self.evaluate(one, task, "screen")

    sandbox = Failing()
    made = parts(store, sandbox)
    with pytest.raises(WorkerError, match="two workers"):
        drive(settings, made)
    [run] = store.runs()
    steps = store.steps(run.run_id)
    assert [isinstance(step.evaluation, Crashed) for step in steps] == [False] * 5 + [True]
    again = resume_run(run, settings, made, lambda _: None)
    screened = [number for number, effort in sandbox.evaluated if effort == "screen"]
    assert sorted([*screened, number_of(steps[-1].candidate)]) == list(range(12)), "nothing is screened twice"
    assert again.best is not None


def test_a_sandbox_that_forgets_a_candidate_fails_the_run(settings: Settings, store: Store) -> None:
    class Forgetful(ScriptedSandbox):
        def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
            return iter(list(super().screen(built, task))[:-1])

    with pytest.raises(WorkerError, match="were not screened"):
        drive(settings, parts(store, Forgetful()))


def test_the_time_limit_holds_in_the_middle_of_a_batch(settings: Settings, store: Store) -> None:
    hasty = settings.model_copy(update={"minutes": 0.5 / 60, "round_size": 12})
    sandbox = ScriptedSandbox(evaluate_s=0.15)
    outcome = drive(hasty, parts(store, sandbox))
    assert outcome.reason == "the time is spent"
    assert 1 <= len([effort for _, effort in sandbox.evaluated if effort == "screen"]) < 6


class Noted(Exception):
    """Stands for a kill: no handler of the run catches it."""


def killed_at(store: Store, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """Ends the run, as a kill would, when it records the step of this index."""
    record = store.record_step

    def ending(step: Step) -> None:
        if step.index == index:
            raise Noted
        record(step)

    monkeypatch.setattr(store, "record_step", ending)


@pytest.mark.parametrize(
    "index", [2, 7, 12, 13, 14], ids=["in a batch", "in round 2", "before", "in", "at the end of the race"]
)
def test_killed_in_a_batch_or_a_race_nothing_recorded_is_measured_again(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    sandbox = ScriptedSandbox({number: 20.0 - number for number in range(12)})
    made = parts(store, sandbox)
    with monkeypatch.context() as patch:
        killed_at(store, patch, index)
        with pytest.raises(Noted):
            drive(settings, made)
    assert background() == []
    [run] = store.runs()
    recorded = store.steps(run.run_id)
    assert len(recorded) == index
    sandbox.evaluated.clear()
    again = resume_run(run, settings, made, lambda _: None)
    assert again.steps[:index][:12] == recorded[:12]
    measured = [(number_of(step.candidate), "race" if step.index >= 12 else "screen") for step in recorded]
    assert set(sandbox.evaluated).isdisjoint(measured)
    assert [number_of(step.candidate) for step in again.steps[12:]] == [11, 10, 9]
    assert again.best is not None
    assert number_of(again.best.candidate) == 11


def test_a_race_that_fails_is_replaced_by_full_measurements(settings: Settings, store: Store) -> None:
    class Unfit(ScriptedSandbox):
        def race(self, built: Sequence[Built], task: GemmTask) -> list[Evaluation]:
            raise WorkerError(f"{len(built)} finalists of {task.shape} were lost")

    events: list[Event] = []
    sandbox = Unfit({number: 20.0 - number for number in range(12)})
    outcome = drive(settings, parts(store, sandbox), events)
    assert sandbox.evaluated[12:] == [(11, "full"), (10, "full"), (9, "full")]
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 11
    assert [event.message for event in events if isinstance(event, Notice)] == [
        "the race failed (3 finalists of 256x256x256 were lost); the finalists are measured one by one"
    ]
    assert [event.count for event in events if isinstance(event, RaceStarted)] == [3]


def test_a_checkpoint_of_an_older_version_is_left_out(settings: Settings, store: Store) -> None:
    """Its graph had other nodes; the run goes on from its steps."""

    class Old(ScriptedSandbox):
        def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
            if self.evaluated:
                raise KeyboardInterrupt
            return super().evaluate(built, task, effort)

    made = parts(store, Old())
    run = drive(settings, made).run
    with open_checkpoints(settings.checkpoint_path) as checkpoints:
        config = {"configurable": {"thread_id": run.run_id, "checkpoint_ns": ""}}
        saved = checkpoints.get_tuple(config)
        assert saved is not None
        saved.checkpoint["channel_values"]["queue"] = []
        checkpoints.put(saved.config, saved.checkpoint, saved.metadata, {})
    again = resume_run(store.run(run.run_id), settings, replace(made, sandbox=ScriptedSandbox()), lambda _: None)
    assert sorted(number_of(step.candidate) for step in again.steps[:12]) == list(range(12))


def test_a_batch_raises_what_its_builds_raised_after_what_they_finished() -> None:
    class Full(ScriptedSandbox):
        def build(
            self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: Flag | None = None
        ) -> Iterator[tuple[int, Built | Evaluation]]:
            yield from islice(super().build(candidates, task, cancel), 2)
            raise MachineError("no space left on the device")

    builds = BatchBuild(Full(), TASK, lambda: RoundProposal([candidate(number) for number in range(3)]))
    delivered: list[int] = []
    while len(delivered) < 2:
        delivered += [one.position for one in builds.ready(wait=True)]
    with pytest.raises(MachineError):
        builds.ready(wait=True)
    assert sorted(delivered) == [1, 2]
    builds.close()
