"""Notices of a service: damaged files, failed launches, GPUs and drivers without measurements. Each is logged once."""

import logging
import threading

_LOG = logging.getLogger(__name__)


class Notices:
    """What was logged, in its order."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._lock = threading.RLock()

    def add(self, text: str) -> None:
        with self._lock:
            if text in self._texts:
                return
            self._texts[text] = None
        _LOG.warning("cudal2: %s", text)

    def texts(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._texts)
