"""The report, the picture and the output folder of a measured run."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from cudal2_agent.agent.observe.retrieval import with_chunks
from cudal2_agent.agent.report.measured_section import table
from cudal2_agent.agent.report.output import replacing, reserve, write_output
from cudal2_agent.agent.report.progress_plot import draw_progress
from cudal2_agent.agent.report.report import IN_PART, optimize_command, render_report, task_flags
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    BASELINES,
    FULL_SIZE,
    NOT_COVERED,
    TORCH,
    CompileFailed,
    Evaluation,
    Measured,
    SideFigures,
    TestResult,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.ruler import Ruler
from cudal2_agent.contract.records.task import AccumulatorType, Activation, Arch, GemmTask, Layout
from cudal2_agent.contract.settings.run_settings import RunSettings
from tests.doubles import INSPECTION, OBSERVATION, PASSED, TASK, candidate, measured, profile, run_record, step, unmeasured
from tests.policies.chat.exchanges import exchange

SIDE = SideFigures(host_launch_us=2.125, wall_clock_us=31.5)
FAILED = CompileFailed(message="a | b\nc", log="")


def outcome_of(*evaluations: Evaluation, best: int | None = 0, status: str = "finished") -> RunResult:
    steps = [step(index, number=index, evaluation=evaluation) for index, evaluation in enumerate(evaluations)]
    run = run_record(status=status, settings={"budget": 8, "minutes": 2.0})
    return RunResult(
        run=run,
        steps=steps,
        best=steps[best] if best is not None else None,
        reason="the end",
        spent_s=12.0,
        observations={OBSERVATION.id: OBSERVATION},
    )


def full(time_us: float = 5.0) -> Measured:
    return measured(time_us, baselines=BASELINES).model_copy(update={"side": SIDE})


def test_a_measured_run_shows_every_baseline_with_its_interval() -> None:
    report = render_report(outcome_of(full(), FAILED), Path("out"))
    for name in BASELINES:
        assert f"| {name} | 10.00 | 2.000x | 2.000 – 2.000 |" in report
    assert "**5.00 us**" in report
    assert "| host time of one launch | 2.12 |" in report
    assert "device time with operands in L2" not in report
    assert "predicted" not in report


def test_a_baseline_that_is_missing_is_named() -> None:
    evaluation = measured(5.0, baselines=(AUTOTUNED,))
    report = render_report(outcome_of(evaluation), Path("out"))
    assert f"| {TORCH} | not measured |" in report
    assert f"- baseline {TORCH} was not measured" in report


def test_a_prediction_is_never_shown_as_a_measurement() -> None:
    report = render_report(outcome_of(unmeasured(7.5)), Path("out"))
    assert "not executed; its time is predicted, not measured" in report
    assert "(7.50 predicted)" in report
    assert "TFLOP/s" not in report


def test_what_the_emulator_proved_is_told_and_called_predicted() -> None:
    report = render_report(outcome_of(unmeasured(7.5, "emulator"), FAILED), Path("out"))
    assert "**The emulator executed the kernel and found it right; its time is predicted, not measured.**" in report
    assert "| verified by the emulator | (7.50 predicted) |" in report
    assert "- nothing was measured: not timed, no baseline measured" in report
    assert "its diagnosis rests on inspection\n" in report
    assert "nothing was executed" not in report


def test_what_the_emulator_did_not_run_is_not_called_a_passed_test() -> None:
    whole = unmeasured(7.5, "emulator")
    sample = TestResult(tier="emulator", name=FULL_SIZE, passed=True, message="12 of 64 clusters run")
    left = TestResult(tier="emulator", name=NOT_COVERED, passed=True, message="no test ran at a smaller size")
    in_part = whole.model_copy(update={"tests": (*whole.tests, left, sample)})
    report = render_report(outcome_of(in_part), Path("out"))
    assert "The emulator executed the kernel and found it right, some tests in part; its time" in report
    assert "2 tests passed:\n- 12 of 64 clusters run\n" in report
    done, _, missing = report.partition("## Not done")
    assert f"- {IN_PART}\n- no test ran at a smaller size\n" in missing
    assert "smaller size" not in done


TOO_LARGE = f"{TASK.shape} is too large for every test to run the whole grid, and the source was not run at a smaller size"
ALL_COMPARED = "14 of 64 clusters run, then the whole grid without race detection; all 65536 outputs compared"


@pytest.mark.parametrize("where", ["alone", "second witness"])
def test_a_proof_in_part_is_told_without_contradiction(where: str) -> None:
    """All outputs were compared, and still some tests ran a part only. No line says that the grid was not run whole."""
    tests = (
        PASSED,
        TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=TOO_LARGE),
        TestResult(tier="emulator", name=FULL_SIZE, passed=True, message=ALL_COMPARED),
    )
    alone = unmeasured(7.5, "emulator").model_copy(update={"tests": tests})
    timed = full().model_copy(update={"witness": Witness(status="in-part", tests=tests)})
    report = render_report(outcome_of(alone if where == "alone" else timed), Path("out"))
    done, _, missing = report.partition("## Not done")
    assert done.count(ALL_COMPARED) == 1
    assert "in part" in done
    assert done.count("too large") == 0, "what was not run is no result"
    assert f"- {IN_PART}\n- {TOO_LARGE}\n" in missing
    for false in ("to be run whole", "did not run the whole grid", "in part and found it right"):
        assert false not in report


def test_a_run_whose_kernels_were_wrong_has_executed_something() -> None:
    failed = TestResult(tier="exact", name="zero-one", passed=False)
    report = render_report(outcome_of(Wrong(test=failed, tests=(failed,), inspection=INSPECTION), best=None), Path("out"))
    assert "nothing was executed" not in report
    assert "nothing was measured" in report


def test_without_a_kernel_the_report_says_so() -> None:
    report = render_report(outcome_of(FAILED, best=None), Path("out"))
    assert "there is no kernel to show" in report
    assert "cudal2-agent verify" not in report


def test_an_interrupted_run_says_how_to_go_on() -> None:
    report = render_report(outcome_of(full(), status="interrupted"), Path("out"))
    assert "cudal2-agent runs resume run-1" in report


def test_what_was_looked_up_is_named_with_its_lines() -> None:
    chunk = Chunk(release="notes", path="wgmma.md", start_line=3, end_line=9, symbol="wgmma > Fences", kind="section", text="x")
    shown = OBSERVATION.model_copy(update={"hits": (Hit(chunk=chunk, score=1.0),)})
    outcome = replace(outcome_of(full()), observations={OBSERVATION.id: shown})
    assert "nothing was looked up" in render_report(outcome, Path("out"))  # the author's prompt held none of it
    assert outcome.best is not None
    read = with_chunks(candidate(0), shown.hits)
    outcome = replace(outcome, best=outcome.best.model_copy(update={"candidate": read}))
    report = render_report(outcome, Path("out"))
    assert "## What was looked up" in report
    assert "| notes | wgmma.md:3-9 | wgmma > Fences |" in report
    assert "nothing was looked up" not in report


def test_a_run_without_knowledge_says_so_and_is_repeated_so() -> None:
    outcome = outcome_of(full())
    assert "nothing was looked up" in render_report(outcome, Path("out"))
    without = replace(outcome, run=outcome.run.model_copy(update={"settings": RunSettings(use_knowledge=False)}))
    report = render_report(without, Path("out"))
    assert "(--no-knowledge)" in report
    assert "What was looked up" not in report
    assert optimize_command(without.run).endswith(" --no-knowledge")
    assert "--no-knowledge" not in optimize_command(outcome.run)


def test_a_cell_cannot_break_the_table() -> None:
    rows = table(("a",), [("x | y\nz",)]).splitlines()
    assert rows == ["| a |", "|---|", "| x \\| y z |"]


def test_the_command_line_names_the_task_whole() -> None:
    task = GemmTask(m=1, n=2, k=3, accumulate=AccumulatorType.F16, layout=Layout.TN, arch=Arch.SM_80)
    assert task_flags(task) == "--shape 1x2x3 --arch sm_80 --accumulate f16 --layout tn"
    assert task_flags(GemmTask(m=1, n=2, k=3, layout=Layout.NT)) == "--shape 1x2x3 --arch sm_90a --layout nt"
    activated = GemmTask(m=1, n=2, k=3, bias=True, activation=Activation.SILU)
    assert task_flags(activated) == "--shape 1x2x3 --arch sm_90a --bias --activation silu"
    gated = GemmTask(m=1, n=2, k=3, activation=Activation.SILU, gated=True)
    assert task_flags(gated) == "--shape 1x2x3 --arch sm_90a --activation silu --gated"
    command = optimize_command(outcome_of(full()).run)
    assert command == f"cudal2-agent optimize {task_flags(TASK)} --policy scripted --seed 0 --budget 8 --minutes 2.0"


def test_a_kernel_is_verified_again_under_the_seed_of_its_proof() -> None:
    outcome = outcome_of(full())
    kernel = f"verify out/kernel.cu {task_flags(TASK)}"
    assert f"{kernel}\n" in render_report(outcome, Path("out")), "an older record has no seed"
    assert outcome.best is not None
    assert isinstance(outcome.best.evaluation, Measured)
    tests = (*outcome.best.evaluation.tests, PASSED.model_copy(update={"seed": 7}))
    best = outcome.best.model_copy(update={"evaluation": outcome.best.evaluation.model_copy(update={"tests": tests})})
    assert f"{kernel} --seed 7\n" in render_report(replace(outcome, best=best), Path("out"))


def test_the_picture_draws_measured_steps_and_baselines() -> None:
    outcome = outcome_of(full(), full(4.0), unmeasured(1.0), FAILED)
    root = ElementTree.fromstring(draw_progress(outcome.steps, outcome.best))
    assert len(root.findall("{*}circle")) == 2
    words = [text.text for text in root.findall("{*}text")]
    assert set(BASELINES) <= set(words)


def test_the_picture_marks_predictions_and_survives_having_nothing() -> None:
    predicted = outcome_of(unmeasured(7.5))
    assert "PREDICTED" in draw_progress(predicted.steps, predicted.best)
    assert "no candidate passed" in draw_progress([], None)


def test_the_folder_is_proved_writable_first(tmp_path: Path) -> None:
    reserve(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        reserve(tmp_path / "file")


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    target.write_text("old")

    def fail_midway() -> None:
        with replacing(target) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_midway()
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert target.read_text() == "old"


def test_the_cubin_is_copied_and_a_lost_folder_is_one_line(tmp_path: Path) -> None:
    cubin = tmp_path / "cached.cubin"
    cubin.write_bytes(b"\x7fELF")
    built = Built(candidate=candidate(0), inspection=INSPECTION, artifact_path=str(cubin), cached=True, seconds=0.0)
    out = tmp_path / "out"
    reserve(out)
    write_output(out, outcome_of(full()), built, b"\x7fELF")
    assert (out / "kernel.cubin").read_bytes() == b"\x7fELF"
    assert (out / "kernel.cu").read_text() == candidate(0).source
    with pytest.raises(UsageError, match="nothing is lost: cudal2-agent runs show run-1"):
        write_output(tmp_path / "gone", outcome_of(full()), built, b"\x7fELF")


def test_what_was_asked_of_a_model_and_what_came_of_it_is_told() -> None:
    asked = (
        exchange((1, 0, 0), candidate_id=candidate(0).id, cost=0.5),
        exchange((1, 1, 0), problem="the reply has no code block", cost=0.5),
    )
    report = render_report(replace(outcome_of(full()), exchanges=asked), Path("out"))
    assert "## Language model" in report
    assert "tokens: 200 in prompts, 100 in replies; cost 1" in report
    assert "the reply has no code block |" in report
    assert "## Language model" not in render_report(outcome_of(full()), Path("out"))


def test_each_improvement_is_explained() -> None:
    report = render_report(outcome_of(full(6.0), full(5.0), best=1), Path("out"))
    assert "## Why" in report
    assert "5.00 us measured; 6.00 us before, 1.200x" in report


def test_a_kernel_without_a_schedule_has_no_predicted_time() -> None:
    floor = unmeasured(1.0)
    assert floor.prediction.is_floor
    report = render_report(outcome_of(floor), Path("out"))
    assert "**The kernel was not executed; its time is neither measured nor predicted.**" in report
    assert "1.00 predicted" not in report


def test_counters_that_were_read_are_not_said_to_be_missing() -> None:
    outcome = outcome_of(full())
    assert "no hardware counters" in render_report(outcome, Path("out"))
    assert outcome.best is not None
    seen = replace(outcome, best=outcome.best.model_copy(update={"profile": profile()}))
    assert "no hardware counters" not in render_report(seen, Path("out"))


def test_the_report_says_how_the_time_was_taken() -> None:
    ruler = Ruler(secret=17, order=3, sets=150, launches=700, ring_bytes=1, reuse_bytes=None, projected=4900)
    told = render_report(outcome_of(measured(2.0).model_copy(update={"ruler": ruler})), Path("out"))
    assert "Each sample is 700 launches on 150 sets of operands" in told
    assert "Every row of 4900 outputs was checked, and 0 outputs in full. Seed: 17." in told
    assert "Each sample" not in render_report(outcome_of(measured(2.0)), Path("out")), "a record of before"
    outcome = outcome_of(measured(2.0).model_copy(update={"ruler": ruler}))
    activated = outcome.run.model_copy(update={"task": TASK.model_copy(update={"bias": True, "activation": Activation.GELU})})
    told = render_report(replace(outcome, run=activated), Path("out"))
    assert "A drawn row and column of 4900 outputs was checked" in told
    assert "f32 accumulation, layout nn, a bias, then gelu" in told
    gated = outcome.run.model_copy(update={"task": TASK.model_copy(update={"activation": Activation.SILU, "gated": True})})
    told = render_report(replace(outcome, run=gated), Path("out"))
    assert "f32 accumulation, layout nn, gated: silu(A·B) · (A·up)" in told
