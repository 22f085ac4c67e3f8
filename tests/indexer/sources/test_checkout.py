"""Git checkouts and repositories, created by the test: there is no prompt, and no URL runs a command."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.checkout import remote
from cudal2_agent.indexer.sources.command import CommandResult, run_command
from cudal2_agent.indexer.sources.opening import open_source

VERSION_HEADER = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR {}\n#define CUTLASS_PATCH 0\n"


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A library with two tags: lib.hpp contains 1 at v1.0 and 2 at releases/v2.0. One file is not tracked."""
    folder = tmp_path / "lib.git"
    folder.mkdir()
    git(folder, "init")
    for number, tag in ((1, "v1.0"), (2, "releases/v2.0")):
        (folder / "lib.hpp").write_text(f"int lib = {number};\n")
        git(folder, "add", "lib.hpp")
        git(folder, "commit", "-m", tag)
        git(folder, "tag", tag)
    (folder / "scratch.hpp").write_text("int scratch;\n")
    return folder


def test_a_checkout_gives_its_tracked_files(repository: Path, tmp_path: Path) -> None:
    with open_source(str(repository), name="mine", work_dir=tmp_path, emit=ignore) as tree:
        assert (tree.files, tree.version, tree.origin) == (("lib.hpp",), "releases/v2.0", str(repository))


def test_a_checkout_of_cutlass_is_named_by_its_macros(repository: Path, tmp_path: Path) -> None:
    (repository / "include/cutlass").mkdir(parents=True)
    (repository / "include/cutlass/version.h").write_text(VERSION_HEADER.format(3))
    git(repository, "add", "include")
    with open_source(str(repository), name=None, work_dir=tmp_path, emit=ignore) as tree:
        assert (tree.name, tree.root, tree.files) == ("cutlass-4.3.0", repository / "include", ("cutlass/version.h",))


def test_a_tracked_file_that_is_gone_is_left_out(repository: Path, tmp_path: Path) -> None:
    git(repository, "add", "scratch.hpp")
    (repository / "lib.hpp").unlink()
    with open_source(str(repository), name=None, work_dir=tmp_path, emit=ignore) as tree:
        assert tree.files == ("scratch.hpp",)


def test_a_tracked_folder_that_became_a_link_out_is_left_out(repository: Path, tmp_path: Path) -> None:
    (repository / "in").mkdir()
    (repository / "in/secret.hpp").write_text("int a;\n")
    git(repository, "add", "in")
    (repository / "in").rename(tmp_path / "out")
    (repository / "in").symlink_to(tmp_path / "out")
    with open_source(str(repository), name=None, work_dir=tmp_path, emit=ignore) as tree:
        assert tree.files == ("lib.hpp",)


def test_a_checkout_without_tracked_files_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "a.hpp").write_text("int a;\n")
    with (
        pytest.raises(SourceError, match="document file in it"),
        open_source(str(tmp_path), name=None, work_dir=tmp_path, emit=ignore),
    ):
        pass


def test_a_broken_checkout_is_said(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with (
        pytest.raises(SourceError, match="cannot be read as a git checkout"),
        open_source(str(tmp_path), name=None, work_dir=tmp_path, emit=ignore),
    ):
        pass


@pytest.mark.parametrize(
    ("ref", "number", "name"), [("v1.0", 1, "lib-v1.0"), ("releases/v2.0", 2, "lib-releases-v2.0"), ("main", 2, "lib-main")]
)
def test_a_repository_is_fetched_at_a_tag(repository: Path, tmp_path: Path, ref: str, number: int, name: str) -> None:
    work = tmp_path / "work"
    spec = f"git+file://{repository}@{ref}"
    with open_source(spec, name=None, work_dir=work, emit=ignore) as tree:
        assert (tree.root / "lib.hpp").read_text() == f"int lib = {number};\n"
        assert (tree.files, tree.name, tree.origin) == (("lib.hpp",), name, spec)
    assert list(work.iterdir()) == []


def test_without_a_tag_it_is_the_head(repository: Path, tmp_path: Path) -> None:
    with open_source(f"git+file://{repository}", name="head", work_dir=tmp_path, emit=ignore) as tree:
        assert (tree.root / "lib.hpp").read_text() == "int lib = 2;\n"


def test_a_tag_that_does_not_exist_names_those_that_do(repository: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match=r"has no v9; its last tags: releases/v2\.0, v1\.0") as caught,
        open_source(f"git+file://{repository}@v9", name=None, work_dir=tmp_path / "work", emit=ignore),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("url", ["file:///nowhere/at/all.git", "https://127.0.0.1:9/x.git"])
def test_a_repository_that_cannot_be_reached_is_said(tmp_path: Path, url: str) -> None:
    with (
        pytest.raises(SourceError, match=r"cannot be fetched: ['\w]") as caught,
        open_source(f"git+{url}@v1", name=None, work_dir=tmp_path, emit=ignore),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "git+ext::sh -c 'touch evil'@v1",
        "git+ext::sh/x@v1",
        "git+--upload-pack=touch/x@v1",
        "git+-x",
        "git+",
        "git+git@host:path/x.git",
        "git+https://host/x@--upload-pack=evil",
        "git+https://host/x@a:b",
        "git+https://host/x@+a",
        "git+https://host/x@",
        "git+https://user:secret@host/x@v1",
        "git+ftp://host/x@v1",
        "git+https://host",
        "git+https://host/@v1",
        "git+https://host/x@v1\n",
    ],
)
def test_a_url_that_is_not_to_be_used_is_refused(spec: str) -> None:
    with pytest.raises(SourceError) as caught:
        remote(spec)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "url", "ref"),
    [
        ("git+https://host/a/b.git@v1.0", "https://host/a/b.git", "v1.0"),
        ("git+https://host/a/b", "https://host/a/b", "HEAD"),
        ("git+ssh://git@host/a/b", "ssh://git@host/a/b", "HEAD"),
        ("git+ssh://git@host/a/b@x/y", "ssh://git@host/a/b", "x/y"),
        ("git+https://[::1]:8080/a@v1", "https://[::1]:8080/a", "v1"),
        ("git+file:///a/b.git@x/y/z", "file:///a/b.git", "x/y/z"),
    ],
)
def test_url_and_tag_are_told_apart(spec: str, url: str, ref: str) -> None:
    found = remote(spec)
    assert found is not None
    assert (found.url, found.ref) == (url, ref)


def test_without_git_the_remedy_is_said(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for spec in (str(repository), f"git+file://{repository}@v1.0"):
        with (
            pytest.raises(SourceError, match="git is not installed; install it"),
            open_source(spec, name=None, work_dir=tmp_path, emit=ignore),
        ):
            pass


def test_git_never_gets_to_ask_and_runs_no_hook(repository: Path, tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def run(arguments: Sequence[str], folder: Path, timeout_s: float) -> CommandResult:
        asked.append(arguments)
        return run_command(arguments, folder, timeout_s)

    marker = tmp_path / "evil"
    for hook in ("post-checkout", "post-index-change"):
        script = repository / ".git/hooks" / hook
        script.write_text(f"#!/bin/sh\ntouch {marker}\n")
        script.chmod(0o755)
    git(repository, "config", "core.fsmonitor", f"touch {marker}")
    with open_source(str(repository), name=None, work_dir=tmp_path, emit=ignore, run=run):
        pass
    with open_source(f"git+file://{repository}@v1.0", name=None, work_dir=tmp_path, emit=ignore, run=run):
        pass
    assert asked
    assert all("GIT_TERMINAL_PROMPT=0" in arguments and "core.hooksPath=/dev/null" in arguments for arguments in asked)
    assert not marker.exists()
