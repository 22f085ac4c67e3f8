"""The parameters of a request, without those that a server has refused."""

import re
import threading
from typing import Any

from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.offered_tools import TOOLS

# Servers use different names for the token limit of a reply. A server that knows neither name keeps its own limit, and the
# reply is stopped when it is too long.
_NEXT_NAME = {"max_tokens": "max_completion_tokens"}
_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})
_OPTIONAL = ("tool_choice", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "stream")
_MIN_TOKENS = 16
_NAMES_TOOLS = re.compile(r"\btools?\b|\btool[_-](?:choice|calls?)|\bfunction[ _-]call", re.IGNORECASE)
_NOT_TAKEN = re.compile(r"unsupported|not supported|unrecogni[sz]ed|unknown|unexpected|not permitted|instead", re.IGNORECASE)
_TOO_MANY = re.compile(r"too (?:large|big|high|long)|at most|max[a-z]* |exceed|less than|range|between|[<>]=?", re.IGNORECASE)
_DIFFERENCE = re.compile(r"(\d+) - (\d+)")  # vLLM: (16384 > 8192 - 3000), the context less the prompt
_NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w-])")


class RequestParameters:
    """Thread-safe. What a server refuses in one request is left out of all later requests."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._refused: set[str] = set()
        self._max_tokens = options.reply_tokens
        self._lock = threading.Lock()

    def of_request(self, reply_tokens: int, *, stream: bool = True, calls: int = 0, called: bool = False) -> dict[str, Any]:
        """`calls`: how many tools the reply may call. `called`: whether the messages hold calls. The tools are then declared
        even where none may be called any more, since some servers do not read calls of tools that are not declared.
        """
        with self._lock:
            refused, most = frozenset(self._refused), self._max_tokens
        wanted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        wanted["max_tokens"] = min(reply_tokens, most)
        if self._options.temperature is not None:
            wanted["temperature"] = self._options.temperature
        if calls or called:
            wanted["tools"] = [tool.declared() for tool in TOOLS]
        if called and not calls:
            wanted["tool_choice"] = "none"
        if "tools" in refused:
            refused |= {"tool_choice"}
        for name, other in _NEXT_NAME.items():
            if name in refused:
                wanted[other] = wanted.pop(name)
        if "stream" in refused or not stream:
            refused |= {"stream", "stream_options"}
        return {name: value for name, value in wanted.items() if name not in refused}

    def learn(self, sent: dict[str, Any], param: str | None, message: str) -> str | None:
        """The parameter that an error names. Later requests omit it, or send a smaller value."""
        for name in _OPTIONAL:
            if name in sent and (param == name or (not param and re.search(rf"\b{name}\b", message))):
                with self._lock:
                    return name if self._learn(name, sent[name], message) else None
        return None

    def learn_tools(self, sent: dict[str, Any], param: str | None, message: str) -> bool:
        """Whether an error refuses the tools of a request. Later requests offer none."""
        if "tools" not in sent or "tool_choice" in (param, *_NAMES_TOOLS.findall(message)):
            return False
        if not (param.startswith("tool") if param else _NAMES_TOOLS.search(message)):
            return False
        with self._lock:
            self._refused.add("tools")
        return True

    def _learn(self, name: str, sent: Any, message: str) -> bool:
        """Whether a retry can help: a limit that cannot be reduced further is not sent again."""
        if name not in _LIMITS or _NOT_TAKEN.search(message) or not _TOO_MANY.search(message):
            self._refused.add(name)
            return True
        smaller = _named(message, sent) or sent // 2
        self._max_tokens = min(self._max_tokens, smaller)
        return bool(smaller >= _MIN_TOKENS)


def _named(message: str, sent: int) -> int:
    """The token limit that an error names: the largest number below the sent value; 0 if there is none."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", message)
    numbers = [int(a) - int(b) for a, b in _DIFFERENCE.findall(plain)] or [int(found) for found in _NUMBER.findall(plain)]
    return max((number for number in numbers if _MIN_TOKENS <= number < sent), default=0)
