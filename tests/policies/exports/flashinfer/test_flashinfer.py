"""The data set for flashinfer-bench: what stands in it, what does not, and that its own package reads everything back."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    CUBLAS,
    CompileFailed,
    Crashed,
    Evaluation,
    Rejected,
    TestResult,
    TimedOut,
    Timing,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.task import AccumulatorType, Activation, ElementType, GemmTask, Layout, TimingMode
from cudal2_agent.contract.records.trajectory import Step, Trajectory
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.exports.flashinfer.bench_solutions import definition_of, workload_of
from cudal2_agent.policies.exports.flashinfer.flashinfer import BenchCounts, write_flashinfer
from tests.doubles import (
    CHIP,
    ENVIRONMENT,
    INSPECTION,
    OBSERVATION,
    PLAN,
    TASK,
    candidate,
    measured,
    run_record,
    step,
    unmeasured,
)

HEADERS = {"cudal2/mma.cuh": "#pragma once\n#include <cudal2/shared.cuh>\n", "cudal2/shared.cuh": "", "cudal2/tma.cuh": ""}
SLOW, FAST, FASTER = measured(9.0), measured(5.0), measured(4.0)
NUMERICAL = TestResult(tier="accuracy", name="gaussian", passed=False, worst=3.5, message="D[0,1] is 2, not 1")
RACE = TestResult(tier="emulator", name="shared-race", passed=False, message="warp 1 reads what warp 0 writes")
NOT_A_NUMBER = NUMERICAL.model_copy(update={"worst": math.nan})
INFINITE = NUMERICAL.model_copy(update={"worst": math.inf})


def wrong(test: TestResult) -> Wrong:
    return Wrong(test=test, tests=(test,), inspection=INSPECTION)


def trajectory(*steps: Step, run_id: str = "run-1", **changes: object) -> Trajectory:
    return Trajectory(run=run_record(run_id, **changes), observations={OBSERVATION.id: OBSERVATION}, steps=steps)


def of(*evaluations: Evaluation, run_id: str = "run-1", **changes: object) -> Trajectory:
    """A run whose candidates are all different."""
    steps = (step(index, number=index, run_id=run_id, evaluation=each) for index, each in enumerate(evaluations))
    return trajectory(*steps, run_id=run_id, **changes)


def free(source: str, **fields: Any) -> Candidate:
    return Candidate(**({"source": source, "plan": PLAN, "origin": Origin(policy="chat")} | fields))


def objects(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind, by the names of their files."""
    files = sorted((folder / kind).rglob("*.json*"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = [text.splitlines() if path.suffix == ".jsonl" else [text] for path, text in zip(files, texts, strict=True)]
    return [json.loads(line, parse_constant=pytest.fail) for group in lines for line in group]


def only_evaluation(folder: Path) -> dict[str, Any]:
    (trace,) = objects(folder, "traces")
    found: dict[str, Any] = trace["evaluation"]
    return found


def test_the_fastest_kernel_of_every_task_and_environment(tmp_path: Path) -> None:
    other = FASTER.model_copy(update={"environment": ENVIRONMENT.model_copy(update={"driver": "1"})})
    runs = [
        of(SLOW, FAST, wrong(NUMERICAL), run_id="run-1"),
        of(measured(8.0), other, run_id="run-2"),
        of(SLOW, run_id="run-3", task=TASK.model_copy(update={"m": 64})),
    ]
    assert write_flashinfer(runs, tmp_path / "set", {}) == BenchCounts(definitions=1, workloads=2, solutions=2, traces=3)
    traces = objects(tmp_path / "set", "traces")
    assert [(trace["workload"]["axes"]["M"], trace["evaluation"]["performance"]["latency_ms"]) for trace in traces] == [
        (256, 0.005),
        (256, 0.004),
        (64, 0.009),
    ]
    assert "step 1 of run run-1" in traces[0]["evaluation"]["log"]


def test_the_last_measurement_of_a_candidate_counts(tmp_path: Path) -> None:
    """A quick measurement that was lucky does not stand against the careful one at the end of the run."""
    lucky = trajectory(step(0, number=0, evaluation=FASTER), step(1, number=1, evaluation=FAST), step(2, evaluation=SLOW))
    write_flashinfer([lucky], tmp_path / "set", {})
    assert only_evaluation(tmp_path / "set")["performance"]["latency_ms"] == 0.005


def test_every_step_with_a_status_and_nothing_else(tmp_path: Path) -> None:
    outcomes: Sequence[Evaluation] = (
        FAST,
        Rejected(rule="device-clock", message="reads the clock"),
        CompileFailed(message="expected ';'", log="kernel.cu(3): error\n€"),
        Crashed(stage="verify", message="illegal address"),
        TimedOut(stage="time", limit_s=30.0),
        wrong(NUMERICAL),
        wrong(NOT_A_NUMBER),
        wrong(INFINITE),
        wrong(RACE),
        unmeasured(5.0, "emulator"),
    )
    counts = write_flashinfer([of(*outcomes)], tmp_path / "set", {}, every=True)
    assert counts == BenchCounts(definitions=1, workloads=1, solutions=9, traces=9, skipped=1)
    evaluations = [trace["evaluation"] for trace in objects(tmp_path / "set", "traces")]
    numerical = ["INCORRECT_NUMERICAL"] * 3
    assert [each["status"] for each in evaluations] == [
        "PASSED",
        "COMPILE_ERROR",
        "COMPILE_ERROR",
        "RUNTIME_ERROR",
        "TIMEOUT",
        *numerical,
        "RUNTIME_ERROR",
    ]
    assert "reads the clock" in evaluations[1]["log"]
    assert evaluations[2]["log"].endswith("kernel.cu(3): error\n€")
    assert [each["correctness"]["extra"]["error_over_bound"] for each in evaluations[5:8]] == [3.5, "NaN", "Infinity"]
    assert {each["correctness"]["max_absolute_error"] for each in evaluations[5:8]} == {"NaN"}
    assert all("correctness" not in each for each in (*evaluations[1:5], evaluations[8]))
    assert all("performance" not in each for each in evaluations[1:])


@pytest.mark.parametrize("every", [False, True])
def test_times_that_earn_no_reward_are_skipped(tmp_path: Path, every: bool) -> None:
    """An implausible time, or one that no second witness confirms, would lead every list of best kernels."""
    implausible = measured(0.1 * (roofline_us(TASK, CHIP) - CHIP.launch_us))
    gamed = measured(3.0)
    proved = gamed.model_copy(update={"witness": Witness(status="agreed")})
    steps = (
        step(0, number=0, evaluation=implausible),
        step(1, candidate=free("// gamed"), evaluation=gamed),
        step(2, candidate=free("// proved"), evaluation=proved),
    )
    assert write_flashinfer([trajectory(*steps)], tmp_path / "set", {}, every=every).skipped == 2
    assert [trace["evaluation"]["status"] for trace in objects(tmp_path / "set", "traces")] == ["PASSED"]
    (solution,) = objects(tmp_path / "set", "solutions")
    assert {"path": "kernel.cuh", "content": "// proved"} in solution["sources"]


@pytest.mark.parametrize("every", [False, True])
def test_what_no_solution_can_hold_is_skipped(tmp_path: Path, every: bool) -> None:
    host = HostCandidate(source="int launch();", origin=Origin(policy="file", schedule={"family": "x"}))
    unfit = free("// unfit", plan=PLAN.model_copy(update={"requires": ("M==1",)}), origin=candidate(0).origin)
    empty = step(2, candidate=free(""), evaluation=Rejected(rule="source-size", message="the source is empty"))
    steps = (step(0, candidate=host), step(1, candidate=unfit, evaluation=FASTER), empty)
    assert write_flashinfer([trajectory(*steps)], tmp_path / "set", {}, every=every) == BenchCounts(skipped=2 + every)


@pytest.mark.parametrize(
    "end", [{"bias": True}, {"activation": Activation.GELU}, {"activation": Activation.SILU, "gated": True}]
)
def test_what_is_no_plain_product_is_skipped(tmp_path: Path, end: dict[str, Any]) -> None:
    runs = [of(SLOW, run_id="run-1", task=TASK.model_copy(update=end)), of(SLOW, run_id="run-2")]
    counts = write_flashinfer(runs, tmp_path / "set", {}, every=True)
    assert (counts.solutions, counts.skipped) == (1, 1)


def test_a_measurement_in_milliseconds_over_the_autotuned_baseline(tmp_path: Path) -> None:
    timed = FAST.model_copy(
        update={
            "timing": Timing(name="candidate", samples_us=(4.0, 5.0, 6.0)),
            "baselines": (
                Timing(name=CUBLAS, samples_us=(40.0, 50.0, 60.0)),
                Timing(name=AUTOTUNED, samples_us=(8.0, 11.0, 30.0)),
            ),
            "tests": (NUMERICAL.model_copy(update={"worst": 0.25}), NUMERICAL.model_copy(update={"worst": 0.5})),
            "mode": TimingMode.SERVER,
        }
    )
    write_flashinfer([of(timed)], tmp_path / "set", {})
    found = only_evaluation(tmp_path / "set")
    assert found["performance"] == {"latency_ms": 0.005, "reference_latency_ms": 0.011, "speedup_factor": 2.2}
    assert found["correctness"] == {
        "extra": {"error_over_bound": 0.5, "mode": "server", "baselines_ms": {CUBLAS: 0.05, AUTOTUNED: 0.011}}
    }
    assert found["environment"]["hardware"] == "scripted"
    assert found["timestamp"] == "2026-11-21T12:00:00+00:00"


def test_a_measurement_without_the_autotuned_baseline_has_no_speedup(tmp_path: Path) -> None:
    write_flashinfer([of(measured(5.0, baselines=(CUBLAS,)))], tmp_path / "set", {})
    assert only_evaluation(tmp_path / "set")["performance"] == {"latency_ms": 0.005}


def test_a_solution_carries_the_kernel_its_launcher_and_the_headers_that_it_includes(tmp_path: Path) -> None:
    source = "#include <cudal2/mma.cuh>\r\n#include <cute/tensor.hpp>\n// ünïcode \u2028 \x7f\n"
    kernel = free(source, flags=("-DTILE=8", "--maxrregcount=64"), origin=Origin(policy="chat", schedule={"family": "x"}))
    write_flashinfer([trajectory(step(0, candidate=kernel))], tmp_path / "set", HEADERS)
    (solution,) = objects(tmp_path / "set", "solutions")
    texts = {each["path"]: each["content"] for each in solution["sources"]}
    assert list(texts) == ["launch.cu", "kernel.cu", "kernel.cuh", "cudal2/mma.cuh", "cudal2/shared.cuh"]
    assert texts["kernel.cuh"] == source
    assert "#define TILE 8\n" in texts["kernel.cu"]
    assert solution["spec"]["entry_point"] == "launch.cu::run"
    assert solution["name"] == f"gemm_nn_f16_f32_n256_k256_m256_h200_sm_90a_{kernel.id}"
    for told in ("flags that flashinfer-bench cannot pass: --maxrregcount=64.", "headers that are not part", "cute/tensor.hpp"):
        assert told in solution["description"]
    assert "mma.cuh" not in solution["description"]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(
    ("element", "accumulate"),
    [(ElementType.F16, AccumulatorType.F32), (ElementType.F16, AccumulatorType.F16), (ElementType.BF16, AccumulatorType.F32)],
)
def test_the_reference_computes_the_task(layout: Layout, element: ElementType, accumulate: AccumulatorType) -> None:
    torch = pytest.importorskip("torch")
    task = GemmTask(m=5, n=7, k=3, layout=layout, element=element, accumulate=accumulate)
    definition = definition_of(task)
    sizes = {"M": 5, **{name: axis.value for name, axis in definition.axes.items() if axis.value is not None}}
    inputs = [
        torch.randint(-4, 5, [sizes[axis] for axis in each.shape]).to(getattr(torch, each.dtype))
        for each in definition.inputs.values()
    ]
    space: dict[str, Any] = {}
    exec(definition.reference, space)
    result = space["run"](*inputs)
    a, b = inputs[0].double(), inputs[1].double()
    wanted = {Layout.NN: lambda: a @ b, Layout.TN: lambda: a @ b.T, Layout.NT: lambda: a.T @ b}[layout]()
    assert torch.equal(result.double(), wanted)
    assert result.dtype == getattr(torch, definition.outputs["C"].dtype)


def test_names_tell_tasks_apart_and_workloads_ignore_chip_and_mode() -> None:
    tasks = [
        TASK,
        *(
            TASK.model_copy(update=change)
            for change in (
                {"n": 64},
                {"k": 64},
                {"layout": Layout.TN},
                {"layout": Layout.NT},
                {"element": ElementType.BF16},
                {"accumulate": AccumulatorType.F16},
            )
        ),
    ]
    assert len({definition_of(task).name for task in tasks}) == len(tasks)
    assert len({workload_of(task).uuid for task in (*tasks, TASK.model_copy(update={"m": 64}))}) == len(tasks) + 1
    assert workload_of(TASK.model_copy(update={"mode": TimingMode.SERVER})) == workload_of(TASK)


def test_the_same_steps_give_the_same_bytes(tmp_path: Path) -> None:
    def run() -> list[Trajectory]:
        return [of(SLOW, FAST, FASTER, run_id="run-1"), of(FAST, run_id="run-2", task=TASK.model_copy(update={"k": 64}))]

    for name in ("first", "second"):
        write_flashinfer(run(), tmp_path / name, HEADERS, every=True)
    first, second = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "first", tmp_path / "second")
    )
    assert first == second
    assert len(first) == 2 + 2 + 2 + 4  # definitions, workloads, traces, solutions


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def breaking() -> Iterator[Trajectory]:
        yield of(FAST)
        raise RuntimeError("the store went away")

    for every in (False, True):
        with pytest.raises(RuntimeError):
            write_flashinfer(breaking(), tmp_path / "set", {}, every=every)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_and_one_that_cannot_be_made_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    for folder in (tmp_path / "used", tmp_path / "used" / "file"):
        with pytest.raises(UsageError, match="is not an empty folder; choose another"):
            write_flashinfer([of(FAST)], folder, {})
    with pytest.raises(UsageError, match="cannot be written"):
        write_flashinfer([of(FAST)], tmp_path / "used" / "file" / "set", {})
    assert [path.name for path in tmp_path.rglob("*")] == ["used", "file"]
    (tmp_path / "empty").mkdir()
    assert write_flashinfer([of(FAST)], tmp_path / "empty", {}).traces == 1


def test_memory_holds_one_trajectory(tmp_path: Path) -> None:
    """A run is released before the one after the next is read."""
    alive: list[int] = []

    class Counted(Trajectory):
        def __del__(self) -> None:
            alive.pop()

    def runs() -> Iterator[Trajectory]:
        for index in range(5):
            assert len(alive) <= 2
            alive.append(index)
            made = of(FAST, run_id=f"run-{index}")
            yield Counted(run=made.run, observations=made.observations, steps=made.steps)
            del made

    for every in (False, True):
        write_flashinfer(runs(), tmp_path / str(every), {}, every=every)


def test_its_own_package_reads_everything_back(tmp_path: Path) -> None:
    data = pytest.importorskip(
        "flashinfer_bench.data",
        reason="needs: pip install --no-deps flashinfer-bench==0.1.2 docstring-parser",
    )
    outcomes = (SLOW, FAST, wrong(NUMERICAL), wrong(INFINITE), wrong(RACE), Crashed(stage="verify", message="illegal"))
    runs = [
        of(*outcomes, run_id="run-1"),
        of(FASTER, run_id="run-2", task=TASK.model_copy(update={"m": 64})),
        of(measured(5.0, baselines=(CUBLAS,)), run_id="run-3", task=TASK.model_copy(update={"layout": Layout.TN})),
    ]
    counts = write_flashinfer(runs, tmp_path / "set", HEADERS, every=True)
    found = data.TraceSet.from_path(str(tmp_path / "set"))

    assert list(found.definitions) == [definition_of(run.run.task).name for run in (runs[0], runs[2])]
    assert sum(map(len, found.solutions.values())) == counts.solutions == 8
    assert sum(map(len, found.workloads.values())) == counts.workloads == 3
    assert found.summary() | {"avg_latency_ms": 0} == {
        "total": 8,
        "passed": 4,
        "failed": 4,
        "min_latency_ms": 0.004,
        "max_latency_ms": 0.009,
        "avg_latency_ms": 0,
    }
    name = definition_of(TASK).name
    definition = found.definitions[name]
    assert (definition.const_axes, definition.var_axes) == ({"N": 256, "K": 256}, ["M"])
    assert definition.get_input_shapes({"M": 64}) == [[64, 256], [256, 256]]

    best = found.get_best_trace(name, axes={"M": 256})
    assert best.evaluation.performance.speedup_factor == 2.0
    assert found.get_best_trace(name).workload.axes == {"M": 64}
    solution = found.get_solution(best.solution)
    assert solution.definition == name
    assert solution.get_entry_source().content.startswith("// Host launcher")
    assert {trace.workload.uuid for trace in found.traces[name]} <= {trace.workload.uuid for trace in found.workloads[name]}
    assert all(found.get_solution(trace.solution) is not None for traces in found.traces.values() for trace in traces)
    assert len(found.filter_traces(name)) == 3, "wrong kernels have errors that are NaN, and are no results"
    assert found.get_best_trace(definition_of(runs[2].run.task).name).evaluation.performance.speedup_factor == 0.0
