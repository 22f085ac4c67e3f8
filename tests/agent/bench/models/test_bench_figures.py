"""Figures: measured and predicted times are never mixed, and a bench is compared only with its like."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.models.bench_figures import (
    RESULTS,
    BenchConditions,
    BenchResult,
    Reached,
    TaskFigures,
    Yardstick,
    figures_of,
    totals_of,
)
from cudal2_agent.agent.bench.models.bench_runs import OneKernel
from cudal2_agent.agent.bench.models.bench_tasks import bench_tasks, choose_tasks
from cudal2_agent.agent.bench.models.yardstick import yardstick
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.model_bench_table import bench_lines, comparison_lines
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Observation, Trajectory
from cudal2_agent.store.store import open_store
from tests.doubles import (
    CHIP,
    OBSERVATION,
    TASK,
    ScriptedPolicy,
    ScriptedSandbox,
    candidate,
    measured,
    run_record,
    step,
    unmeasured,
)
from tests.policies.chat.exchanges import exchange

CONDITIONS = BenchConditions(
    tasks="2026-11-23",
    repairs=2,
    temperature=0.8,
    tools="auto",
    prompt_tokens=24000,
    reply_tokens=16384,
    knowledge=False,
    seed=0,
    version="1",
)
MODEL = "timing model"


def figures(name: str, us: float | None, basis: str = "measured", schedule_us: float = 10.0, **changes: object) -> TaskFigures:
    schedule = Reached(us=schedule_us, basis="measured" if basis == "measured" else "predicted", by=MODEL)
    fields = {
        "name": name,
        "task": TASK,
        "run_id": f"b-{name}",
        "device": "x",
        "replies": 1,
        "first": us is not None,
        "right": us is not None,
        "outcome": "fine" if us else "wrong: 3 outputs",
        "time": None if us is None else Reached(us=us, basis=basis, by=MODEL),
        "yardstick": Yardstick(schedule=schedule),
        "prompt_tokens": 100,
        "reply_tokens": 10,
        "estimated": False,
        "tool_calls": 0,
        "cost": 0.5,
        "seconds": 2.0,
    }
    return TaskFigures.model_validate(fields | changes)


def result(*tasks: TaskFigures, model: str = "small", **changes: object) -> BenchResult:
    conditions = CONDITIONS.model_copy(update=changes)
    now = datetime(2026, 11, 23, tzinfo=UTC)
    return BenchResult(name="bench-1", model=model, conditions=conditions, finished_at=now, tasks=tasks)


def chat(number: int) -> object:
    return candidate(number).model_copy(update={"origin": Origin(policy="chat")})


def test_the_tasks_are_ten_of_different_classes() -> None:
    tasks = [one.task for one in bench_tasks().tasks]
    assert (len(tasks), len({one.id for one in tasks}), len({one.name for one in bench_tasks().tasks})) == (10, 10, 10)
    assert {task.arch for task in tasks} == {Arch.SM_80, Arch.SM_90A}
    assert {task.layout for task in tasks} == {Layout.NN, Layout.TN}
    assert {task.accumulate.value for task in tasks} == {"f32", "f16"}
    archs = [task.arch for task in tasks]
    assert archs == sorted(archs, reverse=True), "one sandbox serves all tasks of an architecture"


def test_an_unknown_task_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'huge' is not known; choose from tiny"):
        choose_tasks(["tiny", "huge"])
    assert [one.name for one in choose_tasks(["odd", "tiny"])] == ["tiny", "odd"]


def test_measured_and_predicted_ratios_have_means_of_their_own() -> None:
    tasks = [figures("a", 5.0), figures("b", 20.0), figures("c", 8.0, "predicted", 16.0), figures("d", None)]
    totals = totals_of(tasks)
    assert (totals.measured, totals.over_schedule_measured) == (2, pytest.approx(1.0))
    assert (totals.predicted, totals.over_schedule_predicted) == (1, pytest.approx(2.0))
    assert (totals.first, totals.right, totals.tasks, totals.tokens, totals.cost) == (3, 3, 4, 440, 2.0)
    lines = "\n".join(bench_lines(result(*tasks)))
    assert "over the schedule policy: 1.000x measured (2 tasks), 2.000x predicted (1 tasks)" in lines
    assert "d is not right: wrong: 3 outputs" in lines
    assert "8.00 p" in lines


def test_times_that_cannot_be_compared_have_no_ratio() -> None:
    measured_against_predicted = figures("a", 5.0).model_copy(
        update={"yardstick": Yardstick(schedule=Reached(us=5.0, basis="predicted", by=MODEL))}
    )
    other_model = figures("a", 5.0, "predicted", time=Reached(us=5.0, basis="predicted", by="another"))
    assert (measured_against_predicted.over_schedule, other_model.over_schedule) == (None, None)


def test_baselines_count_where_they_were_measured() -> None:
    against = Yardstick(baselines_us={AUTOTUNED: 12.0})
    assert totals_of([figures("a", 6.0, yardstick=against)]).over_autotuning == pytest.approx(2.0)
    assert totals_of([figures("a", 6.0, "predicted", yardstick=against)]).over_autotuning is None


def trajectory(*steps: object, exchanges: tuple[object, ...]) -> Trajectory:
    run = run_record(policy="chat")
    return Trajectory.model_validate(
        {"run": run, "observations": {OBSERVATION.id: OBSERVATION}, "steps": steps, "exchanges": exchanges}
    )


def test_a_kernel_of_the_first_reply_is_right_at_first_also_after_tool_calls() -> None:
    right = chat(1)
    calls = ({"id": "a", "name": "verify_kernel", "arguments": "{}"},)
    asked = (exchange((1, 0, 0), calls=calls), exchange((1, 0, 1), candidate_id=right.id))
    found = figures_of("a", trajectory(step(0, candidate=right, evaluation=measured(5.0)), exchanges=asked), "x", Yardstick())
    assert (found.first, found.right, found.replies, found.tool_calls) == (True, True, 1, 1)
    assert found.time == Reached(us=5.0, basis="measured", by="timed")
    assert found.yardstick.baselines_us == {AUTOTUNED: 10.0}


def test_a_kernel_of_a_later_reply_is_right_after_repair() -> None:
    right = chat(2)
    asked = (exchange((1, 0, 0), problem="no code"), exchange((2, 0, 0), candidate_id=right.id))
    steps = (step(0, candidate=right, evaluation=unmeasured(7.0, "emulator")),)
    found = figures_of("a", trajectory(*steps, exchanges=asked), "x", Yardstick())
    assert (found.first, found.right, found.replies) == (False, True, 2)
    assert found.time == Reached(us=7.0, basis="predicted", by="scripted")


def test_a_roofline_is_no_time_and_an_unexecuted_kernel_is_not_right() -> None:
    built = step(0, candidate=chat(1), evaluation=unmeasured(7.0))
    asked = (exchange((1, 0, 0), candidate_id=chat(1).id),)
    assert not figures_of("a", trajectory(built, exchanges=asked), "x", Yardstick()).right
    floor = step(0, candidate=chat(1), evaluation=unmeasured(1.0, "emulator"))
    found = figures_of("a", trajectory(floor, exchanges=asked), "x", Yardstick())
    assert (found.right, found.time) == (True, None)


def test_a_run_without_a_candidate_says_why() -> None:
    found = figures_of("a", trajectory(exchanges=(exchange(problem="the reply has no code block"),)), "x", Yardstick())
    assert (found.right, found.outcome) == (False, "the reply has no code block")


def test_the_policy_ends_with_a_right_kernel_or_with_its_repairs() -> None:
    policy = OneKernel(ScriptedPolicy([candidate(number) for number in range(9)]), repairs=1)
    seen = Observation(task=TASK, chip=CHIP, round=1, seed=0)
    assert len(policy.propose(seen, 8)) == 1
    assert len(policy.propose(seen.model_copy(update={"round": 2}), 8)) == 1
    assert policy.propose(seen.model_copy(update={"round": 3}), 8) == []
    assert policy.exhausted == "the 1 repairs are used up"
    ended = OneKernel(ScriptedPolicy([candidate(1)]), repairs=5)
    assert ended.propose(seen.model_copy(update={"round": 2, "best": candidate(0)}), 8) == []
    assert ended.exhausted == "a kernel is right"


class AnySandbox(ScriptedSandbox):
    """Builds every kernel as its script's number 3."""

    def build(self, candidates, task, cancel=None):
        return super().build([candidate(3) for _ in candidates], task, cancel)


def test_the_yardstick_is_measured_on_a_gpu_and_predicted_elsewhere(tmp_path: Path) -> None:
    task = GemmTask(m=256, n=256, k=256)
    with open_store(f"sqlite:///{tmp_path / 's.sqlite'}") as store:
        on_gpu = yardstick(task, AnySandbox({3: 4.0}), store)
        beside = yardstick(task, AnySandbox({3: 4.0}, emulates=True), store)
    assert on_gpu.schedule == Reached(us=4.0, basis="measured", by="quick")
    assert on_gpu.baselines_us == {AUTOTUNED: 10.0}
    assert beside == Yardstick(schedule=Reached(us=4.0, basis="predicted", by="scripted"))


def test_benches_under_other_conditions_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = result(figures("a", 8.0), model="large")
    other = result(figures("a", 4.0), model="other", temperature=0.0)
    first, second = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    RESULTS.append(first, result(figures("a", 5.0)))
    RESULTS.append(second, same)
    RESULTS.append(second, other)
    assert RESULTS.read([second])[0] == [same, other]
    assert main(["model-bench", "--compare", str(first), str(second)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:4]] == ["small", "large", "other*"]
    assert "2.000x measured (1 tasks)" in rows[1]
    assert rows[4].startswith("*: other tasks, options or version")
    assert not any("*" in line for line in comparison_lines([same, same]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--compare"], "--compare needs files of results"),
        (["--compare", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["x.jsonl"], "FILES are for --compare"),
        ([], "model-bench needs a model"),
        (["--model", "m", "--tasks", "none"], "--tasks 'none' is not known"),
        (["--replay", "none"], "bench 'none' has no run of task tiny"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["model-bench", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n')
    assert main(["model-bench", "--model", "m", "--results", str(path)]) == 2
    assert "x.jsonl holds no result of model-bench" in capsys.readouterr().err.replace("\n", "")
    assert path.read_text() == '{"a": 1}\n'


def test_a_damaged_line_is_left_out_with_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    RESULTS.append(path, result(figures("a", 1.0)))
    path.write_text(path.read_text() + '{"name": "b", "mo')
    assert main(["model-bench", "--compare", str(path)]) == 0
    assert "1 damaged line of" in capsys.readouterr().err
