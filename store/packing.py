"""Packs records into zstd frames, with dictionaries that the store learns from its own records.

A dictionary is nothing but the first records of a purpose, such as the candidates of one kernel family, one after the other.
Sources that one writer wrote differ in a few constants, so each takes about 0.1 KB, whatever version of the writer wrote it.
A dictionary never changes: one that grows becomes another row, and older frames keep theirs. When records no longer resemble
a full dictionary, the next generation begins.
"""

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.foreign import parse_json
from cudal2_agent.store import tables

try:  # of the standard library from Python 3.14 on, before that its backport
    from compression import zstd as zstd  # type: ignore[import-not-found,unused-ignore]
except ModuleNotFoundError:
    from backports import zstd as zstd

ALGORITHM = "sha256"
LEVEL = 9
MIN_TAUGHT_BYTES = 64
MAX_DICTIONARY_BYTES = 256 * 1024
MAX_RECORD_BYTES = 64 * 1024**2
MAX_MEMBERS = 8  # records of the size at hand; more of them pack the next one hardly better
MAX_GENERATIONS = 12  # of one purpose; the newest is used after that
_WELL_PACKED = 1 / 200  # share of its size from which a record teaches a growing dictionary nothing
_RESEMBLES = 1 / 4  # share of its size up to which a record resembles a full dictionary
_OPEN = 4  # generations that a record is compared with
_CACHED = 48
_OPTIONS = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
    zstd.CompressionParameter.dict_id_flag: 0,
}

_DICTIONARIES = tables.Keyed(tables.dictionaries, "hash")

Packed = dict[str, Any]  # the columns `dictionary` and `data`


@dataclass(frozen=True)
class _Dictionary:
    key: int
    generation: int
    raw: bytes
    loaded: zstd.ZstdDict


class Packer:
    """Packs and unpacks the records of one database, and caches its dictionaries. `forget` drops what it has cached."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[int, _Dictionary] = OrderedDict()
        self._newest: dict[str, list[_Dictionary]] = {}

    def forget(self) -> None:
        """After a transaction failed: the dictionaries that it added do not exist."""
        self._by_key.clear()
        self._newest.clear()

    def pack(self, connection: Connection, purpose: str, plain: Any) -> Packed:
        """The columns of a plain record, within a transaction that may add a dictionary. `purpose`: what it resembles.

        Raises: UnicodeEncodeError for half a surrogate pair, which no export could hold.
        """
        text = to_json(plain)
        if b"\\ud" in text:
            json.dumps(plain, ensure_ascii=False).encode()
        open_ones = self._newest.get(purpose)
        if open_ones is None:
            open_ones = self._newest[purpose] = self._read_newest(connection, purpose)
        best, frame = None, b""
        for dictionary in open_ones:
            found = _compress(text, dictionary)
            if best is None or len(found) < len(frame):
                best, frame = dictionary, found
            if len(frame) <= len(text) * _RESEMBLES:
                break
        if (taught := self._learn(connection, purpose, text, best, len(frame))) is not None:
            best, frame = taught, _compress(text, taught)
        return {"dictionary": best.key if best else None, "data": frame if best else _compress(text, None)}

    def unpack(self, connection: Connection, dictionary: int | None, data: bytes) -> Any:
        """The plain record. Raises: StoreError where the frame or its dictionary is damaged."""
        try:
            known = self._read(connection, dictionary) if dictionary is not None else None
            return parse_json(_decompress(data, known, MAX_RECORD_BYTES))
        except (zstd.ZstdError, ValueError) as exc:
            raise StoreError(
                f"a record of the store is damaged ({exc}); `cudal2-agent trajectories verify` lists such"
            ) from exc

    def check(self, connection: Connection, key: int) -> None:
        """Reads a dictionary. Raises: StoreError where it is missing or damaged."""
        try:
            self._read(connection, key)
        except zstd.ZstdError as exc:
            raise StoreError(f"dictionary {key} of the store is damaged ({exc}); restore the store from a copy") from exc

    def _learn(
        self, connection: Connection, purpose: str, text: bytes, best: _Dictionary | None, packed: int
    ) -> _Dictionary | None:
        """The dictionary that a record adds to those of its purpose; None where it teaches nothing."""
        if not MIN_TAUGHT_BYTES <= len(text) <= MAX_DICTIONARY_BYTES // 2:
            return None
        newest = self._newest[purpose]
        if best is None:
            return self._add(connection, purpose, None, 0, text)
        room = min(MAX_DICTIONARY_BYTES, MAX_MEMBERS * len(text)) - len(best.raw)
        if best is newest[0] and packed > len(text) * _WELL_PACKED and len(text) <= room:
            return self._add(connection, purpose, best, best.generation, text)
        if packed > len(text) * _RESEMBLES and newest[0].generation + 1 < MAX_GENERATIONS:
            return self._add(connection, purpose, None, newest[0].generation + 1, text)
        return None

    def _add(self, connection: Connection, purpose: str, base: _Dictionary | None, generation: int, text: bytes) -> _Dictionary:
        raw = (base.raw if base else b"") + text
        key = _DICTIONARIES.find(connection, named_hash(raw))
        if key is None:
            row = {"purpose": purpose, "generation": generation, "base": base.key if base else None, "hash": named_hash(raw)}
            key = _DICTIONARIES.insert(connection, {**row, "data": _compress(text, base)})
        added = self._cache(key, generation, raw)
        others = [one for one in self._newest[purpose] if one.generation != generation]
        self._newest[purpose] = [added, *others][:_OPEN]
        return added

    def _read_newest(self, connection: Connection, purpose: str) -> list[_Dictionary]:
        """The last dictionary of each of the newest generations, newest first."""
        own = tables.dictionaries.c
        last = select(func.max(own.key)).where(own.purpose == purpose).group_by(own.generation)
        keys = connection.execute(last.order_by(own.generation.desc()).limit(_OPEN)).scalars().all()
        return [self._read(connection, key) for key in keys]

    def _read(self, connection: Connection, key: int) -> _Dictionary:
        """Raises: StoreError where it is missing or damaged."""
        if key in self._by_key:
            self._by_key.move_to_end(key)
            return self._by_key[key]
        own = tables.dictionaries
        row = connection.execute(select(own).where(own.c.key == key)).one_or_none()
        if row is None:
            raise StoreError(f"dictionary {key} of the store is missing; restore the store from a copy")
        if row.base is not None and row.base >= key:  # a cycle
            raise StoreError(f"dictionary {key} of the store is damaged; restore the store from a copy")
        base = self._read(connection, row.base) if row.base is not None else None
        raw = (base.raw if base else b"") + _decompress(row.data, base, MAX_DICTIONARY_BYTES)
        if named_hash(raw) != row.hash or len(raw) > MAX_DICTIONARY_BYTES:
            raise StoreError(f"dictionary {key} of the store is damaged; restore the store from a copy")
        return self._cache(key, row.generation, raw)

    def _cache(self, key: int, generation: int, raw: bytes) -> _Dictionary:
        made = self._by_key[key] = _Dictionary(key, generation, raw, zstd.ZstdDict(raw, is_raw=True))
        while len(self._by_key) > _CACHED:
            self._by_key.popitem(last=False)
        return made


def to_json(plain: Any) -> bytes:
    """Compact JSON in ASCII. NaN and infinities are written as Python reads them."""
    return json.dumps(plain, separators=(",", ":")).encode("ascii")


def named_hash(data: bytes) -> str:
    return f"{ALGORITHM}:{hashlib.sha256(data).hexdigest()}"


def named(id_: str) -> str:
    """The hash column of a record's id, which is the beginning of the SHA-256 of the record in canonical JSON."""
    return f"{ALGORITHM}:{id_}"


def _compress(text: bytes, dictionary: _Dictionary | None) -> bytes:
    loaded = dictionary.loaded.as_digested_dict if dictionary else None
    frame: bytes = zstd.ZstdCompressor(options=_OPTIONS, zstd_dict=loaded).compress(text, zstd.ZstdCompressor.FLUSH_FRAME)
    return frame


def _decompress(frame: bytes, dictionary: _Dictionary | None, most_bytes: int) -> bytes:
    """Raises: ZstdError for a damaged frame; ValueError for one that is incomplete or unpacks to more."""
    unpacking = zstd.ZstdDecompressor(dictionary.loaded.as_digested_dict if dictionary else None)
    text: bytes = unpacking.decompress(frame, most_bytes + 1)
    if len(text) > most_bytes:
        raise ValueError(f"a frame of more than {most_bytes:,} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("an incomplete frame, or more than one")
    return text
