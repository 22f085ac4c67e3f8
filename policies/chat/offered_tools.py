"""The tools as a request offers them, in the form of the chat-completions protocol, and the arguments of a call.

A model writes the arguments, so nothing about their form is assumed.
"""

import json
from dataclasses import dataclass
from typing import Any

from cudal2_agent.contract.records.exchange import ToolCall
from cudal2_agent.policies.chat.prompts.quoting import inline

KERNEL = "kernel"
QUESTION = "question"
_ABOUT = {
    KERNEL: "The whole kernel file, beginning with its launch plan; or the name of a kernel of an earlier call, such as k1.",
    QUESTION: "Plain words, identifiers or an error message.",
}


@dataclass(frozen=True)
class Tool:
    """A tool with one argument, a text."""

    name: str
    argument: str
    description: str

    def declared(self) -> dict[str, Any]:
        """The tool in a request."""
        text = {"type": "string", "description": _ABOUT[self.argument]}
        parameters = {"type": "object", "properties": {self.argument: text}, "required": [self.argument]}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}


COMPILE = Tool(
    "compile_kernel",
    KERNEL,
    "Checks, compiles and inspects a kernel for the task. Returns the errors, or registers, spills, shared memory and resident "
    "CTAs. Takes seconds.",
)
VERIFY = Tool(
    "verify_kernel",
    KERNEL,
    "Compiles a kernel and runs it on an emulator against the tests that it must pass: wrong results, races, missing waits, "
    "deadlocks and accesses out of bounds. Takes seconds to a minute.",
)
PREDICT = Tool(
    "predict_time",
    KERNEL,
    "Predicts the device time of a right kernel on the task's chip, with the time that each resource would need alone where "
    "that is known. It compiles the kernel, may run it on the emulator as verify_kernel does, and is no measurement.",
)
SEARCH = Tool(
    "search_knowledge",
    QUESTION,
    "Searches notes about architectures and kernels, and the indexed sources. Returns excerpts.",
)
TOOLS = (COMPILE, VERIFY, PREDICT, SEARCH)


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
