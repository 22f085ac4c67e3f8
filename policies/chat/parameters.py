"""What a request says beside its messages, and what a server has shown that it does not take."""

import re
import threading
from typing import Any

from contract.options import ChatOptions

# Servers name the limit of a reply differently. Those without either keep their own; the reply is stopped for length then.
_NEXT_NAME = {"max_tokens": "max_completion_tokens"}
_OPTIONAL = ("stream_options", "max_tokens", "max_completion_tokens", "temperature", "stream")


class Parameters:
    """Thread-safe; what was learned of a server from one request holds for all that follow."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._refused: set[str] = set()
        self._lock = threading.Lock()

    def of_request(self, reply_tokens: int) -> dict[str, Any]:
        with self._lock:
            refused = frozenset(self._refused)
        wanted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": reply_tokens}
        if self._options.temperature is not None:
            wanted["temperature"] = self._options.temperature
        for name, other in _NEXT_NAME.items():
            if name in refused:
                wanted[other] = wanted.pop(name)
        if "stream" in refused:
            refused |= {"stream_options"}
        return {name: value for name, value in wanted.items() if name not in refused}

    def learn(self, sent: dict[str, Any], param: str | None, message: str) -> str | None:
        """The parameter that an error names among those sent, to be left out from now on."""
        for name in _OPTIONAL:
            if name in sent and (param == name or (not param and re.search(rf"\b{name}\b", message))):
                with self._lock:
                    self._refused.add(name)
                return name
        return None
