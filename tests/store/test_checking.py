"""`check_store` finds every flipped bit that changes what a store says."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.events import Event
from cudal2_agent.store.checking import check_store
from cudal2_agent.store.store import open_store
from cudal2_agent.store.tables import metadata
from tests.store.small_store import small_store

# A flip here may change no record: a key to which nothing refers, what only chooses among sound dictionaries, and a number of
# shared attempts that is larger than there are.
OF_CAMPAIGNS = {
    "campaigns",
    "campaign_items",
    "shape_results",
    "module_results",
    "tuned_baselines",
}  # campaigns/test_results.py flips those
INDIFFERENT = {("dictionaries", "purpose"), ("dictionaries", "generation"), ("exchanges", "key"), ("observations", "shared")}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "store.sqlite"
    small_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "store.sqlite"))


def faults(path: Path) -> list[str]:
    try:
        with open_store(f"sqlite:///{path}") as store:
            return list(check_store(store))
    except StoreError as exc:
        return [f"not opened: {exc}"]


def contents(path: Path) -> list[str]:
    with open_store(f"sqlite:///{path}") as store:
        return [trajectory.model_dump_json() for trajectory in store.trajectories()]


def test_a_sound_store_has_no_fault(copy: Path) -> None:
    before = copy.read_bytes()
    assert faults(copy) == []
    assert copy.read_bytes() == before


def test_progress_is_told(copy: Path) -> None:
    events: list[Event] = []
    with open_store(f"sqlite:///{copy}") as store:
        assert list(check_store(store, events.append)) == []
    assert events[-1].model_dump()["done"] == events[-1].model_dump()["total"] > 0


def flipped(value: object, rng: random.Random) -> object:
    match value:
        case int():
            return value ^ 1
        case float():
            return value + max(abs(value), 1.0) * 2.0**-50
        case str():
            place = rng.randrange(len(value))
            return value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
        case bytes():
            place = rng.randrange(len(value))
            return value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]
    raise AssertionError(value)


def cells(path: Path) -> Iterator[tuple[str, str, int, object]]:
    """(table, column, row, value) of one random filled cell in every column."""
    rng = random.Random(14)
    with closing(sqlite3.connect(path)) as connection:
        for table in metadata.tables.values():
            if table.name in OF_CAMPAIGNS:
                continue
            for column in table.columns:
                query = f'select rowid, "{column.name}" from {table.name} where "{column.name}" is not null'
                found = connection.execute(query).fetchall()
                assert found, f"no row fills {table.name}.{column.name}"
                yield (table.name, column.name, *rng.choice(found))


def test_a_bit_flipped_in_any_column_is_found(original: Path, tmp_path: Path) -> None:
    rng, sound = random.Random(14), contents(original)
    for table, column, row, value in cells(original):
        path = Path(shutil.copy(original, tmp_path / "store.sqlite"))
        with closing(sqlite3.connect(path)) as connection, connection:
            try:
                connection.execute(f'update {table} set "{column}" = ? where rowid = ?', (flipped(value, rng), row))
            except sqlite3.IntegrityError:  # the flipped value is that of another row
                connection.execute(f'update {table} set "{column}" = ? where rowid = ?', (12345, row))
        if not faults(path):
            assert (table, column) in INDIFFERENT
            assert contents(path) == sound


def test_a_byte_flipped_anywhere_in_the_file_is_found_or_changes_nothing(original: Path, tmp_path: Path) -> None:
    rng, found = random.Random(41), 0
    sound, whole = contents(original), original.read_bytes()
    filled = [place for place, byte in enumerate(whole) if byte]
    for _ in range(40):
        place = rng.choice(filled)
        path = tmp_path / "store.sqlite"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        if faults(path):
            found += 1
        else:
            assert contents(path) == sound, place
    assert found >= 20


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("delete from step_records where step = 1", "step 1: it has no record"),
        ("delete from contents where kind = 'prompt'", "exchanges: row 1 refers to a row of contents that does not exist"),
        ("update observations set parent = key where parent is not null", "it continues one that came later"),
        ("update steps set profile = candidate where profile is not null", "of another kind"),
        ("update steps set candidate = 1 + (candidate = 1)", ""),
        ("update runs set policy = 'x' where run_id = 'run-2'", "(run run-2): its policy is 'x', its record says 'chat'"),
        ('update steps set "index" = 9 where "index" = 7', "its hash"),
        ("delete from observation_contents where place = 0", "the places of its contents have a gap"),
    ],
)
def test_what_was_changed_by_hand_is_named_in_one_line(copy: Path, sql: str, said: str) -> None:
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(sql)
    found = faults(copy)
    assert any(said in line for line in found), found
    assert found
    assert all("\n" not in line for line in found)


def test_a_damaged_definition_of_a_table_is_one_line(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes().replace(b"FOREIGN", b"FOREI\xc7N", 1))
    [line] = faults(copy)
    assert "is damaged" in line
    assert "\n" not in line
