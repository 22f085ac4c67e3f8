"""A home where nothing can be written: every reading command answers and writes nothing, and others say one line."""

import errno
import os
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.store import engine, read_only
from cudal2_agent.store.store import open_store
from tests.doubles.small_base import plant, use_small_parts
from tests.store.small_store import fill

READING = [
    "runs list",
    "runs show run-1",
    "trajectories list",
    "trajectories show run-1",
    "trajectories stats",
    "trajectories verify",
    "trajectories export --out ../exported.jsonl",
    "campaign results",
    "prior list",
    "index list",
    "index status",
    "index verify",
    "index search barrier",
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a store and a knowledge base."""
    folder = tmp_path_factory.mktemp("read-only")
    plant(folder)
    with open_store(f"sqlite:///{folder / 'home' / 'trajectories.sqlite'}") as store:
        fill(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDAL2_HOME", str(folder / "home"))
        patch.setenv("CUDAL2_INDEX_JOBS", "1")
        use_small_parts(patch, folder)
        assert main(["index", "add", str(folder / "tree")]) == 0
    return folder / "home"


@pytest.fixture
def read_only_home(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system says of a read-only mount; root is refused nowhere else."""
    monkeypatch.setenv("CUDAL2_HOME", str(written))
    monkeypatch.chdir(written)
    use_small_parts(monkeypatch, written.parent)
    monkeypatch.setattr(os, "access", lambda path, *_: not str(path).startswith(str(written)))
    monkeypatch.setattr(read_only, "can_share", lambda _: False)
    return written


def state(home: Path) -> dict[str, tuple[int, int]]:
    return {str(one): (one.stat().st_mtime_ns, one.stat().st_size) for one in home.rglob("*")}


@pytest.mark.parametrize("words", READING)
def test_a_reading_command_answers_and_writes_nothing(
    read_only_home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(read_only_home)
    assert main(words.split()) == 0
    told = capsys.readouterr()
    assert "error" not in told.err
    assert state(read_only_home) == before


def test_a_home_without_a_store_has_no_runs(
    read_only_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (read_only_home / "empty").mkdir()
    monkeypatch.setenv("CUDAL2_HOME", str(read_only_home / "empty"))
    assert main(["runs", "list"]) == 0
    assert list((read_only_home / "empty").iterdir()) == []
    (read_only_home / "empty").rmdir()
    assert capsys.readouterr().err == ""


def test_a_writing_command_says_one_line(read_only_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(read_only_home)
    assert main(["trajectories", "prune", "--run", "run-1", "--yes"]) == 2
    assert "readonly database" in assert_one_line(capsys.readouterr().err)
    assert state(read_only_home) == before


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_whatever_cannot_be_written_is_one_line(
    read_only_home: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `train schedule` had it, which makes its folder before anything else."""

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    assert main(["train", "schedule", "--name", "mine"]) == 2
    told = assert_one_line(capsys.readouterr().err)
    assert told.startswith(f"error: {read_only_home / 'policies'} cannot be used: {os.strerror(number)}; ")


def test_other_errors_of_the_system_are_bugs(read_only_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(engine, "connect_reader", broken)
    monkeypatch.setattr(Path, "mkdir", broken)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["train", "schedule", "--name", "mine"])


def assert_one_line(told: str) -> str:
    assert len(told.strip().splitlines()) == 1
    return told
