"""Removes the key of a chat server from text and from log records.

Covered: the key as plain, JSON, URL-quoted and base64 text, alone or inside a longer text; a key that a server truncates;
user names and passwords in addresses. Not covered: a key shorter than eight characters. Such a key is a placeholder for a
server without keys, and replacing `none` in a reply would break code.
"""

import base64
import json
import logging
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

from pydantic import SecretStr

MASK = "***"
_MIN_KEY_CHARS = 8
_PREFIX_CHARS = 12  # of a key at least twice as long: long enough to identify the key, too short to use it
_USERINFO = re.compile(r"(?<=://)[^/\s@\"'<>]{1,512}@")
# A filter on a handler would see every record, but handlers belong to the application. A logger's filter sees only the
# records that are logged to this logger itself.
_LOGGERS = (
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "httpcore2.proxy",
    "httpcore2.socks",
    "httpx2",
    "openai",
    "openai._base_client",
    "openai._response",
)


class Redactor:
    """Removes a key from a server's text before the text reaches an error, an event, a log or the store."""

    def __init__(self, key: SecretStr | None) -> None:
        plain = key.get_secret_value() if key else ""
        self._forms = _pattern(plain) if len(plain) >= _MIN_KEY_CHARS else None

    def __call__(self, text: str) -> str:
        if self._forms is not None:
            text = self._forms.sub(MASK, text)
        return _USERINFO.sub(f"{MASK}@", text)


class LogGuard(logging.Filter):
    """Redacts the log records of the packages that carry requests, at every level, until it is closed."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._redact = redact
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), ()
        return True

    def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)


def _pattern(key: str) -> re.Pattern[str]:
    forms = {key, json.dumps(key)[1:-1], quote(key, safe=""), quote_plus(key), *_base64_forms(key.encode())}
    longest_first = sorted((re.escape(form) for form in forms), key=len, reverse=True)
    if len(key) >= 2 * _PREFIX_CHARS:
        longest_first.append(re.escape(key[:_PREFIX_CHARS]) + r"[\w.~+/=*-]*")
    return re.compile("|".join(longest_first))


def _base64_forms(key: bytes) -> set[str]:
    """The base64 text of the key for each of the three alignments that it can have inside a longer text."""
    forms = set()
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        padded = bytes(before) + key
        whole = padded[: len(padded) // 3 * 3]
        forms |= {encode(whole).decode()[dropped:] for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    return forms
