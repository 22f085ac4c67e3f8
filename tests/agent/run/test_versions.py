"""The commit that results are recorded with: that of a checkout of this product, and of no other repository."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cudal2_agent.agent.run import versions
from cudal2_agent.agent.run.versions import own_commit

OWN = '[project]\nname = "cudal2-agent"\n'
INSIDE = Path("agent/run/versions.py")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True).stdout.strip()


def laid(place: Path) -> Path:
    """This module below a folder, as it lies in a checkout or an environment."""
    (place / INSIDE).parent.mkdir(parents=True)
    shutil.copy(versions.__file__, place / INSIDE)
    return place / INSIDE


def repository(root: Path, pyproject: str, *tracked: str) -> str:
    """Make a folder a repository with one commit; its hash."""
    (root / "pyproject.toml").write_text(pyproject)
    git(root, "init", "-q")
    git(root, "add", "pyproject.toml", *tracked)
    git(root, "commit", "-qm", "first")
    return git(root, "rev-parse", "--short=12", "HEAD")


def test_a_checkout_gives_its_commit_also_through_a_link(tmp_path: Path) -> None:
    file = laid(tmp_path)
    commit = repository(tmp_path, OWN, ".")
    assert len(commit) == 12
    assert own_commit(file) == commit
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "agent").symlink_to(tmp_path / "agent")
    assert own_commit(tmp_path / "installed" / INSIDE) == commit


@pytest.mark.parametrize("pyproject", [OWN, '[project]\nname = "strange"\n', "not toml ["])
def test_an_environment_inside_a_repository_gives_none(tmp_path: Path, pyproject: str) -> None:
    file = laid(tmp_path / ".venv" / "site-packages")
    repository(tmp_path, pyproject)
    assert own_commit(file) == ""


def test_a_strangers_repository_that_tracks_the_file_gives_none(tmp_path: Path) -> None:
    file = laid(tmp_path / "vendored")
    repository(tmp_path, '[project]\nname = "strange"\n', ".")
    assert own_commit(file) == ""


def test_no_repository_and_no_git_give_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = laid(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert own_commit(file) == ""
    repository(tmp_path, OWN, ".")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_commit(file) == ""
