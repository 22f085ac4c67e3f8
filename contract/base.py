"""The base class of every record, and the hash that makes ids."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """An immutable value that parts exchange and the store keeps. It rejects unknown fields and survives a JSON round trip."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def storable(value: Any) -> Any:
    """A JSON value with a replacement character for every half of a surrogate pair, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {storable(name): storable(part) for name, part in value.items()}
    return [storable(part) for part in value] if isinstance(value, list) else value


def json_of(record: Record) -> str:
    """The record as JSON for a file or a terminal, whatever its text holds (`storable`)."""
    try:
        return record.model_dump_json()
    except ValueError:
        return type(record).model_validate(storable(record.model_dump(mode="json"))).model_dump_json()
