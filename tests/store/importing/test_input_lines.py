"""Lines of a file: the content says how it is packed; a damaged file is one clear line."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.store.compression import zstd
from cudal2_agent.store.importing import input_lines
from cudal2_agent.store.importing.input_lines import lines_of, shown

TEXT = b'{"a":1}\n\r\n{"b":"\xc3\xbc"}'
LINES = [b'{"a":1}', b"", b'{"b":"\xc3\xbc"}']
PACKERS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("packing", PACKERS)
def test_the_content_decides_not_the_name(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "steps.txt"
    path.write_bytes(PACKERS[packing](TEXT))
    assert list(lines_of(str(path))) == LINES


@pytest.mark.parametrize("packing", PACKERS)
def test_stdin_is_read_the_same_way(monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(PACKERS[packing](TEXT))))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(lines_of("-")) == LINES


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:-1] + b"?", lambda data: data + b"more"])
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_damaged_file_is_named(tmp_path: Path, packing: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.zst"
    options = {zstd.CompressionParameter.checksum_flag: 1}
    data = zstd.compress(TEXT * 100, options=options) if packing == "zstd" else gzip.compress(TEXT * 100)
    path.write_bytes(damage(data))
    with pytest.raises(UsageError, match=r"a\.zst is damaged or incomplete \(.*\); nothing was imported: fetch the file again"):
        list(lines_of(str(path)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.zst cannot be read \(No such file or directory\)"):
        list(lines_of(str(tmp_path / "none.zst")))


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 1024**2)
    path = tmp_path / "a.zst"
    path.write_bytes(zstd.compress(b"x" * 5 * 1024**2))
    with pytest.raises(UsageError, match="has a line over 1 MiB; it is not an export"):
        list(lines_of(str(path)))


def test_a_name_that_is_not_utf8_can_be_shown() -> None:
    assert shown("a\udcff.zst") == "a?.zst"
    assert shown("-") == "stdin"
