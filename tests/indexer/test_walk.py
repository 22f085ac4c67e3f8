"""Unusual files of every kind in a tree: each is left out or read as far as possible, and reported."""

import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.opening import open_source
from cudal2_agent.indexer.walk import MAX_BYTES, load, read_files
from tests.indexer.doubles import Heard


def read(folder: Path) -> tuple[list[str], int, list[str]]:
    """(paths read, number skipped, notices)."""
    heard = Heard()
    with open_source(str(folder), name="t", work_dir=folder, emit=heard) as tree:
        versions, skipped = read_files(tree, heard)
    return [version.path for version in versions], skipped, heard.notices


def test_text_is_read_in_order_with_its_hash(tmp_path: Path) -> None:
    for name in ("b.hpp", "a/z.cu", "a.md", "c.PY"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with open_source(str(tmp_path), name=None, work_dir=tmp_path, emit=ignore) as tree:
        versions, skipped = read_files(tree, ignore)
    assert [version.path for version in versions] == ["a.md", "a/z.cu", "b.hpp", "c.PY"]
    assert versions[2].sha256 == sha256(b"b.hpp").hexdigest()
    assert versions[2].size == 5
    assert skipped == 0


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01\0\0\0\0",
        b"int a;\n" * 20_000 + b"\0",
        bytes(range(1, 32)) * 50,
        bytes(range(128, 256)) * 50,
        "int a;".encode("utf-16"),
    ],
    ids=["elf", "late NUL", "control", "high bytes", "utf-16"],
)
def test_a_binary_named_hpp_is_skipped(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "good.hpp").write_text("int a;\n")
    (tmp_path / "bad.hpp").write_bytes(content)
    assert read(tmp_path) == (["good.hpp"], 1, ["t: skipped, binary content (1): bad.hpp"])


@pytest.mark.parametrize("content", ["", "\ufeffint a;", "// 行列の積をとる\n" * 20, "\x1b[31m red\f\n", "\t\r\n"])
def test_odd_text_is_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.hpp").write_text(content, encoding="utf-8", newline="")
    assert read(tmp_path) == (["odd.hpp"], 0, [])


def test_invalid_utf8_is_read_and_said_once(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / f"{index}.hpp").write_bytes(b"// caf\xe9 au lait\nint a;\n")
    paths, skipped, notices = read(tmp_path)
    assert (len(paths), skipped) == (5, 0)
    assert notices == ["t: invalid UTF-8 read with replacement characters (5): 0.hpp, 1.hpp, 2.hpp and 2 more"]


def test_a_file_over_the_limit_is_skipped_without_being_read_whole(tmp_path: Path) -> None:
    (tmp_path / "good.hpp").write_text("int a;\n")
    with (tmp_path / "huge.hpp").open("wb") as huge:
        huge.write(b"int a;\n")
        huge.truncate(50 << 20)
    (tmp_path / "just.hpp").write_bytes(b"a" * MAX_BYTES)
    assert read(tmp_path) == (["good.hpp", "just.hpp"], 1, ["t: skipped, larger than 8 MB (1): huge.hpp"])
    assert len(load(tmp_path, "huge.hpp")) == MAX_BYTES + 1


def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/good.hpp").write_text("int a;\n")
    (tmp_path / "a/again").symlink_to(tmp_path)
    (tmp_path / "self.hpp").symlink_to(tmp_path / "self.hpp")
    (tmp_path / "ping.hpp").symlink_to(tmp_path / "pong.hpp")
    (tmp_path / "pong.hpp").symlink_to(tmp_path / "ping.hpp")
    paths, _, notices = read(tmp_path)
    assert paths == ["a/good.hpp"]
    assert sorted(notices) == [
        f"{tmp_path}: links to folders not followed (1): a/again",
        f"{tmp_path}: skipped, not a regular file (3): ping.hpp, pong.hpp, self.hpp",
    ]


def test_links_out_of_the_tree_are_skipped_and_links_within_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret.hpp").write_text("outside")
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    (tree / "in/good.hpp").write_text("int a;\n")
    (tree / "alias.hpp").symlink_to("in/good.hpp")
    (tree / "out.hpp").symlink_to("../secret.hpp")
    (tree / "etc").symlink_to("/etc")
    paths, _, notices = read(tree)
    assert paths == ["alias.hpp", "in/good.hpp"]
    assert f"{tree}: skipped, link out of the tree (1): out.hpp" in notices


def test_a_pipe_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "good.hpp").write_text("int a;\n")
    os.mkfifo(tmp_path / "pipe.hpp")
    paths, _, notices = read(tmp_path)
    assert paths == ["good.hpp"]
    assert notices == [f"{tmp_path}: skipped, not a regular file (1): pipe.hpp"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_cannot_be_stored_or_shown(tmp_path: Path) -> None:
    (tmp_path / "good\n.hpp").write_bytes(b"\0")
    (tmp_path / "fine.hpp").write_text("int a;\n")
    with open(os.fsencode(tmp_path) + b"/bad\xff.hpp", "wb") as bad:
        bad.write(b"int a;\n")
    paths, _, notices = read(tmp_path)
    assert paths == ["fine.hpp"]
    assert len(notices) == 2
    assert all(notice.isprintable() and notice.encode() for notice in notices)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "good.hpp").write_text("int a;\n")
    (tmp_path / "gone.hpp").write_text("int a;\n")
    heard = Heard()
    with open_source(str(tmp_path), name="t", work_dir=tmp_path, emit=heard) as tree:
        (tmp_path / "gone.hpp").unlink()
        versions, skipped = read_files(tree, heard)
    assert ([version.path for version in versions], skipped) == (["good.hpp"], 1)
    assert heard.notices == ["t: skipped, cannot be read: No such file or directory (1): gone.hpp"]


def test_a_tree_of_binaries_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.hpp").write_bytes(b"\0\1\2")
    with pytest.raises(SourceError, match="none of its 1 files contains text"):
        read(tmp_path)
