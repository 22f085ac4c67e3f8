"""A full disk, a store that may only be read, a reader that goes away: one clear line, and nothing is written by half."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.store.store import Store, open_store
from tests.doubles import OBSERVATION, candidate, measured, run_record, step

ROOM_BYTES = 256 * 1024
NOBODY = 65534
STEPS = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="store-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@pytest.fixture
def path(folder: Path) -> Path:
    """A closed store with a run of some steps."""
    path = folder / "store.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        store.start_run(run_record())
        store.record_observation("run-1", OBSERVATION)
        for index in range(STEPS):
            store.record_step(step(index, number=index))
    return path


def big_step(index: int, noise_bytes: int = 4096) -> Step:
    """A step of twice so many bytes, half of which nothing compresses."""
    noise = candidate(index).model_copy(update={"source": os.urandom(noise_bytes).hex()})
    return step(index, candidate=noise, evaluation=measured(5.0))


def assert_one_line(error: BaseException | str) -> None:
    assert len(str(error).splitlines()) == 1


def assert_usable(path: Path, steps: int) -> None:
    """The store is intact, has so many steps, and takes another."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    with open_store(f"sqlite:///{path}") as store:
        assert [one.index for one in store.steps("run-1")] == list(range(steps))
        store.record_step(step(steps, number=steps))
        assert store.step_counts() == {"run-1": steps + 1}


def record_without_end(store: Store, written: list[int]) -> None:
    for index in count(STEPS):
        store.record_step(big_step(index))
        written.append(index)


def fill(store: Store) -> int:
    """Records steps until the store refuses one; how many it has then."""
    written = list(range(STEPS))
    with pytest.raises(StoreError, match="check the path, its permissions and space") as caught:
        record_without_end(store, written)
    assert_one_line(caught.value)
    return len(written)


def test_a_full_database_is_one_line_and_every_earlier_step_is_kept(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        with store.reading() as (connection, _):
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + ROOM_BYTES // 4096}")
        steps = fill(store)
        with pytest.raises(StoreError, match="full"):
            store.record_step(big_step(steps, 65536))  # a smaller one may fit where the last one did not
        assert len(store.steps("run-1")) == steps
    assert_usable(path, steps)


def _fill_a_full_disk(path: Path, said: Path) -> None:
    """The system refuses to let a file grow, as it does when the disk is full."""
    limit = path.stat().st_size + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with open_store(f"sqlite:///{path}") as store:
        steps = fill(store)
        assert len(store.steps("run-1")) == steps
        said.write_text(str(steps))


def test_a_full_disk_is_one_line_and_every_earlier_step_is_kept(path: Path, nursery: ForkServerContext) -> None:
    said = path.with_name("said")
    _run(nursery, _fill_a_full_disk, path, said)
    assert int(said.read_text()) > STEPS
    assert_usable(path, int(said.read_text()))


def _as_nobody() -> None:
    """Gives up the rights of root, whom no permission stops. Before that, imports what opening a store needs."""
    open_store("sqlite://").close()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _record_in_a_file_that_may_only_be_read(path: Path) -> None:
    _as_nobody()
    with pytest.raises(StoreError, match="check the path, its permissions and space") as caught, _opened(path) as store:
        store.record_step(step(STEPS))
    assert_one_line(caught.value)


def _open_in_a_folder_that_may_only_be_read(path: Path) -> None:
    _as_nobody()
    with pytest.raises(StoreError, match="check the path, its permissions and space") as caught:
        _opened(path.with_name("new.sqlite")).start_run(run_record())  # it is read as an empty one
    assert_one_line(caught.value)
    with pytest.raises(StoreError, match=r"cannot be created: Permission denied") as caught:
        open_store(f"sqlite:///{path.parent / 'new' / 'store.sqlite'}")
    assert_one_line(caught.value)


def _opened(path: Path) -> Store:
    return open_store(f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("attempt", "file_mode", "folder_mode"),
    [
        (_record_in_a_file_that_may_only_be_read, 0o444, 0o777),
        (_record_in_a_file_that_may_only_be_read, 0o444, 0o555),
        (_open_in_a_folder_that_may_only_be_read, 0o444, 0o555),
    ],
)
def test_a_store_that_may_only_be_read_is_one_line_and_unchanged(
    path: Path, nursery: ForkServerContext, attempt: Callable[[Path], None], file_mode: int, folder_mode: int
) -> None:
    before = path.read_bytes()
    path.chmod(file_mode)
    path.parent.chmod(folder_mode)
    _run(nursery, attempt, path)
    path.parent.chmod(0o755)
    path.chmod(0o644)
    assert path.read_bytes() == before
    assert {one.name for one in path.parent.iterdir()} <= {"store.sqlite", "store.sqlite-wal", "store.sqlite-shm"}
    assert_usable(path, STEPS)


def _run(nursery: ForkServerContext, target: Callable[..., None], *arguments: Path) -> None:
    process = nursery.Process(target=target, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_an_export_to_a_closed_pipe_ends_quietly(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        for index in range(STEPS, STEPS + 20):  # more than a pipe holds
            store.record_step(big_step(index))
    command = [
        sys.executable,
        "-c",
        "import sys; from cudal2_agent.agent.cli.main import run; sys.exit(run())",
        "trajectories",
        "export",
    ]
    environment = {**os.environ, "CUDAL2_STORE": f"sqlite:///{path}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"schema_version":1')
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (1, 141)  # 141: what a shell reports for SIGPIPE


@pytest.mark.parametrize(
    "run_id", ["lone \ud800", "byte \udcff", "a\0b", "../..", "%s", "'; DROP TABLE runs; --", "x" * 10_000]
)
def test_a_run_that_nobody_can_name_is_not_there(path: Path, run_id: str) -> None:
    with _opened(path) as store:
        with pytest.raises((StoreError, UsageError)) as caught:
            store.run(run_id)
        assert_one_line(caught.value)
        assert len(store.steps("run-1")) == STEPS


def test_an_address_with_options_of_sqlite_makes_no_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert len(store.steps("run-1")) == STEPS
        with pytest.raises(StoreError, match="readonly database") as caught:
            store.record_step(step(STEPS))
    assert_one_line(caught.value)
    assert not (path.parent / "file:").exists()
