"""The arguments of a tool call. A model writes them, so nothing about their form is assumed."""

import json
from dataclasses import dataclass

from cudal2_agent.contract.records.exchange import ToolCall
from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.chat.tools.offered_tools import TOOLS, Tool


@dataclass(frozen=True)
class ReadCall:
    """A call of a known tool with the text of its argument."""

    tool: Tool
    text: str


@dataclass(frozen=True)
class MalformedCall:
    """A call that cannot be run. `problem`: the reason, which is the call's result."""

    problem: str


def read_call(call: ToolCall) -> ReadCall | MalformedCall:
    """The tool and its argument. JSON inside a JSON string, as some models write it, is read too."""
    tool = next((one for one in TOOLS if one.name == call.name), None)
    if tool is None:
        offered = ", ".join(one.name for one in TOOLS)
        return MalformedCall(f"there is no tool {inline(call.name, 60)!r}; the tools are {offered}")
    form = f'the arguments of {tool.name} are a JSON object {{"{tool.argument}": "..."}}'
    try:
        value = json.loads(call.arguments)
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as exc:
        return MalformedCall(f"{form}; these are not JSON: {inline(str(exc))}")
    text = value.get(tool.argument) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip():
        return MalformedCall(f"{form}; these have no text {tool.argument!r}")
    return ReadCall(tool, text.encode("utf-8", errors="replace").decode("utf-8"))
