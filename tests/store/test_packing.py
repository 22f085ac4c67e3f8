"""Packed records: nothing is lost, sources of one writer take little, and a failed transaction leaves no dictionary behind."""

import json
import math
import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select, update

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.store import packing, tables
from cudal2_agent.store.engine import open_engine, writing
from cudal2_agent.store.packing import MAX_GENERATIONS, Packer
from cudal2_agent.store.plain_records import Plain, candidate_content

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    engine = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    with writing(engine) as made:
        yield made
    engine.dispose()


def unpacked(packer: Packer, connection: Connection, packed: packing.Packed) -> object:
    return packer.unpack(connection, packed["dictionary"], packed["data"])


def written(count: int) -> list[Plain]:
    """Candidates of one family, `count` for each of four shapes, without their origins."""
    made = []
    [family] = [one for one in families(Arch.SM_90A) if one.name == "wgmma_tma"]
    for m, n, k in ((128, 256, 4096), (4096, 1024, 512), (64, 64, 16384), (8192, 8192, 8192)):
        task = GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A)
        space = list(family.space(task, REFERENCE_CHIPS[task.arch]))
        candidates = [family.write(space[number * 977 % len(space)], task) for number in range(count)]
        made += [candidate_content(candidate.model_dump(mode="json")).plain for candidate in candidates]
    return made


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(JSON, min_size=1, max_size=6))
def test_every_record_comes_back_from_another_process(connection: Connection, records: list[object]) -> None:
    packer = Packer()
    packed = [packer.pack(connection, "any", record) for record in records]
    assert [unpacked(Packer(), connection, one) for one in packed] == records


def test_not_a_number_and_hard_characters_survive(connection: Connection) -> None:
    packer, hard = Packer(), "\0\u202e🚀 \\ud800"
    number, *rest = packer.unpack(connection, **packer.pack(connection, "any", [math.nan, -math.inf, hard]))
    assert math.isnan(number)
    assert rest == [-math.inf, hard]


def test_sources_of_one_writer_take_a_fraction_of_a_kilobyte(connection: Connection) -> None:
    packer, sources = Packer(), written(15)
    sizes = [len(packer.pack(connection, "candidate", plain)["data"]) for plain in sources]
    assert min(len(json.dumps(plain)) for plain in sources) > 20_000
    assert sum(sizes[20:]) / len(sizes[20:]) < 400
    dictionaries = connection.execute(select(func.count()).select_from(tables.dictionaries)).scalar_one()
    assert dictionaries < 20


def test_what_does_not_resemble_a_dictionary_begins_another_and_their_number_has_an_end(connection: Connection) -> None:
    packer = Packer()
    strange = ["".join(random.Random(seed).choices(string.ascii_letters, k=3000)) for seed in range(120)]
    packed = [packer.pack(connection, "strange", text) for text in strange]
    assert [unpacked(Packer(), connection, one) for one in packed] == strange
    generations = connection.execute(select(func.count(tables.dictionaries.c.generation.distinct()))).scalar_one()
    assert 1 < generations <= MAX_GENERATIONS


def test_a_dictionary_of_a_transaction_that_failed_is_never_used(tmp_path: Path) -> None:
    """Its key is given to the next one, whose content differs."""
    engine, packer = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}"), Packer()
    with engine.begin() as connection:
        packer.pack(connection, "any", "the first dictionary" * 9)
        connection.rollback()
    packer.forget()
    with writing(engine) as connection:
        packed = packer.pack(connection, "any", "another one, of other words" * 9)
        again = packer.pack(connection, "any", "another one, of other words" * 8)
    with engine.connect() as connection:
        assert unpacked(Packer(), connection, packed) == "another one, of other words" * 9
        assert unpacked(Packer(), connection, again) == "another one, of other words" * 8
    engine.dispose()


@pytest.mark.parametrize("place", [0, 6, -1])
def test_a_flipped_byte_is_reported(connection: Connection, place: int) -> None:
    packed = Packer().pack(connection, "any", {"text": "of some length " * 20})
    data = bytearray(packed["data"])
    data[place] ^= 0x10
    with pytest.raises(StoreError, match="is damaged"):
        Packer().unpack(connection, packed["dictionary"], bytes(data))


def test_a_damaged_or_missing_dictionary_is_reported(connection: Connection) -> None:
    packed = Packer().pack(connection, "any", {"text": "of some length " * 20})
    with pytest.raises(StoreError, match="dictionary 99 of the store is missing"):
        Packer().unpack(connection, 99, packed["data"])
    other = packing.zstd.compress(b"something else")
    connection.execute(update(tables.dictionaries).values(data=other))
    with pytest.raises(StoreError, match="dictionary 1 of the store is damaged"):
        Packer().unpack(connection, 1, packed["data"])
