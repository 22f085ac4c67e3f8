"""Modules of a campaign: what is asked of a folder, what one search finds, and the figures of the rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.campaign.asked_modules import AskedHow, asked_modules
from cudal2_agent.agent.campaign.module_figures import latest_modules, module_figures
from cudal2_agent.agent.campaign.module_search import search_module
from cudal2_agent.agent.campaign.result_files import read_results, read_rows, write_results
from cudal2_agent.agent.cli.module_flags import read_problem
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.evaluation import COMPILED, EAGER, Rejected, Timing
from cudal2_agent.contract.records.module_campaign import AskedModule, ModuleResult
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.trajectory import Step
from tests.doubles import CHIP, measured, run_record, step, unmeasured
from tests.doubles.campaign_modules import asked, module_row
from tests.doubles.modules import PROBLEM, relu_of_sum
from tests.store.campaigns.rows import result, tasks

REJECTED = Rejected(rule="forbidden", message="it opens a file")
PROVED = unmeasured(5.0, "emulator")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "level1/1_relu.py": PROBLEM.format(rows=32),
        "level1/2_gelu.py": PROBLEM.format(rows=64),
        "level2/1_both.py": "nothing",
        "level3/1_text.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "level3" / "1_text.py").write_bytes(b"\xff\xfe")
    return tmp_path


def names(folder: Path, levels: set[int] | None = None, patterns: tuple[str, ...] = ()) -> list[str]:
    found = asked_modules(str(folder), levels or set(), patterns, folder / "home", read_problem, AskedHow())
    return [each.name for each in found]


def test_levels_and_names_choose_problems(folder: Path) -> None:
    assert names(folder) == ["level1/1_relu", "level1/2_gelu", "level2/1_both", "level3/1_text"]
    assert names(folder, {2, 3}) == ["level2/1_both", "level3/1_text"]
    assert names(folder, {1}, ("*gelu",)) == names(folder, None, ("level1/2*",)) == ["level1/2_gelu"]
    assert names(folder / "level1") == ["1_relu", "2_gelu"]


def test_a_file_is_asked_as_it_is_and_one_that_cannot_be_read_says_why(folder: Path) -> None:
    how = AskedHow(arithmetic=Arithmetic.F16, small=True)
    found = asked_modules(str(folder), set(), (), folder, read_problem, how)
    assert (found[1].problem, found[1].level, found[1].arithmetic, found[1].small) == (PROBLEM.format(rows=64), 1, "f16", True)
    assert (found[3].problem, "is not UTF-8 text" in found[3].unreadable) == ("", True)


def test_a_folder_without_problems_is_told(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty holds no Python file"):
        names(tmp_path / "empty")
    with pytest.raises(UsageError, match="--levels and --names leave none of the 4 problems"):
        names(folder, {1}, ("*none*",))


def test_what_a_file_is_asked_as_decides_its_id_and_its_text_not_its_place() -> None:
    assert len({asked().id, asked(rows=8).id, asked("level1/2_x").id, asked(small=True).id, asked(arithmetic="f16").id}) == 5
    assert asked().place == asked(rows=8).place != asked(small=True).place


class Traces:
    def trace(self, problem: str, name: str, dims: dict[str, int] | None = None, *_: Any, **__: Any) -> ModuleTask:
        if "def" not in problem:
            raise UsageError(f"{name}: it is no task")
        return relu_of_sum((dims or {}).get("rows", 4096))

    def reduced(self, _: ModuleTask, most_work: int) -> ModuleTask:
        assert most_work
        return relu_of_sum(8)


def searched(task: AskedModule, run: Callable[[ModuleTask], RunResult]) -> ModuleResult | None:
    def check(_: ModuleTask, seed: int) -> Soundness:
        return Soundness(status="unsound", reason="zeros are accepted", seed=seed)

    return search_module(task, Traces(), check, 0, run, "abc")  # type: ignore[arg-type]


def found(task: ModuleTask, steps: list[Step], status: str = "finished") -> RunResult:
    run = run_record("run-1", status=status).model_copy(update={"task": task, "chip": CHIP})
    best = next((each for each in steps if each.evaluation.passed), None)
    return RunResult(run=run, steps=steps, best=best, reason="budget", spent_s=1.0)


def never(_: ModuleTask) -> RunResult:
    raise AssertionError("it is not searched")


@pytest.mark.parametrize(
    ("task", "reason"),
    [(asked(problem="nothing"), "it is no task"), (asked(problem="", unreadable="it is not UTF-8"), "it is not UTF-8")],
)
def test_a_file_that_is_no_problem_gets_a_row_that_says_why(task: AskedModule, reason: str) -> None:
    row = searched(task, never)
    assert row is not None
    assert (row.status, row.reason, row.best, row.commit) == ("no-task", reason, None, "abc")


def test_a_plan_that_was_proved_is_a_row_and_the_task_carries_its_soundness() -> None:
    seen: list[ModuleTask] = []

    def run(task: ModuleTask) -> RunResult:
        seen.append(task)
        return found(task, [step(0, evaluation=REJECTED), step(1, 1, evaluation=PROVED)])

    row = searched(asked(small=True), run)
    assert row is not None
    assert (row.status, row.run_id, row.candidates, row.soundness) == ("proved", "run-1", 2, "unsound")
    assert (row.dims["rows"], seen[0].dims["rows"], seen[0].soundness and seen[0].soundness.reason) == (
        8,
        8,
        "zeros are accepted",
    )
    assert row.best is not None
    assert (row.best.kernels, row.best.time_us, row.best.found_right) == (1, None, PROVED.headline)
    searched(asked(), run)
    assert seen[1].dims["rows"] == 4096


@pytest.mark.parametrize(("ours_us", "status"), [(5.0, "faster"), (20.0, "keep-pytorch")])
def test_a_measured_plan_counts_against_the_fastest_baseline(ours_us: float, status: str) -> None:
    baselines = (Timing(name=EAGER, samples_us=(30.0,) * 5), Timing(name=COMPILED, samples_us=(10.0,) * 5))
    timed = measured(ours_us, effort="race").model_copy(update={"baselines": baselines})
    row = searched(asked(), lambda task: found(task, [step(0, evaluation=timed)]))
    assert row is not None
    assert (row.status, row.fastest, row.baselines_us) == (status, COMPILED, {EAGER: 30.0, COMPILED: 10.0})
    assert row.speedup is not None
    assert row.speedup.ratio == 10.0 / ours_us
    assert (row.best and row.best.time_us, row.environment) == (ours_us, timed.environment.key)


def test_no_plan_and_an_interruption() -> None:
    row = searched(asked(), lambda task: found(task, [step(0, evaluation=REJECTED)]))
    assert row is not None
    assert (row.status, row.best, row.reason) == ("no-plan", None, REJECTED.headline)
    assert searched(asked(), lambda task: found(task, [], "interrupted")) is None

    def impossible(_: ModuleTask) -> RunResult:
        raise UsageError("its buffers do not fit")

    row = searched(asked(), impossible)
    assert row is not None
    assert (row.status, row.reason, row.operations) == ("no-plan", "its buffers do not fit", 2)


def test_figures_count_what_became_of_modules() -> None:
    rows = [
        module_row(asked("level1/1_a"), 2.0),
        module_row(asked("level1/2_b"), 0.5),
        module_row(asked("level2/1_c"), None),
        module_row(asked("level2/2_d"), 8.0, soundness="unsound"),
        module_row(asked("level2/3_e"), status="no-task", best=None, fastest=""),
    ]
    first, second, total = module_figures([*rows, module_row(asked("level1/1_a"), 99.0, later_s=-5)])
    assert (first.level, first.modules, first.faster, first.kept) == (1, 2, 1, 1)
    assert (second.proved, second.no_task, second.unsound, second.own, second.over_fastest) == (1, 1, 1, 2, None)
    assert (total.level, total.modules) == (None, 5)
    assert total.over_fastest == pytest.approx(2.0**0.5), "a slower plan counts as 1, an unsound task not at all"
    assert total.over_eager == pytest.approx(3.0), "of a slower plan, PyTorch's fastest is served"
    none = module_row(asked("level2/4_f"), status="no-plan", best=None, fastest="")
    assert module_figures([*rows, none])[-1].over_fastest == pytest.approx(2.0 ** (1 / 3))
    assert module_figures([none])[0].over_fastest is None
    assert module_figures([]) == []


def test_of_several_rows_the_last_counts_whatever_the_file_was() -> None:
    old, new = module_row(asked(rows=8)), module_row(asked(rows=16), later_s=5)
    assert latest_modules([new, old]) == [new]
    assert len(latest_modules([new, module_row(environment="another")])) == 2


def test_rows_of_both_kinds_travel_in_one_file(tmp_path: Path) -> None:
    rows = [module_row(asked("level2/1_b")), module_row(), result(next(iter(tasks(1))))]
    assert write_results(tmp_path / "rows.jsonl.gz", rows) == 3
    assert read_rows([tmp_path]) == [rows[2], rows[1], rows[0]]
    assert read_results([tmp_path]) == rows[2:]
