"""What the entry lends to a command whose container lacks it: a home, a name, a folder for temporary files."""

import getpass
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from cudal2_agent.agent.cli import main as entry
from cudal2_agent.agent.cli.main import main


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know."""

    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "CUDAL2_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("command", ["doctor", "runs list", "optimize --shape 64x64x64", "index status"])
def test_a_user_without_a_home_is_told_what_to_set(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entry._lend_what_a_container_lacks()
    assert main(command.split()) == 2
    assert capsys.readouterr().err == "error: this user has no home folder; set CUDAL2_HOME to a folder that can be written\n"


@pytest.mark.usefixtures("stranger")
def test_the_home_of_the_settings_and_a_number_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "")  # undone at the end
    monkeypatch.setenv("HOME", "x")
    monkeypatch.delenv("HOME")
    entry._lend_what_a_container_lacks()
    assert Path.home() == tmp_path / "home"
    assert getpass.getuser() == f"user-{os.getuid()}"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system whose usual folders for temporary files cannot be written. The home of the settings."""

    def unusable() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "_get_default_tempdir", unusable)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "x")  # undone at the end
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_temporary_files_lie_in_the_home_where_there_is_no_other_place(nowhere: Path) -> None:
    entry._lend_what_a_container_lacks()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(nowhere / "tmp")


def test_a_command_without_any_place_says_so(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere.write_text("a file in the place of the home")
    entry._lend_what_a_container_lacks()
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith("error: no folder for temporary files can be written; set TMPDIR or CUDAL2_HOME")


class PanicException(BaseException):
    """As of libraries in Rust."""


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (RuntimeError("can't start new thread"), True),
        (BlockingIOError(11, "Resource temporarily unavailable"), True),
        (PanicException('ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, message: "…" }) }'), True),
        (RuntimeError("another"), False),
        (PanicException("index out of bounds"), False),
    ],
)
def test_a_refused_thread_is_one_line_and_other_faults_are_not_hidden(
    error: BaseException, refused: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(entry, "app", fail)
    if refused:
        assert main([]) == 1
        assert capsys.readouterr().err.startswith(
            "error: the system refuses another process or thread; raise the limit: pids.max"
        )
    else:
        with pytest.raises(type(error)):
            main([])
