"""The form of a spec decides the kind of source; an invalid spec gets one line with the valid forms."""

import os
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.opening import open_source
from cudal2_agent.indexer.sources.scratch import scratch
from tests.indexer.doubles import Heard


def test_a_folder_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "a.md").write_text("# a\n")
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    with open_source("my notes", name=None, work_dir=tmp_path / "work", emit=heard) as tree:
        assert (tree.root, tree.name, tree.kind) == (folder, "my-notes", "documents")
        origin = tree.origin
    assert heard.progress("fetch") == [(0, 1), (1, 1)]
    monkeypatch.chdir("/")
    with open_source(origin, name="again", work_dir=tmp_path / "work", emit=ignore) as tree:
        assert (tree.files, tree.name) == (("a.md",), "again")


def test_a_folder_called_like_a_version_is_named_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "4.2.0").mkdir()
    (tmp_path / "4.2.0/a.hpp").write_text("int a;\n")
    monkeypatch.chdir(tmp_path)
    with open_source("./4.2.0", name=None, work_dir=tmp_path, emit=ignore) as tree:
        assert tree.files == ("a.hpp",)


def test_one_document_is_a_release(tmp_path: Path) -> None:
    (tmp_path / "manual.txt").write_text("text\n")
    (tmp_path / "other.txt").write_text("text\n")
    with open_source(str(tmp_path / "manual.txt"), name=None, work_dir=tmp_path, emit=ignore) as tree:
        assert (tree.name, tree.files) == ("manual", ("manual.txt",))


@pytest.mark.parametrize(
    "spec", ["", "nowhere", "no\0where", "nvidia-cutlass", "==1.0", "pkg==", "4", "~nobody-here/x", "https://host/x.zip"]
)
def test_what_is_no_source_is_told_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught, open_source(spec, name=None, work_dir=tmp_path, emit=ignore):
        pass
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pipe", "data.bin"])
def test_what_is_neither_folder_nor_source_is_refused(tmp_path: Path, name: str) -> None:
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(SourceError), open_source(str(tmp_path / name), name=None, work_dir=tmp_path, emit=ignore):
        pass


def test_a_loop_of_links_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with (
        pytest.raises(SourceError, match="not a file or folder"),
        open_source(str(tmp_path / "loop"), name=None, work_dir=tmp_path, emit=ignore),
    ):
        pass


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match="document file in it"),
        open_source(str(tmp_path), name=None, work_dir=tmp_path, emit=ignore),
    ):
        pass


def test_what_a_killed_run_left_long_ago_is_swept(tmp_path: Path) -> None:
    old, young, foreign = tmp_path / "source-old", tmp_path / "source-young", tmp_path / "other"
    for folder in (old, young, foreign):
        folder.mkdir()
        (folder / "a.hpp").write_text("int a;\n")
    long_ago = time.time() - 48 * 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(foreign, (long_ago, long_ago))
    with scratch(tmp_path):
        assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)


def test_a_work_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be used for downloads"), scratch(tmp_path / "file" / "work"):
        pass
