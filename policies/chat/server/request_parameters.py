"""The parameters of a request, without those that a server has refused, and with the limits that its errors have named.

`QUIRKS` is the table of what servers refuse. A refused part is left out of the request and of all later ones; of a refused
`max_tokens` the other name is tried, and the text of a refused system message moves into the message after it.
"""

import re
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from cudal2_agent.contract.records.exchange import Prompt
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.offered_tools import TOOLS
from cudal2_agent.policies.chat.server.reply_room import PromptTooLong, ReplyRoom
from cudal2_agent.policies.chat.server.size_errors import read_size
from cudal2_agent.policies.chat.server.tool_calls import as_sent
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, chars_of

# Servers use different names for the token limit of a reply. A server that knows neither name keeps its own limit, and the
# reply is stopped when it is too long.
_NEXT_NAME = {"max_tokens": "max_completion_tokens"}
_LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Refusal:
    """An error in answer to a request: the HTTP status, the parameter that it names, if any, and the server's message."""

    status: int
    param: str
    message: str


class Quirk(NamedTuple):
    """A part of a request that some servers refuse. `says`: what an error says that refuses it.

    `param`: what it names then. `vague`: the words of `says` also occur in errors of other kinds, so that an error of the
    server's own (5xx) counts only where it says that something is not taken.
    """

    part: str
    param: re.Pattern[str]
    says: re.Pattern[str]
    vague: bool = True


def _quirk(part: str, says: str = "", param: str = "", *, vague: bool = True) -> Quirk:
    return Quirk(part, re.compile(param or f"{part}$"), re.compile(says or rf"\b{part}\b", re.IGNORECASE), vague)


_NO = r"(?:not|n't|un)[ -]?(?:be )?(?:support|allow|enabl|accept|permit)\w*"
_NAMED = r"(?:system|developer) (?:role|message|prompt|instruction)s?\b"
_NO_SYSTEM = (
    rf"(?:unexpected|invalid|unknown|unrecogni[sz]ed|unsupported) .{{0,20}}\brole\b.{{0,20}}\bsystem|{_NAMED}.{{0,40}}{_NO}"
    rf"|{_NO} .{{0,30}}(?:{_NAMED}|['\"`]system\b)|roles? must alternate|\bgot system\b"
    r"|\bonly\b.{0,50}\broles? (?:are|is) |\brole\b.{0,60}should be '(?:user|assistant)'"
)
QUIRKS = (
    _quirk("tool_choice", vague=False),
    _quirk("tools", r"\btools?\b|\btool[_-]calls?|\bfunction[ _-]call", "tool", vague=False),  # llama.cpp's server: a 500
    _quirk("system", _NO_SYSTEM, r"messages\W*0\W*role", vague=False),  # the templates of some models; a 500 at times
    _quirk("stream_options"),
    _quirk("temperature"),
    _quirk("max_tokens"),
    _quirk("max_completion_tokens"),
    _quirk("stream"),
)
_NOT_TAKEN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|not permitted|not allowed|extra_forbidden|instead", re.IGNORECASE
)
# These statuses speak of keys, money, a missing model, or a server that is busy.
_OTHER_MATTERS = frozenset({401, 402, 403, 408, 409, 425, 429})
_THIS_REQUEST = frozenset({400, 413, 422})


class RequestParameters:
    """Thread-safe. What a server refuses in one request is left out of all later requests."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._refused: set[str] = set()
        self._room = ReplyRoom()
        self._lock = threading.Lock()

    def of_request(self, prompt: Prompt, reply_tokens: int, *, stream: bool = True, calls: int = 0) -> dict[str, Any]:
        """The messages and parameters of a request. `calls`: how many tools the reply may call.

        Where the prompt holds calls, the tools are declared even where none may be called any more, since some servers do
        not read calls of tools that are not declared.
        """
        called = any(message.calls for message in prompt.messages)
        with self._lock:
            refused = frozenset(self._refused)
            most = self._room.of(chars_of(prompt), reply_tokens)
        wanted: dict[str, Any] = {"messages": as_sent(prompt.messages, with_system="system" not in refused)}
        wanted |= {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": most}
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

    def learn(self, refusal: Refusal, sent: dict[str, Any], prompt: Prompt, reply_tokens: int) -> str | PromptTooLong | None:
        """The part of a request that an error refuses: later requests omit it, or send a smaller value. None: no part.

        `sent`: what `of_request` gave. A prompt that is too long for the server is not sent again.
        """
        if refusal.status in _OTHER_MATTERS:
            return None
        limit = next((name for name in _LIMITS if name in sent), "")
        found = read_size(refusal.message, sent.get(limit), _tokens(prompt))
        part = _refused_part(refusal, sent, by_words=not (found and found.names_limit))
        takes_less = found if found and (found.names_limit or refusal.status in _THIS_REQUEST) else None
        with self._lock:
            of_size = part is None or (part in _LIMITS and not _NOT_TAKEN.search(refusal.message))
            if of_size and takes_less:
                return self._room.learn(takes_less, sent.get(limit), chars_of(prompt), reply_tokens) or limit
            if part:
                self._refused.add(part)
            return part


def _refused_part(refusal: Refusal, sent: dict[str, Any], *, by_words: bool) -> str | None:
    """The first part of a request that an error names as its parameter, or in its words."""
    for quirk in QUIRKS:
        there = sent["messages"][0]["role"] == "system" if quirk.part == "system" else quirk.part in sent
        in_words = by_words and (not refusal.param or quirk.part == "system") and quirk.says.search(refusal.message)
        certain = refusal.status in _THIS_REQUEST or not quirk.vague or _NOT_TAKEN.search(refusal.message)
        if there and certain and (in_words or (refusal.param and quirk.param.match(refusal.param))):
            return quirk.part
    return None


def _tokens(prompt: Prompt) -> int:
    return round(chars_of(prompt) / CHARS_PER_TOKEN)
