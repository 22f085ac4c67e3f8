"""Keeps the key out of what the packages that carry requests log, at whatever level an application listens."""

import logging
from collections.abc import Callable

# A handler's filter would see them all, but the handlers are the application's; a logger's sees only its own records.
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


class LogGuard(logging.Filter):
    """Redacts records until it is closed."""

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
