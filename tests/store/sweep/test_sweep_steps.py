"""The sweep form of a step: what it holds comes back, to 1 ns; what it does not hold is empty."""

import math

import pytest

from cudal2_agent.contract.records.candidate import HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import (
    FULL_SIZE,
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    SideFigures,
    Telemetry,
    TestResult,
    TimedOut,
    Timing,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.trajectory import Step, Trajectory
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.store.incoming import IncomingStep
from cudal2_agent.store.sweep.sweep_reading import SweepReader
from cudal2_agent.store.sweep.sweep_steps import compact, reduced, restored, seen_in
from tests.doubles import ENVIRONMENT, INSPECTION, OBSERVATION, diagnose, measured, profile, run_record, step, unmeasured
from tests.store.small_store import lines_in, read_back

UNICODE = "Ünïcode ✗ \u202e\u0000\u2028 🧨 'quotes' \"double\" \\ back"
TEST = TestResult(tier="exact", name="zero-one", passed=False, worst=math.nan, message=UNICODE, seed=7)


def there_and_back(given: Step) -> Step:
    [back] = read_back([Trajectory(run=run_record(), observations={}, steps=(given,))])
    return back


@pytest.mark.parametrize(
    "evaluation",
    [
        Rejected(rule="no-asm", message=UNICODE, line=3),
        CompileFailed(message="error: a\n  b", log="long"),
        Crashed(stage="timing", message=UNICODE),
        Crashed(stage="timing", message="lost", inspection=INSPECTION),
        TimedOut(stage="verification", limit_s=math.inf),
        Wrong(test=TEST, tests=(TEST,), inspection=INSPECTION),
        Wrong(test=TEST.model_copy(update={"worst": -math.inf}), tests=(), inspection=INSPECTION, refused=measured(4.0)),
        unmeasured(3.25),
        unmeasured(3.25, "emulator"),
        measured(5.0),
        measured(5.0, baselines=()),
        measured(5.0).model_copy(update={"effort": "race", "plain": Timing(name="plain", samples_us=(6.00049, 7.5))}),
    ],
    ids=lambda evaluation: evaluation.status,
)
def test_every_outcome_comes_back(evaluation: Evaluation) -> None:
    given = reduced(step(0, evaluation=evaluation, reward=-2.0))
    back = there_and_back(given)
    assert back.evaluation.fault == evaluation.fault
    assert back.evaluation.headline == evaluation.headline
    assert back.model_dump_json(exclude={"observation_id"}) == given.model_dump_json(exclude={"observation_id"})


def test_samples_are_whole_nanoseconds_and_never_zero() -> None:
    exact = measured(5.0).model_copy(
        update={
            "timing": Timing(name="candidate", samples_us=(3.86254527352073, 0.0001, 1692.9996)),
            "baselines": (Timing(name="cublas", samples_us=(3.6963214, 4.0, 5.0), detail="layout nn"),),
            "side": SideFigures(hot_l2_us=2.71828),
        }
    )
    back = there_and_back(step(0, evaluation=exact)).evaluation
    assert isinstance(back, Measured)
    assert back.timing.samples_us == (3.863, 0.001, 1693.0)
    assert back.baselines == (Timing(name="cublas", samples_us=(3.696, 4.0, 5.0), detail="layout nn"),)
    assert back.side == SideFigures(hot_l2_us=2.718)
    assert ratio_over(back, "cublas") == 3.696 / 3.863


def test_the_reward_is_exact_and_one_that_is_withheld_stays_empty() -> None:
    assert there_and_back(step(0, reward=0.1 + 0.2)).reward == 0.1 + 0.2
    assert there_and_back(step(0, reward=None)).reward is None


def test_what_is_not_held_is_empty() -> None:
    full = measured(5.0).model_copy(
        update={
            "telemetry": Telemetry(sm_clock_mhz=(1980.0,)),
            "notes": ("noisy",),
            "witness": Witness(status="agreed", tests=(TEST,)),
        }
    )
    given = step(0, evaluation=full, profile=profile(), diagnosis=diagnose(None, None, None, full))  # type: ignore[arg-type]
    back = there_and_back(given)
    assert isinstance(back.evaluation, Measured)
    assert back.diagnosis is None
    assert back.profile is None
    assert back.evaluation.telemetry == Telemetry()
    assert back.evaluation.tests == ()
    assert back.evaluation.inspection.opcodes == {}
    assert back.evaluation.inspection.kernels == INSPECTION.kernels
    assert back.evaluation.notes == ("noisy",)
    assert back.evaluation.witness == Witness(status="agreed")
    assert back.evaluation.environment == ENVIRONMENT
    assert back.evaluation.timing.name == given.candidate.id


def test_that_a_large_task_was_run_in_part_is_held() -> None:
    part = TestResult(tier="emulator", name=FULL_SIZE, passed=True)
    evaluation = unmeasured(3.0, "emulator").model_copy(update={"tests": (*unmeasured(3.0, "emulator").tests, part)})
    back = there_and_back(step(0, evaluation=evaluation))
    assert back.evaluation.headline == "verified by the emulator in part"
    assert back.evaluation.tests == (part,)


def test_a_fault_is_one_line_of_200_characters() -> None:
    told = there_and_back(step(0, evaluation=CompileFailed(message="a\n b\t" + "c" * 300, log=""))).evaluation
    assert isinstance(told, CompileFailed)
    assert told.message == "a b " + "c" * 195 + "…"


@pytest.mark.parametrize(
    "origin",
    [
        Origin(policy="chat", prompt_hash="abc", parents=("1", "2"), note=UNICODE, seconds=0.25),
        Origin(policy="schedule", schedule={"family": "mma_sync", "wide": True, "tile": 1, "epilogue": "none"}),
        Origin(policy="schedule", schedule={}),
    ],
)
def test_candidates_come_back_whole(origin: Origin) -> None:
    given = step(0).candidate.model_copy(update={"origin": origin, "source": f"// {UNICODE}\n", "flags": ("-O3",)})
    back = there_and_back(step(0, candidate=given)).candidate
    assert back == given
    assert back.id == given.id
    assert back.origin.schedule is None or [type(one) for one in back.origin.schedule.values()] == [
        type(one) for one in (origin.schedule or {}).values()
    ]


def test_a_host_candidate_comes_back() -> None:
    host = HostCandidate(source="int launch();", include_dirs=("/include",), origin=Origin(policy="host"))
    assert there_and_back(step(0, candidate=host)).candidate == host


def test_times_of_day_and_seconds_are_whole_milliseconds() -> None:
    given = step(0, created_at="2026-11-21T12:00:03.123567Z", seconds={"build": 0.48222, "agent": 0.0004})
    back = there_and_back(given)
    assert back.created_at.isoformat() == "2026-11-21T12:00:03.124000+00:00"
    assert back.seconds == {"build": 0.482, "agent": 0.0}


def test_the_observation_is_that_of_its_round_without_attempts() -> None:
    reader = SweepReader()
    records = [
        one for line in lines_in([Trajectory(run=run_record(), observations={}, steps=(step(0),))]) for one in reader.read(line)
    ]
    [incoming] = [one for one in records if isinstance(one, IncomingStep)]
    assert incoming.observation == OBSERVATION
    assert incoming.step.observation_id == OBSERVATION.id


def test_a_line_that_names_what_is_not_declared_is_refused() -> None:
    given, run = reduced(step(0)), run_record()
    line = compact(given, run, None, 0)
    with pytest.raises(ValueError, match="names axes 0, which no line before it declares"):
        restored(line, run, seen_in(run, 1).id, (), (), ())
