"""Generated tasks: what is refused, what replaces it, and that a call goes on where another one ended."""

import json
from functools import partial
from pathlib import Path

import pytest

from cudal2_agent.agent.library.row_file import append_row, read_row_file
from cudal2_agent.agent.tasks.generation import Accepted, DrawRow, Generation, check_with, counted
from cudal2_agent.agent.tasks.grammar.problems import DrawnProblem, problem
from cudal2_agent.agent.tasks.held_out import KERNELBENCH, Fingerprint, HeldOut, fingerprints, held_out, read_held_out
from cudal2_agent.agent.tasks.problem_sources import Problem
from cudal2_agent.agent.tasks.signature import signature, text_hash
from cudal2_agent.agent.tasks.task_check import TaskRow
from cudal2_agent.agent.tasks.task_folder import DRAWS, TaskFolder
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from tests.doubles.modules import relu_of_sum

Found = tuple[int, int]  # number and attempt


def row(drawn: DrawnProblem, number: int, attempt: int, status: str = "sound", **changes: object) -> DrawRow:
    name = f"{number}.{attempt}"
    check = TaskRow.model_validate({"name": drawn.name, "key": digest([drawn.text]), "status": status, "seconds": 0.0})
    found = DrawRow(seed=7, number=number, attempt=attempt, text=name, check=check, signature=name, sizes=name)
    return found.model_copy(update=changes)


class Checks:
    """Finds every draw sound, but for those named."""

    def __init__(self, **changes: dict[str, object]) -> None:
        self.asked: list[Found] = []
        self._changes = changes

    def __call__(self, drawn: DrawnProblem, number: int, attempt: int) -> DrawRow:
        self.asked.append((number, attempt))
        return row(drawn, number, attempt, **self._changes.get(f"n{number}_{attempt}", {}))  # type: ignore[arg-type]


def places(found: list[Accepted]) -> list[Found]:
    return [(each.number, each.row.attempt) for each in found]


def accepted(check: Checks, count: int = 4, held: HeldOut | None = None, jobs: int = 1) -> list[Accepted]:
    return list(Generation(7, check, (), lambda _: None).accepted(count, jobs, [held] if held else []))


OUTSIDE = HeldOut(source="theirs", torch="2.13.0", problems=2, texts=("3.0",), signatures=("4.0", "4.1"))


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_refused_draw_is_replaced_and_nothing_else_changes(jobs: int) -> None:
    found = accepted(Checks(n2_0={"status": "unsound"}, n2_1={"status": "untraceable", "sizes": ""}), held=OUTSIDE, jobs=jobs)
    assert places(found) == [(1, 0), (2, 2), (3, 1), (4, 2)]
    assert counted(found) == {"held-out operations": 2, "unsound": 1, "untraceable": 1, "held-out text": 1}
    assert [each.drawn.text for each in found] == [problem(7, *place).text for place in places(found)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"check": TaskRow(name="n", key="", status="sound", reason="redundant: abs", seconds=0.0)}, "redundant"),
        ({"bytes": 5 << 30}, "too large"),
        ({"flops": 1 << 40}, "too large"),
        ({"status": "unchecked"}, "unchecked"),
    ],
)
def test_what_is_refused(change: dict[str, object], reason: str) -> None:
    assert accepted(Checks(n1_0=change), 1)[0].refused == (reason,)


def test_the_same_operations_at_the_same_sizes_are_taken_once() -> None:
    found = accepted(Checks(n3_0={"sizes": "1.0"}, n3_1={"sizes": "2.0"}))
    assert places(found) == [(1, 0), (2, 0), (3, 2), (4, 0)]
    assert found[2].refused == ("repeated", "repeated")


def test_a_number_without_a_sound_draw_is_told() -> None:
    with pytest.raises(UsageError, match="task 1 of seed 7 has no sound problem in 200 draws; the last: held-out text"):
        accepted(Checks(**{f"n1_{attempt}": {"text": "3.0"} for attempt in range(200)}), 1, OUTSIDE)


def test_a_call_goes_on_where_another_one_ended(tmp_path: Path) -> None:
    def generated(check: Checks, count: int) -> list[Accepted]:
        folder = TaskFolder(tmp_path / "drawn")
        rows = read_row_file(folder.draws, DrawRow, "tasks generate")
        found = []
        for task in Generation(7, check, rows, partial(append_row, folder.draws)).accepted(count, 1, []):
            folder.write(task)
            found.append(task)
        return found

    first, second = Checks(n2_0={"status": "unsound"}), Checks()
    before = generated(first, 3)
    kept = tmp_path / "drawn" / DRAWS
    kept.write_text(kept.read_text() + '{"seed": 7, "num')
    after = generated(second, 5)
    assert set(second.asked).isdisjoint(first.asked)
    assert (after[:3], len(second.asked)) == (before, 5 - len({number for number, _ in first.asked} & set(range(1, 6))))
    files = sorted(file.name for file in (tmp_path / "drawn").glob("level*/*.py"))
    assert files == sorted(f"{each.number}_{each.drawn.name}.py" for each in after)


def test_a_task_takes_the_place_of_another_one_of_its_number(tmp_path: Path) -> None:
    path = tmp_path / "drawn"
    for attempt in (0, 1):
        path.mkdir(exist_ok=True)
        (path / DRAWS).touch()
        folder, drawn = TaskFolder(path), problem(7, 1, attempt)
        folder.write(Accepted(1, drawn, row(drawn, 1, attempt), ()))
    [file] = path.glob("level*/1_*.py")
    assert file.read_text() == problem(7, 1, 1).text


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds tasks of seed 7; name another folder with --out"):
        TaskFolder(tmp_path / "one").require_seed([row(problem(7, 1, 0), 1, 0)], 8)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="holds files that were not generated"):
        TaskFolder(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        TaskFolder(tmp_path / "file")


class Traces:
    def trace(self, problem: str, name: str, **_: object) -> ModuleTask:
        if "def" not in problem:
            raise UsageError(f"{name}: it is no task")
        return relu_of_sum(4096)

    def reduced(self, _: ModuleTask, most_work: int) -> ModuleTask:
        return relu_of_sum(min(most_work, 1 << 20))


def test_a_check_tells_what_a_draw_computes() -> None:
    drawn, task = problem(7, 1, 0), relu_of_sum(4096)
    found = check_with(Traces(), lambda _, seed: Soundness(status="sound", seed=seed), 7)(drawn, 1, 0)  # type: ignore[arg-type]
    assert (found.check.status, found.signature, found.text) == ("unchecked", signature(task), text_hash(drawn.text))
    assert "its smallest sizes have" in found.check.reason
    assert (found.bytes, found.flops) == (task.operand_bytes, 0)


def test_fingerprints_hold_hashes_only(tmp_path: Path) -> None:
    texts = {"good": "def Model", "bad": "nothing"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    problems = [Problem(name, tmp_path / f"{name}.py") for name in texts]
    found = [each for _, each in fingerprints(problems, Traces(), Path.read_text, {})]  # type: ignore[arg-type]
    assert found[1] == Fingerprint(text=text_hash("nothing"), reason="it is no task")
    written = held_out("theirs", "2.13.0", found)
    assert (written.problems, len(written.texts), written.signatures) == (2, 2, (signature(relu_of_sum()),))
    file = tmp_path / "theirs.json"
    file.write_text(written.model_dump_json())
    assert read_held_out(file) == written
    file.write_text(json.dumps({"texts": []}))
    with pytest.raises(UsageError, match="holds no fingerprints"):
        read_held_out(file)


def test_kernelbench_is_held_out() -> None:
    """Every one of its problems by text; those that trace by their operations, of which several share a signature."""
    found = read_held_out(KERNELBENCH)
    assert found.problems >= 250
    assert len(found.texts) > 230
    assert len(found.signatures) > 180
    assert KERNELBENCH.stat().st_size < 100_000
    assert all(len(each) == 24 and int(each, 16) for each in (*found.texts, *found.signatures))
