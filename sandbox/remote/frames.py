"""Records on a stream to which others may write as well: ssh prints a banner, a cluster's modules and srun print notes.

A frame is one line: a mark, the length of the text in bytes, and a JSON text. Whatever is no frame is text of others.
Not covered: others who write in the middle of a frame; its length is then wrong, and the stream counts as broken.
"""

import re
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.foreign import first_error, parse_json

MARK = b"cudal2-worker:"
MAX_FRAME_BYTES = 64 << 20
T = TypeVar("T")
_FRAME = re.compile(re.escape(MARK) + rb"(\d{1,9}) (.*)", re.DOTALL)


class BrokenFrame(Exception):
    """A frame whose length is wrong, or that is no record of this protocol."""


def framed(record: Record) -> bytes:
    """One line, its newline included."""
    text = record.model_dump_json().encode()
    return b"%b%d %b\n" % (MARK, len(text), text)


def framed_text(line: bytes) -> bytes | None:
    """The JSON text of a line; None for text of others. Raises: BrokenFrame."""
    found = _FRAME.search(line.rstrip(b"\r\n"))
    if found is None:
        return None
    length, text = int(found[1]), found[2]
    if length != len(text):
        raise BrokenFrame(f"a frame of {length} bytes that has {len(text)}: {text[:60]!r}")
    return text


def record_of(kind: TypeAdapter[T], text: bytes) -> T:
    """Raises: BrokenFrame."""
    try:
        parse_json(text)  # within limits
        return kind.validate_json(text)
    except ValidationError as exc:
        raise BrokenFrame(f"no record of this protocol: {first_error(exc)}") from exc
    except (ValueError, Cudal2Error, RecursionError) as exc:  # of a plan, the product's own error
        raise BrokenFrame(f"no record of this protocol: {str(exc)[:200]}") from exc
