"""Files of strangers are read under limits: what is refused is refused in one line, and a bomb is not unpacked."""

import gzip
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cudal2_agent.contract import foreign
from cudal2_agent.contract.foreign import (
    first_error,
    members,
    parse_json,
    parse_record,
    parse_toml,
    read_file,
    read_lines,
    read_packed,
)
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A gzip file that unpacks to a thousand times its size, in one line."""
    path = tmp_path / "bomb.gz"
    block = gzip.compress(b" " * (8 << 20))
    path.write_bytes(block * 2)
    return path


def test_a_bomb_is_refused_before_it_is_unpacked(bomb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    monkeypatch.setattr(foreign, "MAX_FILE_BYTES", limit)
    tracemalloc.start()
    for read in (lambda path: read_packed(path, limit), lambda path: list(read_lines(path))):
        with pytest.raises(ValueError, match=f"more than {limit:,} bytes"):
            read(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * limit


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_file(Path("/dev/zero"), 1000)


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"\x1f\x8bnot gzip at all", gzip.compress(b"abc" * 100, mtime=0)[:-9]])
def test_a_damaged_file_is_a_value_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(ValueError, match="damaged or incomplete"):
        read_packed(tmp_path / "a.gz")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 300, '{"a":' * 5000, "[" + "0," * foreign.MAX_PARTS + "0]", "", "{", "\ud800"]
)
def test_json_of_no_sensible_form_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    with pytest.raises(ValueError, match=r"."):
        parse_record(GemmTask, text)


def test_toml_that_is_too_deep_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_toml(b"a = " + b"[" * 10_000)


def test_a_record_with_many_faults_is_one_line() -> None:
    text = json.dumps({"attempts": [{}] * 5000})
    with pytest.raises(ValueError, match=r"^[\d,]+ values are missing or wrong$"):
        parse_record(Observation, text)
    with pytest.raises(ValidationError) as caught:
        GemmTask.model_validate({"m": "x"})
    assert first_error(caught.value).startswith("m: Input should be")


def test_members_are_those_of_the_whole_text_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_BLOCK", 1)
    value = {"a": 12.5, "events": [{"x": [1, {"y": 'ä\\"]'}]}, 7, "z"], "b": None, "events2": [1], "c": -13}
    for indent in (None, 1):
        text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
        found: dict[str, Any] = {}
        for name, one in members(io.BytesIO(text), "events"):
            found[name] = [*found.get(name, []), one] if name == "events" else one
        assert found == value


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"a"}', '{"a":1', '{"a":1,', '{"e":1}', '{"e":[1', '{"e":[1,', '{"e":[1 2]}', '{"a":' + "[" * 5000]
)
def test_a_text_that_is_cut_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(members(io.BytesIO(text.encode()), "e"))


def test_damaged_texts_are_value_errors() -> None:
    drawn = random.Random(0)
    text = json.dumps({"a": 1, "e": [{"b": [1, 2, "c"]}] * 3, "d": {}}).encode()
    for _ in range(2000):
        damaged = bytearray(text)
        for _ in range(drawn.randint(1, 3)):
            damaged[drawn.randrange(len(damaged))] = drawn.choice(b'{}[]",:0 \xff')
        try:
            list(members(io.BytesIO(bytes(damaged)), "e"))
        except ValueError:
            continue
