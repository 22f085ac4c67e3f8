"""The emulator proves a model's kernels before their times count: attacks, unsupported kernels, kills, messages."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.render.run_answer import best_json, best_lines, outcome_json
from cudal2_agent.agent.observe.observation import choose_exemplars
from cudal2_agent.agent.observe.ranking import leader, rank
from cudal2_agent.agent.report.report import render_report
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.history import History
from cudal2_agent.agent.run.lifecycle import name_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.run.witnessing import SecondWitness, known_verdict, proof_fits, unproved_leader, verdict_of
from cudal2_agent.contract.events import Event, StepFinished, Witnessed
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import (
    FULL_SIZE,
    WITNESS,
    CompileFailed,
    Crashed,
    Evaluation,
    LaunchTime,
    Measured,
    Prediction,
    TestResult,
    TimedOut,
    Unmeasured,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.reward import FLOOR, reward
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.chat.prompts.failures import failure_text
from cudal2_agent.store.steps import export_steps, to_line
from cudal2_agent.store.store import Store, open_store
from tests import doubles
from tests.doubles import (
    CHIP,
    INSPECTION,
    PASSED,
    TASK,
    ScriptedPolicy,
    ScriptedRetriever,
    ScriptedSandbox,
    candidate,
    measured,
    number_of,
    step,
    unmeasured,
)

RACE = TestResult(tier="emulator", name="shared-race", passed=False, message="warp 1 reads what warp 0 writes, kernel.cu:7")
FAULT = Wrong(test=RACE, tests=(PASSED, RACE), inspection=INSPECTION)
NOT_KNOWN = unmeasured(20.0).model_copy(update={"reason": "the emulator does not know wgmma.weird (PTX line 9)"})


def free(number: int) -> Candidate:
    """A candidate in the form that a model writes."""
    return candidate(number).model_copy(update={"origin": Origin(policy="chat", prompt_hash="p")})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", budget=12, round_size=4, minutes=1.0, finalists=3)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings.store_url)


def parts(store: Store, sandbox: ScriptedSandbox, script: Sequence[Candidate] | None = None) -> Dependencies:
    return Dependencies(
        sandbox=sandbox,
        policy=ScriptedPolicy(script or [free(number) for number in range(12)], reads_code=True),
        retriever=ScriptedRetriever(),
        store=store,
        diagnose=doubles.diagnose,
        explain=doubles.explain,
    )


def drive(settings: Settings, made: Dependencies, events: list[Event] | None = None) -> RunResult:
    emit = events.append if events is not None else (lambda _: None)
    return start_run(name_run(TASK), TASK, settings, made, emit)


def steps_of(outcome: RunResult, number: int) -> list[Step]:
    return [one for one in outcome.steps if number_of(one.candidate) == number]


def test_a_fast_kernel_that_the_emulator_refutes_earns_the_floor_and_never_leads(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({2: 4.0, 3: 8.0, 5: 7.0}, witness={2: FAULT})
    made, events = parts(store, sandbox), list[Event]()
    outcome = drive(settings, made, events)
    [cheat] = steps_of(outcome, 2)
    assert isinstance(cheat.evaluation, Wrong)
    assert (cheat.reward, cheat.evaluation.test.tier, cheat.evaluation.test.name) == (FLOOR, WITNESS, "shared-race")
    assert RACE.message in cheat.evaluation.test.message
    assert cheat.evaluation.refused == measured(4.0, effort="quick"), "its times are kept beside the fault"
    assert cheat.diagnosis is None
    assert (2, "race") not in sandbox.evaluated
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 5
    leaders = {event.best_candidate_id for event in events if isinstance(event, StepFinished | Witnessed)}
    assert free(2).id not in leaders
    assert store.steps(outcome.run.run_id) == outcome.steps


def test_the_predicted_parts_stand_beside_the_measured_time_of_every_step_of_a_proved_kernel(
    settings: Settings, store: Store
) -> None:
    modelled = Prediction(
        predicted_us=3.0, model="timing-model", floor_us=1.0, launches=(LaunchTime(entry="gemm", parts={"main loop": 3.0}),)
    )
    proof = unmeasured(3.0, "emulator").model_copy(update={"prediction": modelled})
    outcome = drive(settings, parts(store, ScriptedSandbox({2: 4.0}, witness={2: proof})))
    quick, raced = steps_of(outcome, 2)
    for one in (quick, raced):
        assert isinstance(one.evaluation, Measured)
        assert one.evaluation.modelled == modelled
    assert raced.evaluation.time_us != quick.evaluation.time_us
    others = [one.evaluation for one in outcome.steps if number_of(one.candidate) == 3]
    assert all(isinstance(each, Measured) and each.modelled is None for each in others)


def test_a_refused_kernel_comes_back_to_its_author_with_the_emulators_words(settings: Settings, store: Store) -> None:
    made = parts(store, ScriptedSandbox({2: 4.0}, witness={2: FAULT}))
    drive(settings, made)
    assert isinstance(made.policy, ScriptedPolicy)
    second = made.policy.seen[1]
    [failure] = second.failures
    assert failure.candidate.id == free(2).id
    [attempt] = [one for one in second.attempts if one.candidate_id == free(2).id]
    assert (attempt.status, attempt.time_us, attempt.reward) == ("wrong", None, FLOOR)
    assert attempt.message.startswith(f"witness/shared-race: {RACE.message}")
    assert second.best is not None
    assert second.best.id != free(2).id
    assert all(exemplar.candidate.id != free(2).id for exemplar in second.exemplars)


@pytest.mark.parametrize(
    "refused",
    [
        Crashed(stage="verify", message="CUDA_ERROR_ILLEGAL_INSTRUCTION"),
        TimedOut(stage="verify", limit_s=10.0),
        Wrong(test=PASSED.model_copy(update={"passed": False}), tests=(), inspection=INSPECTION),
    ],
)
def test_the_cause_of_what_a_gpu_refused_is_looked_for_once(refused: Evaluation, settings: Settings, store: Store) -> None:
    """Its author is told the emulator's words beside the GPU's."""
    sandbox = ScriptedSandbox({1: 5.0}, outcomes={0: refused, 2: refused}, witness={0: FAULT})
    made = parts(store, sandbox, [free(number) for number in range(8)])
    outcome = drive(settings.model_copy(update={"budget": 8}), made)
    [told], [silent] = steps_of(outcome, 0), steps_of(outcome, 2)
    assert told.evaluation == refused.model_copy(update={"emulated": RACE})
    assert silent.evaluation == refused
    assert (sandbox.witnessed.count(0), sandbox.witnessed.count(2)) == (1, 1)
    assert RACE.message in failure_text(told.evaluation, free(0).source, 500)
    assert "emulated" not in silent.evaluation.model_dump()
    assert store.steps(outcome.run.run_id) == outcome.steps


def test_no_cause_is_looked_for_where_the_emulator_gave_the_verdict(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox(outcomes={0: FAULT}, emulates=True, can_execute=False)
    drive(settings.model_copy(update={"budget": 4}), parts(store, sandbox, [free(number) for number in range(4)]))
    assert sandbox.witnessed == []


def test_where_all_of_a_round_are_refuted_none_leads(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox(witness=dict.fromkeys(range(12), FAULT))
    outcome = drive(settings, parts(store, sandbox))
    assert sandbox.witnessed == list(range(12)), "each makes way for the next, and each is proved once"
    assert outcome.best is None
    assert {one.reward for one in outcome.steps} == {FLOOR}
    assert len(outcome.steps) == 12, "nothing is left to be measured in full"


def test_only_the_best_is_proved_and_only_what_is_proved_is_rewarded(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({1: 9.0, 5: 7.0, 10: 8.0})
    outcome = drive(settings, parts(store, sandbox))
    assert sandbox.witnessed == [1, 5]
    rewarded = {number_of(one.candidate) for one in outcome.steps if one.reward is not None}
    assert rewarded == {1, 5}
    for one in outcome.steps:
        if number_of(one.candidate) in rewarded:
            assert isinstance(one.evaluation, Measured)
            assert one.evaluation.witness == Witness(status="agreed", tests=(PASSED,))
            assert one.reward == reward(one.evaluation, TASK, CHIP, one.candidate.origin)
    final = outcome.steps[12:]
    assert [number_of(one.candidate) for one in final] == [5, 10, 1], "unproved ones are measured again and may win"
    assert [one.reward is not None for one in final] == [True, False, True]
    assert "witness" in steps_of(outcome, 5)[0].seconds
    assert "witness" not in final[0].seconds, "the time is counted once"


def test_a_finalist_is_proved_before_it_wins(settings: Settings, store: Store) -> None:
    """Candidate 5 is proved in the search; 10, slower there, is the fastest in full, and the emulator refutes it."""

    class Turning(ScriptedSandbox):
        def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
            evaluation = super().evaluate(built, task, effort)
            return measured(3.0) if effort == "race" and number_of(built.candidate) == 10 else evaluation

    for verdict, winner in ((FAULT, 5), (unmeasured(20.0, "emulator"), 10)):
        sandbox = Turning({5: 7.0, 10: 8.0}, witness={10: verdict})
        outcome = drive(settings, parts(store, sandbox))
        assert sandbox.witnessed == [0, 5, 10]
        assert outcome.best is not None
        assert number_of(outcome.best.candidate) == winner
        searched, final = steps_of(outcome, 10)
        assert type(searched.evaluation) is type(final.evaluation), "every step of the candidate has the verdict"
        assert (searched.reward == final.reward == FLOOR) is (winner == 5)
        assert outcome.best.reward is not None


def test_without_an_emulator_the_time_stays_and_the_reward_is_withheld(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({5: 7.0}, witness=dict.fromkeys(range(12), NOT_KNOWN))
    outcome = drive(settings, parts(store, sandbox))
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 5
    assert {one.reward for one in outcome.steps} == {None}
    assert isinstance(outcome.best.evaluation, Measured)
    assert outcome.best.evaluation.witness == Witness(status="unavailable", reason=NOT_KNOWN.reason)
    said = f"not proved by a second witness: {NOT_KNOWN.reason}"
    assert best_lines(outcome.best)[-1] == f"witness: {said}; its time earns no reward"
    answer = best_json(outcome.best)
    assert (answer["confirmed"], answer["reward"]) == (False, None)
    report = render_report(outcome, Path("out"))
    assert f"Second witness: {said}." in report
    assert f"- the best candidate is {said}; its time earns no reward" in report


@pytest.mark.parametrize("origin", ["schedule", "emulated"])
def test_nothing_is_proved_twice_over(settings: Settings, store: Store, origin: str) -> None:
    """No proof for the trusted writer's kernels, and none on a machine where the emulator verified first."""
    script = [candidate(number) if origin == "schedule" else free(number) for number in range(12)]
    sandbox = ScriptedSandbox({5: 7.0}, emulates=origin == "emulated")
    outcome = drive(settings, parts(store, sandbox, script))
    assert sandbox.witnessed == []
    assert not any(one.evaluation.witness for one in outcome.steps if isinstance(one.evaluation, Measured))
    if origin == "schedule":
        assert all(one.reward is not None for one in outcome.steps)


def test_a_models_best_is_proved_though_a_schedule_leads(settings: Settings, store: Store) -> None:
    script = [candidate(0), free(1), free(2), candidate(3)]
    sandbox = ScriptedSandbox({0: 5.0, 1: 9.0, 2: 8.0})
    outcome = drive(settings, parts(store, sandbox, script))
    assert sandbox.witnessed == [2]
    assert steps_of(outcome, 2)[0].reward is not None
    assert steps_of(outcome, 1)[0].reward is None
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 0


def test_an_unproved_time_near_the_roofline_ends_no_search(settings: Settings, store: Store) -> None:
    near_us = roofline_us(TASK, CHIP)
    refuted = drive(settings, parts(store, ScriptedSandbox({2: near_us}, witness={2: FAULT})))
    assert refuted.reason == "the budget of 12 candidates is spent"
    agreed = ScriptedSandbox({2: near_us})
    assert drive(settings, parts(store, agreed)).reason == "the roofline is near"
    assert [number for number, effort in agreed.evaluated if effort == "quick"] == [0, 1, 2, 3]


class Interrupted(ScriptedSandbox):
    """A proof is interrupted before or after the emulator answers."""

    def __init__(self, times_us: dict[int, float], witness: dict[int, Evaluation] | None = None) -> None:
        super().__init__(times_us, witness=witness)
        self.interrupt = True

    def witness(self, built: Built, task: GemmTask) -> Evaluation:
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        return super().witness(built, task)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("verdict", [None, FAULT])
def test_killed_between_measurement_and_proof_it_is_proved_after_the_resume(
    settings: Settings, store: Store, verdict: Evaluation | None, checkpoints: bool
) -> None:
    sandbox = Interrupted({1: 5.0}, {1: verdict} if verdict else None)
    made = parts(store, sandbox)
    outcome = drive(settings, made)
    assert (outcome.run.status, len(outcome.steps)) == ("interrupted", 4)
    assert {one.reward for one in outcome.steps} == {None}, "no reward before the proof"
    assert outcome.best is not None
    assert best_lines(outcome.best)[-1] == "witness: not proved by a second witness; its time earns no reward"
    if not checkpoints:
        settings.checkpoint_path.unlink()
    again = resume_run(store.run(outcome.run.run_id), settings, made, lambda _: None)
    assert again.run.status == "finished"
    assert sandbox.witnessed.count(1) == 1
    assert [number for number, effort in sandbox.evaluated if effort == "quick"] == list(range(12))
    first = steps_of(again, 1)[0]
    assert (first.reward == FLOOR) is (verdict is not None)
    assert first.reward is not None
    assert again.best is not None
    assert (number_of(again.best.candidate) == 1) is (verdict is None)


@pytest.mark.parametrize("verdict", [FAULT, unmeasured(20.0, "emulator"), NOT_KNOWN])
def test_a_verdict_recorded_with_one_step_is_not_asked_for_again(store: Store, verdict: Evaluation) -> None:
    """The state that a kill leaves between the two steps of a candidate: only one of them has the verdict."""
    run = doubles.run_record()
    store.start_run(run)
    store.record_observation(run.run_id, doubles.OBSERVATION)
    sandbox, history, clock = ScriptedSandbox(witness={1: verdict}), History(store, run), RunClock()
    prover = SecondWitness(run, sandbox, history, clock, lambda _: None)
    built = Built(candidate=free(1), inspection=INSPECTION, artifact_path="", cached=True, seconds=0.0)
    history.add(step(0, candidate=free(1), evaluation=measured(5.0)))
    prover.prove(history.steps[0], built)
    history.add(step(1, candidate=free(1), evaluation=measured(5.5)))
    unproved = unproved_leader(history.ranked)
    assert unproved == history.steps[1]
    prover.prove(unproved, built)
    assert sandbox.witnessed == [1]
    assert unproved_leader(history.ranked) is None
    assert store.steps(run.run_id) == history.steps
    assert [known_verdict(free(1).id, [one]) for one in history.ranked] == [verdict_of(verdict)] * 2


def test_a_kernel_that_does_not_build_any_more_is_not_asked_about_for_ever(store: Store) -> None:
    run, events = doubles.run_record(), list[Event]()
    store.start_run(run)
    store.record_observation(run.run_id, doubles.OBSERVATION)
    history = History(store, run)
    history.add(step(0, candidate=free(1), evaluation=measured(5.0)))
    SecondWitness(run, ScriptedSandbox(), history, RunClock(), events.append).prove(history.steps[0], None)
    assert unproved_leader(history.ranked) is None
    [event] = events
    assert isinstance(event, Witnessed)
    assert isinstance(event.evaluation, Measured)
    assert event.evaluation.witness == Witness(status="unavailable", reason="the kernel could not be built again")
    assert event.reward is None


def test_a_proof_takes_its_own_time_also_late_in_a_run(store: Store) -> None:
    run, events, now_s = doubles.run_record(), list[Event](), [7.0]
    store.start_run(run)
    store.record_observation(run.run_id, doubles.OBSERVATION)

    class Slow(ScriptedSandbox):
        def witness(self, built: Built, task: GemmTask) -> Evaluation:
            now_s[0] += 2.5
            return super().witness(built, task)

    history, clock = History(store, run), RunClock(base_s=100.0, now_s=lambda: now_s[0])
    history.add(step(0, candidate=free(1), evaluation=measured(5.0)))
    built = Built(candidate=free(1), inspection=INSPECTION, artifact_path="", cached=True, seconds=0.0)
    SecondWitness(run, Slow(), history, clock, events.append).prove(history.steps[0], built)
    [event] = events
    assert isinstance(event, Witnessed)
    assert event.seconds == history.steps[0].seconds["witness"] == 2.5
    assert clock.spent_s() == 102.5


def test_the_time_that_proofs_take_counts_and_is_shown(settings: Settings, store: Store) -> None:
    class Slow(ScriptedSandbox):
        def witness(self, built: Built, task: GemmTask) -> Evaluation:
            time.sleep(0.3)
            return super().witness(built, task)

    events: list[Event] = []
    outcome = drive(settings, parts(store, Slow({1: 5.0})), events)
    [event] = [event for event in events if isinstance(event, Witnessed)]
    assert (event.candidate_id, event.best_candidate_id) == (free(1).id, free(1).id)
    assert event.seconds >= 0.3
    proved = steps_of(outcome, 1)[0]
    assert proved.seconds["witness"] == event.seconds
    attempt = rank(proved, TASK, CHIP).attempt
    assert attempt.seconds == pytest.approx(sum(proved.seconds.values()) - event.seconds - proved.seconds["profile"])
    assert sum(one.seconds["agent"] for one in outcome.steps) < outcome.spent_s - 0.3


def test_the_answer_the_report_and_the_export_tell_of_a_refused_kernel(settings: Settings, store: Store) -> None:
    outcome = drive(settings, parts(store, ScriptedSandbox({2: 4.0}, witness={2: FAULT})))
    [refused] = json.loads(json.dumps(outcome_json(outcome, Path("out"))))["refused"]
    assert (refused["candidate_id"], refused["time_us"]) == (free(2).id, 4.0)
    assert RACE.message in refused["message"]
    report = render_report(outcome, Path("out"))
    assert "## Refused by the second witness" in report
    assert "| 4.00 | shared-race |" in report
    assert "measured, not proved by a second witness" in report
    lines = [json.loads(to_line(one)) for one in export_steps(store.trajectory(outcome.run.run_id))]
    [line] = [one for one in lines if one["evaluation"]["status"] == "wrong"]
    assert line["evaluation"]["refused"]["timing"]["samples_us"] == [4.0] * 5
    assert line["reward"] == FLOOR
    agreed = [one for one in lines if (one["evaluation"].get("witness") or {}).get("status") == "agreed"]
    assert agreed
    assert all(one["reward"] is not None for one in agreed)


def test_the_notes_of_a_measurement_stand_in_the_answer() -> None:
    weakened = measured(5.0).model_copy(update={"notes": ("inputs were not read-only: no such mapping",)})
    best = step(0, evaluation=weakened)
    assert "note: inputs were not read-only: no such mapping" in best_lines(best)
    assert best_json(best)["notes"] == list(weakened.notes)


def timed(index: int, time_us: float, witness: Witness | None = None, **changes: object) -> Step:
    evaluation = measured(time_us).model_copy(update={"witness": witness})
    return step(index, candidate=free(index), evaluation=evaluation, **changes)


def leading(*steps: Step) -> int | None:
    best = leader([rank(one, TASK, CHIP) for one in steps])
    return best.step.index if best else None


def test_an_unproved_kernel_leads_only_where_nothing_else_was_measured() -> None:
    agreed = Witness(status="agreed")
    assert leading(timed(0, 9.0, agreed), timed(1, 5.0)) == 0
    assert leading(timed(0, 9.0), timed(1, 5.0)) == 1
    assert leading(step(0, evaluation=measured(9.0)), timed(1, 5.0), timed(2, 7.0, agreed)) == 2
    assert leading(timed(0, 9.0, agreed), timed(1, 5.0, Witness(status="unavailable", reason="no core"))) == 1


def test_a_step_of_a_version_without_witnesses_keeps_its_reward_and_its_lead() -> None:
    old = timed(1, 5.0, reward=0.5)
    assert leading(step(0, evaluation=measured(9.0)), old) == 1
    ranked = [rank(old, TASK, CHIP)]
    assert unproved_leader(ranked) == old, "a resumed run asks for the proof that it lacks"


def test_an_unproved_kernel_is_no_exemplar_where_it_is_faster_than_the_proved_ones() -> None:
    steps = (step(0, 0, evaluation=measured(9.0)), timed(1, 5.0), timed(2, 12.0))
    ranked = [rank(one, TASK, CHIP) for one in steps]
    shown = {number_of(one.candidate) for seed in range(20) for one in choose_exemplars(ranked, 3, seed)}
    assert shown == {0, 2}


def test_a_proof_must_fit_in_the_time_but_for_the_first() -> None:
    proved = rank(timed(0, 9.0, seconds={"witness": 4.0}), TASK, CHIP)
    assert proof_fits([], -1.0)
    assert proof_fits([proved], 4.5)
    assert not proof_fits([proved], 3.5)


SAMPLE = TestResult(tier="emulator", name=FULL_SIZE, passed=True, message="12 of 64 clusters")


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (unmeasured(1.0, "emulator"), "agreed", ""),
        (unmeasured(1.0, "emulator").model_copy(update={"tests": (PASSED, SAMPLE)}), "in-part", ""),
        (NOT_KNOWN, "unavailable", "the emulator does not know wgmma.weird"),
        (unmeasured(1.0), "unavailable", "did not execute"),
        (Crashed(stage="verify", message="the worker ended: killed"), "unavailable", "while verify: the worker ended"),
        (TimedOut(stage="verify", limit_s=180.0, message="in exact/wide"), "unavailable", "more than 180 s, in exact/wide"),
        (CompileFailed(message="no", log=""), "unavailable", "no verdict: no"),
        (measured(5.0), "unavailable", "no verdict: measured"),
    ],
    ids=lambda value: value.status if isinstance(value, Unmeasured) else str(value)[:12],
)
def test_only_an_executed_proof_is_a_verdict(said: Evaluation, status: str, reason: str) -> None:
    verdict = verdict_of(said)
    assert isinstance(verdict, Witness)
    assert verdict.status == status
    assert reason in verdict.reason
    assert verdict.confirms is (status != "unavailable")
