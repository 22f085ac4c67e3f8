"""Sources of problem files: files, folders, collections; and how collections come."""

import subprocess
from pathlib import Path

import pytest

from cudal2_agent.agent.tasks.adding import add_collection
from cudal2_agent.agent.tasks.problem_sources import collections, problems_of
from cudal2_agent.contract.errors import Cudal2Error, UsageError
from tests.doubles.modules import PROBLEM


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Three problems in two levels, what is none, and a link that leads out."""
    root = tmp_path / "KernelBench"
    for name in ("KernelBench/level1/10_Last.py", "KernelBench/level1/9_First.py", "KernelBench/level2/1_Other.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(PROBLEM.format(rows=8))
    (root / "KernelBench/level1/helper.py").write_text("")
    (root / "setup.py").write_text("")
    (tmp_path / "secret.py").write_text("")
    (root / "KernelBench/level1/3_Link.py").symlink_to(tmp_path / "secret.py")
    return root


def names(source: str, home: Path) -> list[str]:
    return [each.name for each in problems_of(source, home)]


def test_a_linked_folder_is_a_collection(checkout: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert add_collection(str(checkout), None, home) == ("kernelbench", 3)
    assert list(collections(home)) == ["kernelbench"]
    assert names("kernelbench", home) == ["kernelbench:1/9", "kernelbench:1/10", "kernelbench:2/1"]
    assert names("kernelbench:1", home) == ["kernelbench:1/9", "kernelbench:1/10"]
    assert problems_of("kernelbench:2/1", home)[0].path.name == "1_Other.py"


def test_a_repository_is_fetched_at_a_tag(checkout: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = {"cwd": checkout, "check": True, "capture_output": True}
    who = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1"]):
        subprocess.run([*who, *words], **told)  # type: ignore[call-overload]
    (checkout / "KernelBench/level2/2_Later.py").write_text(PROBLEM.format(rows=8))
    for words in (["add", "."], ["commit", "-qm", "two"]):
        subprocess.run([*who, *words], **told)  # type: ignore[call-overload]
    assert add_collection(f"git+file://{checkout}@v1", "kb", home) == ("kb", 3)
    with pytest.raises(Cudal2Error, match="has no v9; its last tags: v1"):
        add_collection(f"git+file://{checkout}@v9", "other", home)
    assert list(collections(home)) == ["kb"]
    assert [path.name for path in (home / "tasks").iterdir()] == ["kb"]


def test_files_and_folders_are_sources(checkout: Path, tmp_path: Path) -> None:
    folder = checkout / "KernelBench" / "level1"
    assert names(str(folder), tmp_path) == ["9_First", "10_Last", "helper"]
    assert names(str(folder / "9_First.py"), tmp_path) == ["9_First"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing", "no file, folder or collection; collections that were added: mine"),
        ("mine:7", "has no problems"),
        ("mine:1/77", "no problem 1/77"),
        ("yours:1/1", "there is no collection 'yours'"),
        ("empty", "holds no Python file"),
    ],
)
def test_a_source_without_problems_is_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    add_collection(str(checkout), "mine", tmp_path)
    with pytest.raises(UsageError, match=said):
        problems_of(source, tmp_path)


def test_a_collection_that_is_none_is_refused(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    add_collection(str(checkout), "mine", tmp_path)
    for source, name, said in (
        (tmp_path / "empty", "e", "has no problems"),
        (tmp_path / "absent", "a", "is no folder"),
        (checkout, "../up", "is no name"),
        (checkout, "mine", "there is a collection 'mine' already"),
    ):
        with pytest.raises(UsageError, match=said):
            add_collection(str(source), name, tmp_path)
    assert list(collections(tmp_path)) == ["mine"]
