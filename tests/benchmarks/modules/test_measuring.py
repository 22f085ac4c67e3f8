"""What a worker does with a task, on a scripted evaluator and a builder that builds nothing: screens, races and rows."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from benchmarks.modules.measuring import Measurer, Measuring, Stages
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Crashed, Measured, TestResult, Timing, Wrong
from cudal2_agent.contract.records.task import Arch, TimingMode
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.fusion.policy import FusionPolicy
from cudal2_agent.sandbox.workers.messages import Done, StageEntered
from tests.doubles import ENVIRONMENT, INSPECTION
from tests.doubles.modules import relu_of_sum

TASK = relu_of_sum(rows=4096, name="1/19_ReLU")
PASSED = TestResult(tier="exact", name="normal", passed=True)
BREAKS = -1.0  # in the place of a time: the candidate breaks the GPU's context
FAILED = TestResult(tier="exact", name="ties", passed=False, message="three outputs are wrong")


def timed(us: float, **baselines: float) -> Measured:
    return Measured(
        mode=TimingMode.OFFLINE,
        tests=(PASSED,),
        timing=Timing(name="k", samples_us=(us,) * 3),
        baselines=tuple(Timing(name=name.replace("_", "-"), samples_us=(each,) * 3) for name, each in baselines.items()),
        environment=ENVIRONMENT,
        inspection=INSPECTION,
    )


class Scripted:
    """An evaluator: times by (effort, order of the candidate); None is a wrong one."""

    def __init__(self, stages: Stages, times: dict[tuple[str, int], float | None], fault: Exception | None = None) -> None:
        self._stages, self._times, self._fault = stages, times, fault
        self.order: list[str] = []
        self.asked: list[tuple[str, list[int]]] = []

    def _done(self, effort: str, built: Built, position: int) -> Done:
        if self._fault is not None:
            raise self._fault
        number = self.order.index(built.candidate.id)
        for stage in ("verify", "time", "time"):
            self._stages(StageEntered(stage=stage))
        us = self._times[effort, number]
        if us == BREAKS:
            crashed = Crashed(stage="verify", message="an illegal address", inspection=INSPECTION)
            return Done(evaluation=crashed, position=position, healthy=False)
        if us is None:
            return Done(evaluation=Wrong(test=FAILED, tests=(PASSED, FAILED), inspection=INSPECTION), position=position)
        return Done(evaluation=timed(us, eager=40.0, eager_cuda_graph=20.0, compiled=10.0), position=position)

    def batch(self, request) -> Iterator[Done]:
        self.asked.append((request.effort, [self.order.index(one.candidate.id) for one in request.built]))
        return (self._done(request.effort, one, position) for position, one in enumerate(request.built))

    def evaluate(self, request) -> Done:
        self.asked.append((request.effort, [self.order.index(request.built.candidate.id)]))
        return self._done(request.effort, request.built, 0)


def measured(times, task=None, fault=None, candidates=None):
    said, turns = [], []
    turn = SimpleNamespace(paused_s=0.0, waited_s=0.0, held="nothing")

    def take(held):
        if turn.held != held:
            turn.held = held
            turns.append(held)

    turn.share, turn.alone, turn.leave = (lambda held=held: take(held) for held in ("shared", "alone", "nothing"))
    stages = Stages(said.append)
    stages.turn = turn
    evaluator = Scripted(stages, times, fault)

    def build(candidates, task):
        evaluator.order = [one.id for one in candidates]
        fields = {"inspection": INSPECTION, "artifact_path": "", "cached": True, "seconds": 0.0, "task": task}
        return ((position, Built(candidate=one, **fields)) for position, one in enumerate(candidates))

    options = Measuring(turns="", cache="", candidates=3)
    measurer = Measurer(options, REFERENCE_CHIPS[Arch.SM_90A], SimpleNamespace(build=build), evaluator, stages)
    row = measurer.row(task or TASK, candidates)
    return row, evaluator.asked, turns, said


def test_the_fastest_of_a_screen_are_raced_beside_all_baselines():
    times = {("screen", 0): 9.0, ("screen", 1): 8.1, ("screen", 2): 8.0, ("race", 2): 8.2, ("race", 1): 8.0}
    row, asked, turns, said = measured(times)
    assert asked == [("screen", [0, 1, 2]), ("race", [2, 1])]
    assert (row["task"], row["level"], row["class"], row["status"]) == ("1/19_ReLU", 1, "pointwise", "measured")
    assert row["us"] == 8.0
    assert row["fastest"] == "compiled"
    assert row["speedup"] == [1.25, 1.25, 1.25]
    assert row["answer"] == "kernel"
    assert {name: each["us"] for name, each in row["baselines"].items()} == {
        "eager": 40,
        "eager-cuda-graph": 20,
        "compiled": 10,
    }
    assert sorted(each["us"] for each in row["candidates"]) == [8.0, 8.2, 9.0]
    assert [each["kernels"] for each in row["candidates"]] == [1, 1, 1]
    # Candidates are written and built without the GPU. The screen keeps it from its first timing on.
    assert turns == ["shared", "alone", "shared", "alone", "shared", "alone"]
    assert {"time", "verify", "wait"} <= row["seconds"].keys()
    assert {"stage": "wait"} in said


def test_each_candidate_has_the_limit_of_a_stage_for_itself():
    """The limit is that of the next message. Two candidates that are verified one after another are two."""
    said = []
    stages = Stages(said.append)
    for position, stage in enumerate(("verify", "verify", "time")):
        stages(StageEntered(stage=stage, position=position))
    stages.tell_pause(True)
    stages.tell_pause(False)
    stages.end()
    assert [message["stage"] for message in said] == ["verify", "verify", "time", "wait", "time"], "a pause has its own limit"
    assert stages.seconds.keys() == {"verify", "time"}


def test_a_kernel_that_loses_says_to_keep_pytorchs():
    row, *_ = measured({("screen", 0): 30.0, ("screen", 1): 30.5, ("screen", 2): 40.0, ("race", 0): 30.0, ("race", 1): 29.0})
    assert row["answer"] == "keep PyTorch's"
    assert row["us"] == 29.0


def test_where_the_finalists_are_wrong_the_next_ones_are_raced():
    times = {("screen", 0): 8.0, ("screen", 1): 9.0, ("screen", 2): None, ("race", 0): None, ("race", 1): 9.0}
    row, asked, *_ = measured(times)
    assert asked == [("screen", [0, 1, 2]), ("race", [0]), ("race", [1])]
    assert row["us"] == 9.0
    statuses = {each["status"]: each for each in row["candidates"]}
    assert statuses["wrong"]["fails"] == ["exact/ties"]


def test_a_kernel_written_by_hand_is_raced_in_the_place_of_the_fusers():
    [one] = FusionPolicy().propose(Observation(task=TASK, chip=REFERENCE_CHIPS[Arch.SM_90A], round=0, seed=0), 1)
    row, asked, *_ = measured({("race", 0): 8.0}, candidates=[one])
    assert asked == [("race", [0])]
    assert (row["status"], row["best"], len(row["candidates"])) == ("measured", one.id, 1)


def test_a_task_of_which_every_candidate_is_wrong_is_a_row_that_says_so():
    row, *_ = measured({("screen", 0): None, ("screen", 1): None, ("screen", 2): None})
    assert row["status"] == "wrong"
    assert "exact/ties" in row["message"]


def test_of_a_large_task_candidates_are_screened_apart_and_the_fastest_right_one_is_evaluated(monkeypatch):
    monkeypatch.setattr("benchmarks.modules.measuring.LARGE_BYTES", 1)
    row, asked, *_ = measured({("screen", 0): 9.0, ("screen", 1): 8.0, ("full", 1): 8.1})
    assert asked == [("screen", [0]), ("screen", [1]), ("full", [1])]
    assert row["us"] == 8.1
    assert sorted(each["us"] for each in row["candidates"]) == [8.1, 9.0]


def test_of_a_large_task_the_next_one_is_evaluated_where_the_fastest_is_wrong(monkeypatch):
    monkeypatch.setattr("benchmarks.modules.measuring.LARGE_BYTES", 1)
    row, asked, *_ = measured({("screen", 0): 9.0, ("screen", 1): 8.0, ("full", 1): None, ("full", 0): 9.1})
    assert asked[2:] == [("full", [1]), ("full", [0])]
    assert row["us"] == 9.1


@pytest.mark.parametrize("large", [False, True])
def test_after_a_screen_that_broke_the_context_nothing_is_measured_and_the_row_says_why(large, monkeypatch):
    if large:
        monkeypatch.setattr("benchmarks.modules.measuring.LARGE_BYTES", 1)
    row, asked, *_ = measured({("screen", 0): 9.0, ("screen", 1): BREAKS, ("screen", 2): 8.0})
    assert {effort for effort, _ in asked} == {"screen"}
    assert row["status"] == "crashed"
    assert "illegal address" in row["message"]


@pytest.mark.parametrize("fault", [RuntimeError("a driver\nfault"), MemoryError("too little")])
def test_a_failure_of_the_sandbox_is_a_row(fault):
    row, *_ = measured({}, fault=fault)
    assert row["status"] == "failed"
    assert row["message"] == f"{type(fault).__name__}: {' '.join(str(fault).split())}"
