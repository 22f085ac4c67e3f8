"""What a run of a module says and leaves: the files that a program imports, or that it should keep PyTorch's."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.render.run_answer import outcome_json, print_outcome
from cudal2_agent.agent.report.module_folder import MODULE
from cudal2_agent.agent.report.output import write_output
from cudal2_agent.agent.report.report import optimize_command, render_report
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import COMPILED, EAGER, Evaluation, Timing
from cudal2_agent.contract.records.module_graph import Soundness
from tests.doubles import INSPECTION, OBSERVATION, measured, run_record, step, unmeasured
from tests.doubles.modules import relu_of_sum

TASK = relu_of_sum()
PLAN = plan_from_json(
    {
        "arch": "sm_90a",
        "launches": [
            {"entry": "k", "grid": ["rows", 1, 1], "block": [64, 1, 1], "args": [{"tensor": "out", "access": "write"}]}
        ],
    }
)
KERNEL = Candidate(source="// k", plan=PLAN, origin=Origin(policy="fusion", schedule={"family": "fusion"}))


def built(folder: Path) -> Built:
    artifact = folder / "artifact"
    artifact.write_bytes(b"cubin")
    return Built(
        candidate=KERNEL,
        inspection=INSPECTION,
        artifact_path=str(artifact),
        cached=True,
        seconds=0.0,
        task=TASK,
        plan=resolve(PLAN, TASK, LIMITS[TASK.arch], sms=132),
    )


def outcome(evaluation: Evaluation, **changes: object) -> RunResult:
    best = step(0, candidate=KERNEL, evaluation=evaluation)
    run = run_record(task=TASK.model_copy(update=changes), status="finished")
    observed = {OBSERVATION.id: OBSERVATION}
    return RunResult(run=run, steps=[best], best=best, reason="the budget is spent", spent_s=1.0, observations=observed)


def timed(own_us: float) -> Evaluation:
    baselines = (Timing(name=EAGER, samples_us=(20.0,) * 5), Timing(name=COMPILED, samples_us=(8.0,) * 5))
    return measured(own_us).model_copy(update={"baselines": baselines})


def test_a_faster_module_is_there_to_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(timed(4.0))
    write_output(tmp_path, found, built(tmp_path), b"\x7fELF")
    assert {"module.py", "module.json", "problem.py", "kernel.cu", "plan.json"} <= {path.name for path in tmp_path.iterdir()}
    compile((tmp_path / MODULE).read_text(), MODULE, "exec")
    print_outcome(found, tmp_path, as_json=False)
    said = capsys.readouterr().out
    assert f"module: {tmp_path / MODULE}" in said
    assert "2.000x" in said
    assert "Keep PyTorch's" not in said
    assert outcome_json(found, tmp_path)["keep_pytorch"] is False


def test_a_slower_one_is_not_and_the_figures_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(timed(10.0))
    write_output(tmp_path, found, built(tmp_path), b"\x7fELF")
    assert not (tmp_path / MODULE).exists()
    assert (tmp_path / "problem.py").read_text() == TASK.problem
    print_outcome(found, tmp_path, as_json=False)
    assert "Keep PyTorch's: compiled takes 8.00 us, the best kernel 10.00 us (0.800x" in capsys.readouterr().out
    assert "**Keep PyTorch's: compiled takes 8.00 us" in render_report(found, tmp_path)
    answer = outcome_json(found, tmp_path)
    assert (answer["keep_pytorch"], answer["module"]) == (True, None)
    json.dumps(answer)


def test_without_a_gpu_the_module_is_there_and_its_time_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outcome(unmeasured(1.0, "emulator"))
    write_output(tmp_path, found, built(tmp_path), b"\x7fELF")
    print_outcome(found, tmp_path, as_json=False)
    said = capsys.readouterr().out
    assert "time: not known; the roofline is 1.00 us" in said
    assert f"module: {tmp_path / MODULE}" in said


def test_a_plan_that_nothing_executed_is_not_there_to_import(tmp_path: Path) -> None:
    write_output(tmp_path, outcome(unmeasured(1.0, "nothing")), built(tmp_path), b"\x7fELF")
    assert (tmp_path / "kernel.cu").is_file()
    assert not (tmp_path / MODULE).exists()


def test_an_unsound_task_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(timed(4.0), soundness=Soundness(status="unsound", reason="zeros pass on ours"))
    print_outcome(found, tmp_path, as_json=False)
    assert "unsound task, no reward: zeros pass on ours" in capsys.readouterr().out


def test_a_report_says_what_was_asked_and_how_to_ask_again(tmp_path: Path) -> None:
    found = outcome(timed(4.0), name="kernelbench:1/19")
    report = render_report(found, tmp_path)
    assert report.startswith("# Module kernelbench:1/19\n")
    assert "f32 arithmetic, rows 32, columns 64, sm_90a" in report
    assert "baseline eager-cuda-graph was not measured" in report
    assert "cublas" not in report.lower().replace("cublas 13", "")
    assert "--task kernelbench:1/19 --arch sm_90a --arithmetic f32 --dims rows=32,columns=64" in optimize_command(found.run)
    assert "--problem problem.py --arch sm_90a" in optimize_command(outcome(timed(4.0)).run)
