"""What a worker does with a batch, over a scripted GPU: screens, races, and what each candidate's fault costs."""

from types import SimpleNamespace

import pytest

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    Crashed,
    Measured,
    SideFigures,
    Telemetry,
    TestResult,
    Timing,
    Wrong,
)
from cudal2_agent.contract.settings.options import RACE_TIME, SCREEN_TIME, VerifyOptions
from cudal2_agent.sandbox.cuda import batch_evaluator
from cudal2_agent.sandbox.cuda import evaluator as evaluator_module
from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
from cudal2_agent.sandbox.cuda.driver import DriverFault
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from cudal2_agent.sandbox.workers.messages import CandidateBatch, StageEntered, Tuned
from tests.doubles import ENVIRONMENT, INSPECTION, PLAN, TASK

PASSED = TestResult(tier="exact", name="zero-one", passed=True)
FAILED = TestResult(tier="exact", name="wide-sums", passed=False)
REFUSED = DriverFault("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "invalid argument")
ILLEGAL = DriverFault("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")
KEPT = TunedBaseline(task=TASK, environment="e", layout="nn", algorithm="00", detail="d", suggestions=1, time_us=1.0)


def measurement(name):
    timing, baseline = (Timing(name=each, samples_us=(5.0, 6.0)) for each in (name, AUTOTUNED))
    return SimpleNamespace(
        timing=timing, plain=None, baselines=(baseline,), side=SideFigures(), telemetry=Telemetry(), ruler=None, notes=()
    )


class ScriptedGpu:
    """`script`: for a candidate's source, what each stage does: a fault to raise, or `wrong`."""

    def __init__(self, monkeypatch, script, *, large=False):
        self.script, self.said, self.done, self.closed, self.prepared = script, [], [], [], []
        self.environment, self.pci_bus_id, self.stuck_with, self.tuned = ENVIRONMENT, "0", None, None
        self.pool = SimpleNamespace(free_all_blocks=lambda: None)
        self.memory = []  # who takes it, and who gives it back
        timer = SimpleNamespace(
            expect=self.expect, new_tuning=self.new_tuning, close=lambda: self.memory.append("timer closed")
        )
        verifier = SimpleNamespace(
            prepare=lambda _options, *, briefly: self.prepared.append(briefly),
            screen=self._tests("screen"),
            verify=self._tests("verify"),
            recheck=lambda *a: self._tests("recheck")(*a)[-1],
            release=lambda: self.memory.append("verifier released"),
            large=large,
        )
        monkeypatch.setattr(evaluator_module, "load", self._load)
        monkeypatch.setattr(evaluator_module, "Verifier", lambda _task, _device: verifier)
        monkeypatch.setattr(evaluator_module, "Timer", lambda _task, _device: timer)
        gpu = self

        class Rounds:
            def __init__(self, _timer, _task, _pci_bus_id, options):
                assert options in (SCREEN_TIME, RACE_TIME)
                self.entered = {}
                gpu.memory.append("rounds opened")

            def measure(self, contender, *, trusted):
                gpu.act("time", contender.name)
                gpu.done.append(("trusted" if trusted else "untrusted", contender.name))
                return measurement(contender.name)

            def enter(self, position, contender):
                gpu.act("enter", contender.name)
                self.entered[position] = contender

            def run(self, attempt):
                held = [
                    (position, one)
                    for position, one in self.entered.items()
                    if attempt(position, lambda one=one: gpu.act("time", one.name))
                ]
                return {position: measurement(one.name) for position, one in held}

            def close(self):
                self.entered = {}

        class Screen(Rounds):
            pass

        class Race(Rounds):
            pass

        monkeypatch.setattr(batch_evaluator, "ScreenTimer", Screen)
        monkeypatch.setattr(batch_evaluator, "RaceTimer", Race)

    def act(self, stage, name):
        what = self.script.get(name, {}).get(stage)
        if isinstance(what, Exception):
            if what is ILLEGAL:
                self.stuck_with = ILLEGAL
            raise what
        return what

    def expect(self, known):
        self.tuned = KEPT if known is None else None

    def new_tuning(self):
        tuned, self.tuned = self.tuned, None
        return tuned

    def poison(self):
        return self.stuck_with

    def synchronize(self):
        pass

    def _tests(self, stage):
        def tests(contender, _options):
            self.done.append((stage, contender.name))
            self.memory.append(stage)
            return (FAILED,) if self.act(stage, contender.name) == "wrong" else (PASSED,)

        return tests

    def _load(self, built, *_):
        name = built.candidate.source
        self.act("load", name)
        return SimpleNamespace(name=name, workspace_bytes=0, close=lambda: self.closed.append(name))


@pytest.fixture
def run(monkeypatch):
    def make(effort, *names, script=None, untrusted=(), tuned=None, large=False):
        gpu = ScriptedGpu(monkeypatch, script or {}, large=large)
        evaluator = BatchEvaluator(gpu, gpu.said.append)
        built = []
        for name in names:
            origin = Origin(policy="test", schedule=None if name in untrusted else {"family": "x"})
            candidate = Candidate(source=name, plan=PLAN, origin=origin)
            built.append(Built(candidate=candidate, inspection=INSPECTION, artifact_path="x", cached=True, seconds=0))
        time = SCREEN_TIME if effort == "screen" else RACE_TIME
        request = CandidateBatch(effort=effort, built=tuple(built), task=TASK, verify=VerifyOptions(), time=time, tuned=tuned)
        return {one.position: one for one in evaluator.batch(request)}, gpu

    return make


def test_a_screen_is_brief_for_trusted_writers_and_whole_for_others(run):
    done, gpu = run("screen", "a", "b", untrusted=("b",))
    assert [type(one.evaluation) for one in done.values()] == [Measured, Measured]
    assert gpu.done == [("screen", "a"), ("trusted", "a"), ("verify", "b"), ("untrusted", "b"), ("recheck", "b")]
    assert {one.evaluation.effort for one in done.values()} == {"screen"}
    assert gpu.closed == ["a", "b"]
    stages = [(one.stage, one.position) for one in gpu.said if isinstance(one, StageEntered)]
    assert stages[:4] == [("prepare", 0), ("load", 0), ("verify", 0), ("time", 0)]
    assert stages[4:] == [("load", 1), ("verify", 1), ("time", 1), ("recheck", 1)]


@pytest.mark.parametrize("effort", ["screen", "race"])
def test_a_new_tuning_is_told_and_a_kept_one_is_not(run, effort):
    assert [one for one in run(effort, "a")[1].said if isinstance(one, Tuned)] == [Tuned(baseline=KEPT)]
    assert not [one for one in run(effort, "a", tuned=KEPT)[1].said if isinstance(one, Tuned)]


@pytest.mark.parametrize(
    ("stage", "what", "kind"),
    [
        ("load", REFUSED, Crashed),
        ("screen", "wrong", Wrong),
        ("screen", REFUSED, Crashed),
        ("time", REFUSED, Crashed),
        ("time", WrongWhileTimed("outputs", "3 rows are wrong"), Wrong),
    ],
)
def test_what_fails_in_a_screen_costs_itself_only(run, stage, what, kind):
    done, _ = run("screen", "a", "b", "c", script={"b": {stage: what}})
    assert [type(done[position].evaluation) for position in range(3)] == [Measured, kind, Measured]
    assert all(one.healthy for one in done.values())


def test_a_context_that_breaks_ends_a_screen(run):
    done, _ = run("screen", "a", "b", "c", script={"b": {"time": ILLEGAL}})
    assert sorted(done) == [0, 1]
    assert not done[1].healthy
    assert done[1].evaluation.stage == "time"


def test_finalists_are_verified_in_full_timed_and_verified_again(run):
    done, gpu = run("race", "a", "b")
    assert [type(done[position].evaluation) for position in (0, 1)] == [Measured, Measured]
    assert {one.evaluation.effort for one in done.values()} == {"race"}
    assert done[0].evaluation.tests == (PASSED, PASSED)
    assert gpu.done == [("verify", "a"), ("verify", "b"), ("recheck", "a"), ("recheck", "b")]
    assert [one.position for one in gpu.said if isinstance(one, StageEntered) and one.stage == "time"] == [0, 1, 0, 1]
    assert gpu.closed == ["a", "b"]


@pytest.mark.parametrize(
    ("stage", "what", "kind"),
    [
        ("load", REFUSED, Crashed),
        ("verify", "wrong", Wrong),
        ("enter", REFUSED, Crashed),
        ("time", REFUSED, Crashed),
        ("time", WrongWhileTimed("outputs", "3 rows are wrong"), Wrong),
        ("recheck", "wrong", Wrong),
        ("recheck", REFUSED, Crashed),
    ],
)
def test_a_finalist_that_fails_is_out_and_the_others_are_measured(run, stage, what, kind):
    done, _ = run("race", "a", "b", "c", script={"b": {stage: what}})
    assert [type(done[position].evaluation) for position in range(3)] == [Measured, kind, Measured]


@pytest.mark.parametrize("stage", ["load", "verify", "enter", "time", "recheck"])
def test_a_context_that_breaks_ends_a_race_with_the_outcomes_that_are_known(run, stage):
    done, _ = run("race", "a", "b", "c", script={"a": {"verify": "wrong"}, "b": {stage: ILLEGAL}})
    assert sorted(done) == [0, 1], "c races again in the next worker"
    assert isinstance(done[0].evaluation, Wrong)
    assert not done[1].healthy


@pytest.mark.parametrize("effort", ["screen", "race"])
def test_a_large_task_is_never_verified_beside_the_memory_of_timing(run, effort):
    done, gpu = run(
        effort, "a", "b", "c", untrusted=("a", "b"), script={"c": {"screen": "wrong", "verify": "wrong"}}, large=True
    )
    assert [type(done[position].evaluation) for position in range(3)] == [Measured, Measured, Wrong]
    timed, verified = False, False
    for each in gpu.memory:
        if each in ("screen", "verify", "recheck"):
            assert not timed
            verified = True
        elif each == "rounds opened":
            assert not verified
            timed = True
        else:
            timed, verified = timed and each != "timer closed", verified and each != "verifier released"
    assert gpu.memory.count("rounds opened") == 2, "for the baselines, and for all candidates together"
    assert sorted(gpu.closed) == ["a", "b", "c"]


@pytest.mark.parametrize("effort", ["screen", "race"])
@pytest.mark.parametrize("stage", ["verify", "enter", "time", "recheck"])
def test_what_fails_is_unloaded(run, effort, stage):
    _, gpu = run(effort, "a", "b", untrusted=("a", "b"), script={"a": {stage: REFUSED}})
    assert sorted(gpu.closed) == ["a", "b"]


def test_too_little_memory_for_a_task_is_the_machines(monkeypatch):
    def full(_task, _device):
        raise MemoryError("no bytes left")

    gpu = ScriptedGpu(monkeypatch, {})
    monkeypatch.setattr(evaluator_module, "Verifier", full)
    candidate = Candidate(source="a", plan=PLAN, origin=Origin(policy="test"))
    built = Built(candidate=candidate, inspection=INSPECTION, artifact_path="x", cached=True, seconds=0)
    request = CandidateBatch(effort="screen", built=(built,), task=TASK, verify=VerifyOptions(), time=SCREEN_TIME)
    with pytest.raises(MachineError, match="too little free memory to measure"):
        list(BatchEvaluator(gpu, gpu.said.append).batch(request))
