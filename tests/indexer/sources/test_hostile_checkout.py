"""A repository of a stranger: no key of its configuration, no hook and no attribute runs a program or leads elsewhere."""

import subprocess
from pathlib import Path

import pytest

from cudal2_agent.agent.run.versions import own_commit
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.opening import open_source

# Keys that name a program, with what the key needs beside it. PROGRAM touches a file.
KEYS = {
    "core.sshCommand": "PROGRAM",
    "core.fsmonitor": "PROGRAM",
    "core.gitProxy": "PROGRAM",
    "core.askPass": "PROGRAM",
    "core.pager": "PROGRAM",
    "core.editor": "PROGRAM",
    "core.alternateRefsCommand": "PROGRAM",
    "pager.describe": "PROGRAM",
    "credential.helper": "!PROGRAM",
    "diff.external": "PROGRAM",
    "diff.evil.textconv": "PROGRAM",
    "filter.evil.clean": "PROGRAM",
    "filter.evil.smudge": "PROGRAM",
    "filter.evil.process": "PROGRAM",
    "merge.evil.driver": "PROGRAM",
    "remote.origin.uploadpack": "PROGRAM",
    "remote.origin.url": "ext::PROGRAM",
    "remote.origin.vcs": "evil",
    "uploadpack.packObjectsHook": "PROGRAM",
    "gpg.program": "PROGRAM",
    "alias.describe": "!PROGRAM",
    "alias.ls-files": "!PROGRAM",
    "trace2.eventTarget": "MARKER",
}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "a-program-ran"


@pytest.fixture
def hostile(tmp_path: Path, marker: Path) -> Path:
    """A partial clone that lacks the object of its tag, so that reading it would fetch, with a program behind every key."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    git(folder, "init")
    (folder / "lib.hpp").write_text("int lib;\n")
    (folder / ".gitattributes").write_text("*.hpp filter=evil diff=evil merge=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    git(folder, "tag", "v1.0")
    git(folder, "tag", "-m", "annotated", "v2.0")
    missing = git(folder, "rev-parse", "v2.0")
    (folder / ".git/objects" / missing[:2] / missing[2:]).unlink()
    for hook in (folder / ".git/hooks").iterdir():
        hook.with_suffix("").write_text(program.read_text())
        hook.with_suffix("").chmod(0o755)
    config = folder / ".git/config"
    config.write_text(config.read_text().replace("repositoryformatversion = 0", "repositoryformatversion = 1"))
    partial = "[extensions]\npartialClone = origin\n"
    remote = '[remote "origin"]\npromisor = true\nurl = ssh://127.0.0.1:9/x\npartialclonefilter = blob:none\n'
    with config.open("a") as file:
        file.write(partial + remote)
    return folder


def lay(hostile: Path, marker: Path, key: str) -> None:
    program = str(hostile.parent / "program")
    git(hostile, "config", key, KEYS[key].replace("PROGRAM", program).replace("MARKER", str(marker)))
    marker.unlink(missing_ok=True)


def test_the_repository_does_run_a_program_where_git_is_called_in_it(hostile: Path, marker: Path) -> None:
    lay(hostile, marker, "core.sshCommand")
    subprocess.run(["git", "describe", "--tags"], cwd=hostile, check=False, capture_output=True)
    assert marker.exists()


@pytest.mark.parametrize("key", KEYS)
def test_no_key_runs_a_program(hostile: Path, marker: Path, tmp_path: Path, key: str) -> None:
    lay(hostile, marker, key)
    with open_source(str(hostile), name="x", work_dir=tmp_path / "work", emit=ignore) as tree:
        assert tree.files == ("lib.hpp",)
    for ref in ("v1.0", "v2.0"):  # the second is missing
        try:
            with open_source(f"git+file://{hostile}@{ref}", name="x", work_dir=tmp_path / "work", emit=ignore) as tree:
                assert tree.files == ("lib.hpp",)
        except SourceError:
            assert ref == "v2.0"
    assert not marker.exists()


def test_an_included_file_is_not_read(hostile: Path, marker: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.config").write_text(f"[core]\nsshCommand = {tmp_path / 'program'}\nfsmonitor = {tmp_path / 'program'}\n")
    git(hostile, "config", "include.path", str(tmp_path / "evil.config"))
    git(hostile, "config", "core.worktree", "/")
    marker.unlink(missing_ok=True)
    with open_source(str(hostile), name="x", work_dir=tmp_path / "work", emit=ignore) as tree:
        assert tree.files == ("lib.hpp",)
    assert not marker.exists()


def test_the_commit_of_a_surrounding_checkout_is_read_without_its_programs(hostile: Path, marker: Path) -> None:
    (hostile / "pyproject.toml").write_text('[project]\nname = "cudal2-agent"\n')
    lay(hostile, marker, "core.fsmonitor")
    assert own_commit(hostile / "lib.hpp") == git(hostile, "-c", "core.fsmonitor=", "rev-parse", "--short=12", "HEAD")
    assert not marker.exists()


@pytest.mark.parametrize("written", ["gitdir: /dev/zero\n", "gitdir: /\n", "gitdir: \0\n", "\xff" * 5000, ""])
def test_a_git_file_that_leads_nowhere_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.hpp").write_text("int a;\n")
    (tmp_path / ".git").write_text(written)
    with (
        pytest.raises(SourceError, match="cannot be read as a git checkout: there is no git repository"),
        open_source(str(tmp_path), name="x", work_dir=tmp_path / "work", emit=ignore),
    ):
        pass


def test_linked_bare_shallow_and_sha256_repositories_are_read(hostile: Path, tmp_path: Path) -> None:
    git(hostile, "tag", "-d", "v2.0")
    git(hostile, "worktree", "add", str(tmp_path / "linked"))
    git(hostile, "clone", "--quiet", "--bare", str(hostile), str(tmp_path / "bare.git"))
    git(hostile, "clone", "--quiet", "--depth=1", f"file://{hostile}", str(tmp_path / "shallow"))
    (tmp_path / "wide").mkdir()
    git(tmp_path / "wide", "init", "--object-format=sha256")
    (tmp_path / "wide/lib.hpp").write_text("int lib;\n")
    git(tmp_path / "wide", "add", ".")
    git(tmp_path / "wide", "commit", "-m", "first")
    git(tmp_path / "wide", "tag", "v1.0")
    for spec in ("linked", "shallow", "wide"):
        with open_source(str(tmp_path / spec), name="x", work_dir=tmp_path / "work", emit=ignore) as tree:
            assert (tree.files, tree.version) == (("lib.hpp",), "v1.0")
    for spec in ("bare", "bare.git", "linked"):
        with open_source(f"git+file://{tmp_path}/{spec}@v1.0", name="x", work_dir=tmp_path / "work", emit=ignore) as tree:
            assert tree.files == ("lib.hpp",)
