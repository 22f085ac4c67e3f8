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
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def canonical_json(value: Any) -> str:
    """The one text that every equal JSON value has."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
