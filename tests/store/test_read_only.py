"""A store in a folder where nothing can be written, as in a home on a read-only mount: it is read, and a writer is told."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.store import read_only
from cudal2_agent.store.merging import merge_store
from cudal2_agent.store.read_only import copied_folder
from cudal2_agent.store.store import open_store
from tests.doubles import OBSERVATION, run_record, step

NOBODY = 65534
STEPS = 3


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="home-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def filled(path: Path, steps: int = STEPS) -> None:
    with open_store(f"sqlite:///{path}") as store:
        store.start_run(run_record())
        store.record_observation("run-1", OBSERVATION)
        for index in range(steps):
            store.record_step(step(index, number=index))


def left_by_a_killed_writer(path: Path) -> None:
    """A store whose last steps are in the write-ahead log alone."""
    whole = path.with_name("whole.sqlite")
    filled(whole, 0)
    with closing(sqlite3.connect(whole)) as reader:
        reader.execute("SELECT * FROM runs").fetchall()  # keeps the log from being taken up when the store is closed
        with open_store(f"sqlite:///{whole}") as store:
            for index in range(STEPS):
                store.record_step(step(index, number=index))
        for suffix in ("", "-wal"):
            shutil.copy(f"{whole}{suffix}", f"{path}{suffix}")
    assert Path(f"{path}-wal").stat().st_size > 0
    for one in path.parent.glob("whole*"):
        one.unlink()


def with_a_rollback_journal(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()


def read_as_nobody(path: Path, steps: int) -> None:
    """Reads twice, and is refused when it writes."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for _ in range(2):
        with open_store(f"sqlite:///{path}") as store:
            assert [run.run_id for run in store.runs()] == (["run-1"] if steps else [])
            assert store.step_counts() == ({"run-1": steps} if steps else {})
            with pytest.raises(StoreError, match="readonly database") as caught:
                store.start_run(run_record("run-2"))
            assert len(str(caught.value).splitlines()) == 1
    if steps:
        with open_store("sqlite://") as mine:
            assert merge_store(mine, str(path)).steps == steps


@pytest.mark.parametrize("make", [filled, left_by_a_killed_writer, with_a_rollback_journal, None])
def test_a_store_in_a_read_only_folder_is_read(home: Path, nursery: ForkServerContext, make: partial[None] | None) -> None:
    path = home / "trajectories.sqlite"
    if make is not None:
        make(path)
    before = {one.name: one.read_bytes() for one in home.iterdir()}
    for one in home.iterdir():
        one.chmod(0o444)
    home.chmod(0o555)
    process = nursery.Process(target=read_as_nobody, args=(path, STEPS if make else 0))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert {one.name: one.read_bytes() for one in home.iterdir()} == before


def test_a_store_of_an_older_version_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "trajectories.sqlite"
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0002'")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreError, match=r"has version 0002, .* copy it to a folder of your own"):
        open_store(f"sqlite:///{path}")


def test_a_copy_of_a_folder_is_made_once_and_goes_with_the_process(home: Path) -> None:
    (home / "inner").mkdir()
    (home / "inner" / "file").write_text("text")
    copy = copied_folder(home, 1)
    assert (copy / "inner" / "file").read_text() == "text"
    assert copied_folder(home, 1) == copy != copied_folder(home, 2)
    for folder in read_only._COPIES:
        folder.cleanup()
    assert not copy.exists()
    copied_folder.cache_clear()
