"""Tools in the protocol: messages with calls as a request sends them, and calls as they arrive in pieces.

No part of a server's data is assumed to have the form that the protocol specifies.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cudal2_agent.contract.records.exchange import Message, ToolCall

MAX_CALLS = 64  # of one reply; further ones are ignored
_MAX_NAME_CHARS = 200


@dataclass
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class PartialCalls:
    """The tool calls of a reply so far. Pieces belong together by their index, or else by their id."""

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        self._indices: dict[int, _PartialCall] = {}

    def add(self, pieces: Any) -> int:
        """Add the pieces of a chunk. Returns the characters that they added."""
        if not isinstance(pieces, list):
            return 0
        return sum(self._add(piece) for piece in pieces if isinstance(piece, dict))

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, each with an id of its own. Calls without a name are left out."""
        found: dict[str, ToolCall] = {}
        for number, call in enumerate(one for one in self._calls if one.name):
            call_id = call.id if call.id and call.id not in found else f"call_{number}"
            found[call_id] = ToolCall(id=call_id, name=call.name, arguments=joined(call.arguments))
        return tuple(found.values())

    def _add(self, piece: dict[str, Any]) -> int:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        call = self._place(piece.get("index"), _text(piece.get("id")), _text(function.get("name")))
        if call is None:
            return 0
        written = function.get("arguments")
        text = json.dumps(written) if isinstance(written, dict) else _text(written)
        call.arguments.append(text)
        return len(text)

    def _place(self, index: Any, call_id: str, name: str) -> _PartialCall | None:
        """The call to which a piece belongs. Some servers send no index, others index 0 for each whole call."""
        number = index if isinstance(index, int) else None
        call = self._indices.get(number) if number is not None else (self._calls[-1] if self._calls else None)
        opens = bool(name) and (call is None or number is None or bool(call_id and call.id and call_id != call.id))
        if call is None or opens:
            if len(self._calls) >= MAX_CALLS:
                return None
            call = _PartialCall()
            self._calls.append(call)
        if number is not None:
            self._indices[number] = call
        call.id = call.id or call_id[:_MAX_NAME_CHARS]
        call.name = call.name or name[:_MAX_NAME_CHARS]
        return call


def as_sent(messages: Sequence[Message], *, with_system: bool = True) -> list[dict[str, Any]]:
    """Messages as the protocol writes them. `with_system`: False moves the text of a system message into the next message."""
    sent: list[dict[str, Any]] = []
    moved = ""
    for message in messages:
        if message.role == "system" and not with_system:
            moved += f"{message.content}\n\n"
        else:
            sent.append(_as_sent(message) | {"content": moved + message.content})
            moved = ""
    return [*sent, *([{"role": "user", "content": moved.strip()}] if moved else [])]


def _as_sent(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _as_json(call.arguments)}}
            for call in message.calls
        ]
    if message.call_id:
        sent["tool_call_id"] = message.call_id
    return sent


def _as_json(arguments: str) -> str:
    """The arguments of an earlier call. Some servers parse them again and refuse what is not an object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return arguments if isinstance(value, dict) else json.dumps({"malformed": arguments})


def joined(parts: list[str]) -> str:
    """The parts as one text. Surrogates that a server split between chunks are paired; lone ones are replaced."""
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
