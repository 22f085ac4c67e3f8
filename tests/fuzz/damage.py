"""Random damage to files: to bytes, to values of JSON, and to both below a packing. Equal seeds give equal damage."""

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from cudal2_agent.store.packing import zstd

MOST_BYTES = 1 << 20  # of a damaged file before it is packed
_TEXTS = (
    *(
        "",
        "../../outside",
        "/etc/passwd",
        "\x1b[2J\x1b]0;t\x07",
        "\u202egnp.exe",
        "a" * 70_000,
        "NaN",
        "0x10",
        "-",
        ".",
        "\0",
        "é",
        "null",
    ),
    *("1e999", "64x64x64", "9" * 400, "%s%n{0}", "http://127.0.0.1:9/v1", "sm_90a", "2026-11-27T00:00:00Z"),
)
_NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    2**31 - 1,
    2**31,
    2**53,
    2**63,
    -(2**63),
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
)
_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, *_NUMBERS, *_TEXTS)
_MARKS = (
    *(bytes([mark]) for mark in b'{}[]",:\0\xff\n\r\\ -9'),
    b"\x1b[31m",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"null",
    b"[" * 3000,
    b"NaN",
)
_INTS = tuple(
    number.to_bytes(size, "little") for size in (1, 2, 4, 8) for number in (0, 1, 127, 128, 255) if number < 256**size
)
_BIG = (b"\xff" * 2, b"\xff" * 4, b"\xff" * 8, b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x40")
_BOMB_BYTES = 96 << 20

Damage = Callable[[bytes, random.Random], bytes]


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """A few places are changed, cut, doubled or filled."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 16, 64, 500))
        match rng.randrange(8):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = rng.choice(_MARKS)
            case 3:
                replacement = rng.choice((*_INTS, *_BIG))
                data[at : at + len(replacement)] = replacement
            case 4:
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 100))
            case 5:
                other = rng.randrange(len(data) + 1)
                data[at : at + size] = data[other : other + size]
            case 6:
                del data[at:]
            case _:
                if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
    return bytes(data[:MOST_BYTES])


def damaged_json(content: bytes, rng: random.Random) -> bytes:
    """A value of a JSON text is another, is gone, or is there twice. What is no JSON has damaged bytes."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return damaged_bytes(content, rng)
    if rng.random() < 0.15:
        return damaged_bytes(content, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _changed(value, rng)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")[:MOST_BYTES]


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one part of it changed, at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.92:
        name = rng.choice(list(value))
        match rng.randrange(12):
            case 0:
                return {key: held for key, held in value.items() if key != name}
            case 1:
                return {**value, rng.choice(_TEXTS): value[name]}
            case _:
                return {**value, name: _changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.92:
        at = rng.randrange(len(value))
        match rng.randrange(12):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + value[at : at + 1] * rng.choice((2, 3, 1000)) + value[at + 1 :]
            case _:
                return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and value and rng.random() < 0.3:
        return damaged_bytes(value.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.7:
        return rng.choice(_NUMBERS)
    return rng.choice(_VALUES)


def damaged_lines(content: bytes, rng: random.Random) -> bytes:
    """Some lines of JSON are damaged, are gone, are there twice or stand elsewhere."""
    lines = content.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                lines.insert(at, rng.choice(lines))
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                rng.shuffle(lines)
            case _:
                lines[at] = damaged_json(lines[at], rng)
    return b"\n".join(lines)[:MOST_BYTES]


def packed_gzip(inner: Damage) -> Damage:
    return _packed(inner, _gunzipped, lambda data: gzip.compress(data, 1))


def packed_zstd(inner: Damage) -> Damage:
    return _packed(inner, _unzstd, lambda data: zstd.compress(data, 1))


def _gunzipped(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _begun(file)


def _unzstd(content: bytes) -> bytes:
    with zstd.ZstdFile(io.BytesIO(content)) as file:
        return _begun(file)


def _begun(file: IO[bytes]) -> bytes:
    """Of a file that was a bomb before, only the beginning: the harness is to take no memory itself."""
    return file.read(4 * MOST_BYTES)


def _packed(inner: Damage, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]) -> Damage:
    def damage(content: bytes, rng: random.Random) -> bytes:
        if (drawn := rng.random()) < 0.15:
            return damaged_bytes(content, rng)
        if drawn < 0.155:
            return pack(rng.choice((b" ", b"[", b'{"a":', b"\n")) * (_BOMB_BYTES // 4))
        try:
            return pack(inner(unpack(content), rng))
        except Exception:  # noqa: BLE001 (a damaged packing, kept for what it reached)
            return damaged_bytes(content, rng)

    return damage


def damaged_archive(content: bytes, rng: random.Random) -> bytes:
    """Another archive with odd members, or damaged bytes."""
    if rng.random() < 0.5:
        return damaged_bytes(content, rng)
    made = io.BytesIO()
    names = [
        rng.choice((f"a/{number}.hpp", "../x.hpp", "/x.hpp", "C:x.hpp", "a\\..\\x.hpp", "a/b.md", "x.py", "", "..", "é.hpp"))
        for number in range(rng.randint(1, 5))
    ]
    body = rng.choice((b"int a;\n", b"", b"x" * 100_000, b"\0" * (8 << 20)))
    if content[:2] == b"PK":
        with zipfile.ZipFile(made, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as zipped:
            for name in names:
                info = zipfile.ZipInfo(name or "x")
                info.external_attr = rng.choice((0o100644, 0o120777, 0o010644, 0o040755)) << 16
                zipped.writestr(info, body if rng.random() < 0.7 else rng.choice(("../../x", "/etc/passwd", "a")))
    else:
        mode = (
            "w:gz"
            if content[:2] == b"\x1f\x8b"
            else "w:xz"
            if content[:2] == b"\xfd7"
            else "w:bz2"
            if content[:3] == b"BZh"
            else "w"
        )
        with tarfile.open(fileobj=made, mode=mode, format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:  # type: ignore[call-overload]
            for name in names:
                info = tarfile.TarInfo(name or "x")
                info.type = rng.choice(
                    (
                        tarfile.REGTYPE,
                        tarfile.REGTYPE,
                        tarfile.SYMTYPE,
                        tarfile.LNKTYPE,
                        tarfile.FIFOTYPE,
                        tarfile.CHRTYPE,
                        tarfile.DIRTYPE,
                    )
                )
                info.linkname = rng.choice(("", "../../etc/passwd", "a/0.hpp", "/x", "."))
                info.size = len(body) if info.type == tarfile.REGTYPE else 0
                if rng.random() < 0.2:
                    info.pax_headers = {
                        "comment": "x" * rng.choice((10, 1_000_000)),
                        "path": rng.choice(("../../p.hpp", "ok.hpp")),
                    }
                tar.addfile(info, io.BytesIO(body) if info.size else None)
    result = made.getvalue()
    return damaged_bytes(result, rng) if rng.random() < 0.3 else result


def chosen(damages: Sequence[Damage]) -> Damage:
    """One of several kinds of damage each time."""
    return lambda content, rng: rng.choice(damages)(content, rng)
