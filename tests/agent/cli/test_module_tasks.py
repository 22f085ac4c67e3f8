"""How a command line names a module, and what is said of one that it cannot be."""

from pathlib import Path

import pytest

from cudal2_agent.agent.cli.module_flags import read_dims, read_module, read_problem
from cudal2_agent.agent.cli.render.run_answer import unsound
from cudal2_agent.agent.tasks.named_problems import problem_path
from cudal2_agent.agent.wiring.policy import with_policy_of
from cudal2_agent.agent.wiring.schedule_prior import UNTIMED_BUDGET, with_budget
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import Settings
from tests.agent.cli.test_bad_input import refusal
from tests.doubles import CHIP
from tests.doubles.modules import PROBLEM, relu_of_sum


@pytest.fixture
def collection(home: Path) -> Path:
    """A collection `mine` of one problem, 2/7."""
    folder = home / "tasks" / "mine" / "KernelBench" / "level2"
    folder.mkdir(parents=True)
    (folder / "7_Relu_of_sum.py").write_text(PROBLEM.format(rows=32))
    (folder / "71_Other.py").write_text("")
    return folder


def test_a_name_leads_to_its_file(home: Path, collection: Path) -> None:
    assert problem_path("mine:2/7", home) == collection / "7_Relu_of_sum.py"


def test_a_collection_may_be_a_link_to_a_checkout(home: Path, collection: Path) -> None:
    (home / "tasks" / "linked").symlink_to(collection.parents[1])
    assert problem_path("linked:2/7", home).read_text() == PROBLEM.format(rows=32)


@pytest.mark.usefixtures("collection")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "mine:2/8"], "mine has no problem 2/8"),
        (["--task", "mine:3/7"], "mine has no problem 3/7"),
        (["--task", "yours:2/7"], "there is no collection 'yours' (there are mine)"),
        (["--task", "2/7"], "'2/7' is no COLLECTION:LEVEL/NUMBER"),
        (["--task", "../../etc:2/7"], "is no COLLECTION:LEVEL/NUMBER"),
        (["--task", "mine:2/7", "--dims", "rows"], "--dims 'rows' is not NAME=NUMBER"),
        (["--task", "mine:2/7", "--dims", "rows=1.5"], "--dims 'rows=1.5' is not NAME=NUMBER"),
        (["--task", "mine:2/7", "--dims", "rows=1,rows=2"], "--dims names rows twice"),
        (["--task", "mine:2/7", "--arithmetic", "f8"], "--arithmetic 'f8' is not known; choose from f32, tf32"),
        (["--task", "mine:2/7", "--arch", "sm_1"], "--arch 'sm_1'"),
        (["--task", "mine:2/7", "--element", "bf16"], "a module has no --element"),
        (["--task", "mine:2/7", "--shape", "64x64x64"], "--shape and --task name two tasks"),
        (["--shape", "64x64x64", "--dims", "rows=1"], "a matrix product has no --dims"),
        (["--shape", "64x64x64", "--training"], "a matrix product has no --training"),
        (["--problem", "none.py"], "none.py cannot be read (No such file or directory)"),
        (["--problem", "."], "cannot be read"),
        (["--problem", "x.py", "--resume", "run"], "leave out --problem"),
        (["--problem", "x.py", "--replay", "run"], "leave out --problem"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_optimize_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(["optimize", "--device", "none", *arguments], capsys)


def test_sizes_are_read(tmp_path: Path) -> None:
    assert read_dims("batch_size=16, dim=64") == {"batch_size": 16, "dim": 64}
    assert read_dims(None) == {}
    file = tmp_path / "latin.py"
    file.write_bytes(b"# \xe9")
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_problem(file)


def test_a_module_has_a_policy_and_a_budget_of_its_own() -> None:
    settings, module, product = Settings(home=Path()), relu_of_sum(), GemmTask(m=64, n=64, k=64)
    assert with_policy_of(settings, product).policy == "schedule"
    settings = with_policy_of(settings, module)
    assert settings.policy == "fusion"
    assert with_budget(settings, module, CHIP, measures=False).budget == UNTIMED_BUDGET
    assert with_budget(settings, module, CHIP, measures=True).budget == settings.budget
    named = Settings(home=Path(), budget=3)
    assert with_budget(named, module, CHIP, measures=False).budget == 3


class Tracing:
    """A tracer of one task, whose tests accept zeros."""

    def __init__(self, task: ModuleTask) -> None:
        self._task = task

    def __enter__(self) -> "Tracing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trace(self, *_: object) -> ModuleTask:
        return self._task

    def reduced(self, task: ModuleTask, _: int) -> ModuleTask:
        return task

    def soundness(self, task: ModuleTask, seed: int, timeout_s: float) -> Soundness:
        if task.training:
            raise UsageError(f"{task.name}: the check took longer than {timeout_s:g} s")
        return Soundness(status="unsound", reason="zeros are accepted", seed=seed)


def asked(monkeypatch: pytest.MonkeyPatch, home: Path, task: ModuleTask) -> ModuleTask:
    monkeypatch.setattr("cudal2_agent.agent.cli.module_flags.open_tracer", lambda: Tracing(task))
    settings = Settings(home=home, device="emulator")
    return read_module(task.problem, task.name, None, "f32", task.training, None, "offline", settings)


def test_a_search_begins_with_a_check_of_the_tests(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    found = asked(monkeypatch, home, relu_of_sum(32))
    assert unsound(found) == ["unsound task, no reward: zeros are accepted"]
    assert found.id == relu_of_sum(32).id
    late = asked(monkeypatch, home, relu_of_sum(32, training=True))
    assert unsound(late) == ["whether the tests refuse wrong programs is not known: the check took longer than 30 s"]
    assert unsound(relu_of_sum(32, soundness=Soundness(status="sound"))) == []


def test_a_module_without_elements_is_refused(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with pytest.raises(UsageError, match="relu of sum: x has no elements at these sizes"):
        asked(monkeypatch, home, relu_of_sum(0))
