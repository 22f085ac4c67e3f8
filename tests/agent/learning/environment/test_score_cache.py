"""The file of evaluations: found again, damaged, of another version, not writable, and used by several at once."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cudal2_agent.agent.learning.environment import score_cache
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.contract.events import Notice
from tests.doubles import measured, unmeasured

ROOT = Path(__file__).parents[4]
WRITER = """
import sys
from pathlib import Path
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from tests.doubles import measured
kept = ScoreCache(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    kept.keep(f"key-{number}", measured(5.0))
    print(number, flush=True)
    number += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "scores.sqlite"


def test_what_is_kept_is_found_by_another_object(path: Path) -> None:
    ScoreCache(path).keep("a", measured(5.0))
    ScoreCache(path).keep("b", unmeasured(4.0, "emulator"))
    assert ScoreCache(path).find(["a", "b", "c"]) == {"a": measured(5.0), "b": unmeasured(4.0, "emulator")}


def test_an_entry_that_cannot_be_read_is_not_known(path: Path) -> None:
    kept = ScoreCache(path)
    kept.keep("a", measured(5.0))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE scores SET evaluation = x'00'")
    assert kept.find(["a"]) == {}
    kept.keep("a", measured(6.0))
    assert kept.find(["a"]) == {"a": measured(6.0)}


def damage_all(path: Path) -> None:
    path.write_bytes(b"no database\n" * 500)


def damage_pages(path: Path) -> None:
    """The first page, which says what the file is, stays."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def other_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {score_cache.FORMAT + 1}")


@pytest.mark.parametrize(
    ("harm", "said"),
    [(damage_all, "is damaged"), (damage_pages, "is damaged"), (other_version, "is of another version")],
)
def test_a_file_that_cannot_be_used_is_made_anew_with_one_notice(path: Path, harm, said: str) -> None:
    ScoreCache(path).keep("a", measured(5.0))
    harm(path)
    events: list[Notice] = []
    kept = ScoreCache(path, events.append)  # type: ignore[arg-type]
    assert kept.find(["a"]) == {}
    kept.keep("a", measured(6.0))
    assert kept.find(["a"]) == {"a": measured(6.0)}
    [notice] = events
    assert notice.message == f"{path} {said}; it is made anew, and candidates are evaluated again"


def test_a_folder_that_cannot_be_made_costs_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    events: list[Notice] = []
    kept = ScoreCache(tmp_path / "file" / "scores.sqlite", events.append)  # type: ignore[arg-type]
    kept.keep("a", measured(5.0))
    assert kept.find(["a"]) == {}
    assert [notice.message.partition(" (")[0] for notice in events] == [f"scores are not kept in {tmp_path}/file/scores.sqlite"]


def test_a_locked_file_is_not_taken_for_a_damaged_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_cache, "BUSY_TIMEOUT_S", 0.05)
    events: list[Notice] = []
    kept = ScoreCache(path, events.append)  # type: ignore[arg-type]
    kept.keep("a", measured(5.0))
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        kept.keep("b", measured(6.0))
        assert kept.find(["a"]) == {}
    assert kept.find(["a", "b"]) == {"a": measured(5.0)}
    [notice] = events
    assert "locked" in notice.message


def test_threads_and_a_process_that_is_killed_while_it_writes(path: Path) -> None:
    """What the killed process has reported is there, and the others have lost nothing."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        kept = ScoreCache(path)
        keys = [[f"{thread}-{number}" for number in range(20)] for thread in range(2)]
        threads = [threading.Thread(target=lambda own=own: [kept.keep(key, measured(7.0)) for key in own]) for own in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        first = writer.stdout.readline()  # it has written at least once, however slow this machine is
        writer.kill()
        reported = [int(line) for line in (first, *writer.stdout.read().splitlines())]
    expected = [f"key-{number}" for number in reported] + keys[0] + keys[1]
    assert ScoreCache(path).find(expected).keys() == set(expected)
