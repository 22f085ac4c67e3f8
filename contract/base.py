"""The base class of every record, the hash that makes ids, and the forms of ids that become names of files."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=128)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Of a library or a chip. It is written into exported sources and pages, so that it has no quotes, line ends or markup.
Name = Annotated[str, Field(pattern=r"^\w[\w .+()/-]{0,99}$")]


class Record(BaseModel):
    """An immutable value that parts exchange and the store keeps. It rejects unknown fields and survives a JSON round trip."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of a JSON value in canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def canonical_json(value: Any) -> str:
    """The one text that every equal JSON value has."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
