"""A tree becomes a release: only new files are split, no file ends the run, and a killed run continues."""

import functools
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import KnowledgeError, SourceError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.pipeline import IndexReport, index_tree
from cudal2_agent.indexer.sources.opening import open_source
from cudal2_agent.indexer.split.plain import split_plain
from tests.indexer.doubles import SPLITTER, Heard, MemoryStore, split_badly, split_whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lib-1.0"
    for index in range(7):
        file = folder / f"area{index % 2}" / f"file{index}.hpp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"int value{index};\n" * (index + 1))
    return folder


def indexed(folder: Path, store: MemoryStore, heard: Heard | None = None, split=split_whole, **more) -> IndexReport:  # type: ignore[no-untyped-def]
    heard = heard or Heard()
    with open_source(str(folder), name=None, work_dir=folder.parent / "work", emit=heard) as tree:
        return index_tree(tree, store, split, SPLITTER, heard, 2, **more)


def test_a_tree_is_split_staged_and_published_whole(folder: Path) -> None:
    store, heard = MemoryStore(), Heard()
    report = indexed(folder, store, heard)
    assert (report.release, report.files, report.split, report.reused, report.skipped) == ("lib-1.0", 7, 7, 0, 0)
    assert report.pieces == 7
    assert report.embedded == 7
    assert report.seconds > 0
    release = store.releases()[0]
    assert (release.version, release.kind, release.origin, release.files) == ("1.0", "code", str(folder), 7)
    assert store.calls[-2:] == ["publish lib-1.0", "collect"]
    assert {store.files[key].splitter for key in store.manifest("lib-1.0").values()} == {SPLITTER}


def test_progress_is_told_stage_by_stage(folder: Path) -> None:
    heard = Heard()
    indexed(folder, MemoryStore(batch=3), heard)
    assert heard.progress("read")[-1] == (7, 7)
    assert heard.progress("split") == [(done, 7) for done in range(8)]
    assert heard.progress("embed") == [(1, None), (2, None)]
    assert heard.progress("publish") == [(0, 1), (1, 1)]


def test_the_biggest_file_is_split_first(folder: Path) -> None:
    store = MemoryStore()
    with open_source(str(folder), name=None, work_dir=folder.parent, emit=Heard()) as tree:
        index_tree(tree, store, split_whole, SPLITTER, Heard(), 1)
    assert [call for call in store.calls if call.startswith("stage")] == [
        f"stage area{index % 2}/file{index}.hpp" for index in reversed(range(7))
    ]


def test_nothing_is_written_where_nothing_changed(folder: Path) -> None:
    store = MemoryStore()
    indexed(folder, store)
    store.calls.clear()
    started = time.monotonic()
    report = indexed(folder, store)
    assert time.monotonic() - started < 1
    assert store.calls == []
    assert (report.split, report.reused, report.pieces, report.embedded) == (0, 7, 7, 0)


def test_only_what_changed_is_split_again(folder: Path) -> None:
    store = MemoryStore()
    indexed(folder, store)
    store.calls.clear()
    (folder / "area0/file0.hpp").write_text("int other;\n")
    (folder / "area1/file1.hpp").unlink()
    report = indexed(folder, store)
    assert (report.files, report.split, report.reused) == (6, 1, 5)
    assert store.calls == ["stage area0/file0.hpp", "publish lib-1.0", "collect"]
    assert len(store.files) == 6


def test_two_releases_share_their_like_files(folder: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    indexed(folder, store)
    newer = tmp_path / "lib-2.0"
    folder.rename(newer)
    (newer / "area0/file0.hpp").write_text("int other;\n")
    report = indexed(newer, store)
    assert (report.split, report.reused) == (1, 6)
    assert [release.name for release in store.releases()] == ["lib-1.0", "lib-2.0"]
    assert len(store.files) == 8


def test_another_splitter_splits_everything_anew(folder: Path) -> None:
    store = MemoryStore()
    indexed(folder, store)
    with open_source(str(folder), name=None, work_dir=folder.parent, emit=Heard()) as tree:
        assert index_tree(tree, store, split_whole, "lines 2", Heard(), 2).split == 7
    assert len(store.files) == 7


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dies.hpp", "it ended the process (signal 9)"),
        ("exits.hpp", "it ended the process (exit code 3)"),
        ("hangs.hpp", "it took more than 1 s"),
        ("fails.hpp", "the splitter failed with RecursionError"),
    ],
)
def test_a_file_that_breaks_the_splitter_is_split_by_lines(folder: Path, name: str, said: str) -> None:
    (folder / name).write_text("int a;\n\nint b;\n")
    store, heard = MemoryStore(), Heard()
    report = indexed(folder, store, heard, split_badly, split_timeout_s=1)
    assert (report.files, report.split, report.skipped) == (8, 8, 0)
    notice = next(notice for notice in heard.notices if name in notice)
    assert said in notice
    assert notice.isprintable()
    expected = split_plain(name, b"int a;\n\nint b;\n").pieces
    assert store.files[store.manifest("lib-1.0")[name]].pieces == expected
    assert indexed(folder, store, heard, split_badly, split_timeout_s=1).split == 0  # it is not tried again


def test_many_files_that_kill_cost_only_themselves(folder: Path) -> None:
    for index in range(4):
        (folder / f"dies{index}.hpp").write_text("int a;\n" * 99)
    heard = Heard()
    report = indexed(folder, MemoryStore(), heard, split_badly)
    assert report.files == 11
    assert sum("split by lines only" in notice for notice in heard.notices) == 1
    assert "(4): " in heard.notices[0]


def refuse_some(path: str, data: bytes) -> SplitFile:
    if path.endswith("locked.md"):
        raise SourceError(f"{path}: it is encrypted")
    return split_whole(path, data)


def test_a_document_that_cannot_be_read_is_left_out_with_a_notice(folder: Path) -> None:
    (folder / "locked.md").write_text("secret")
    store, heard = MemoryStore(), Heard()
    report = indexed(folder, store, heard, refuse_some)
    assert (report.files, report.split, report.skipped) == (7, 7, 1)
    assert heard.notices == ["lib-1.0: skipped, it is encrypted (1): locked.md"]
    assert "locked.md" not in store.manifest("lib-1.0")


def test_where_no_file_can_be_split_the_old_release_stays(tmp_path: Path) -> None:
    only = tmp_path / "lib"
    only.mkdir()
    (only / "locked.md").write_text("secret")
    store = MemoryStore()
    indexed(only, store)
    (only / "locked.md").write_text("other secret")
    with pytest.raises(SourceError, match="none of its files can be split"):
        indexed(only, store, split=refuse_some)
    assert store.releases()[0].files == 1
    assert not [call for call in store.calls if call.startswith("publish")][1:]


class Stopped(BaseException):
    """Like KeyboardInterrupt, it is not an Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped(), KnowledgeError("the disk is full")])
def test_a_run_that_is_stopped_keeps_the_old_state_and_what_it_staged(folder: Path, error: BaseException) -> None:
    store = MemoryStore()
    indexed(folder, store)
    before = store.manifest("lib-1.0")
    for file in folder.rglob("*.hpp"):
        file.write_text(f"{file.read_text()}int more;\n")

    def fail(index: int) -> None:
        if index == 3:
            raise error

    broken = MemoryStore(fail=fail)
    broken.files, broken.published = store.files, store.published
    with pytest.raises(type(error)):
        indexed(folder, broken)
    assert store.manifest("lib-1.0") == before
    report = indexed(folder, store)
    assert (report.split, report.reused) == (4, 3)


def test_a_killed_run_between_staging_and_publishing_is_finished_by_the_next(folder: Path) -> None:
    store = MemoryStore()
    indexed(folder, store)
    store.published.clear()
    report = indexed(folder, store)
    assert (report.split, report.reused, report.pieces) == (0, 7, 7)
    assert store.releases()


class _NotThere:
    """Cannot be unpickled in another process."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os._exit, (7,))

    __call__ = split_whole


def test_workers_that_cannot_start_are_an_error_and_no_file_is_blamed(folder: Path) -> None:
    store, heard = MemoryStore(), Heard()
    with pytest.raises(KnowledgeError, match=r"cannot be started \(exit code 7\)"):
        indexed(folder, store, heard, _NotThere())
    assert heard.notices == []
    assert store.calls == []


def change_while_split(victim: str, path: str, data: bytes) -> SplitFile:
    """Changes the file on disk before it splits the given data."""
    return split_whole(path, data + b"int late;\n" if path == victim else data)


def test_a_file_that_changes_while_indexing_is_held_under_what_was_split(folder: Path) -> None:
    store = MemoryStore()
    indexed(folder, store, split=functools.partial(change_while_split, "area0/file0.hpp"))
    key = store.manifest("lib-1.0")["area0/file0.hpp"]
    assert store.files[key].text.endswith("int late;\n")
    assert indexed(folder, store).split == 1


def test_no_process_is_left(folder: Path) -> None:
    indexed(folder, MemoryStore(), split=split_badly)
    assert multiprocessing.active_children() == []
