"""The tools as a request offers them, in the form of the chat-completions protocol, and the arguments of a call.

A model writes the arguments, so nothing about their form is assumed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudal2_agent.contract.records.exchange import ToolCall
from cudal2_agent.policies.chat.prompts.quoting import inline

KERNEL = "kernel"
QUESTION = "question"
PATCH = "patch"
IDEA = "idea"
_ABOUT = {
    KERNEL: "The whole kernel file, beginning with its launch plan; or the name of a kernel of an earlier call, such as k1.",
    QUESTION: "Plain words, identifiers or an error message.",
    PATCH: "Changes to the kernel that `kernel` names: hunks of a unified diff, or pairs of SEARCH and REPLACE. Optional.",
    IDEA: "What is new in the kernel and why it should be faster or right, in one sentence. Optional.",
}


@dataclass(frozen=True)
class Tool:
    """A tool. Its arguments are texts: one that it needs, unless `argument` is empty, and those that may be left out."""

    name: str
    argument: str
    description: str
    optional: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        needed = [self.argument] if self.argument else []
        texts = {name: {"type": "string", "description": _ABOUT[name]} for name in (*needed, *self.optional)}
        return {"type": "object", "properties": texts, "required": needed}

    def declared(self) -> dict[str, Any]:
        """The tool in a request."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


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
    """A call of a known tool with the text of its argument. `others`: what it has of the optional ones.

    `base`: the source that a patch in the call changes; empty without one.
    """

    tool: Tool
    text: str
    others: Mapping[str, str] = field(default_factory=dict)
    base: str = ""


@dataclass(frozen=True)
class MalformedCall:
    """A call that cannot be run. `problem`: the reason, which is the call's result."""

    problem: str


def read_call(call: ToolCall, tools: Sequence[Tool] = TOOLS) -> ReadCall | MalformedCall:
    """The tool and its arguments. JSON inside a JSON string, as some models write it, is read too."""
    tool = next((one for one in tools if one.name == call.name), None)
    if tool is None:
        offered = ", ".join(one.name for one in tools)
        return MalformedCall(f"there is no tool {inline(call.name, 60)!r}; the tools are {offered}")
    fields = f'"{tool.argument}": "..."' if tool.argument else ""
    form = f"the arguments of {tool.name} are a JSON object {{{fields}}}"
    try:
        value = json.loads(call.arguments)
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as exc:
        return MalformedCall(f"{form}; these are not JSON: {inline(str(exc))}")
    given = value if isinstance(value, dict) else {}
    text = given.get(tool.argument) if tool.argument else ""
    if not isinstance(text, str) or (tool.argument and not text.strip()):
        return MalformedCall(f"{form}; these have no text {tool.argument!r}")
    others = {name: given[name] for name in tool.optional if given.get(name) not in (None, "")}
    if wrong := next((name for name, other in others.items() if not isinstance(other, str)), None):
        return MalformedCall(f"{form}; {wrong!r} is no text")
    return ReadCall(tool, _whole(text), {name: _whole(other) for name, other in others.items()})


def _whole(text: str) -> str:
    """The text without lone surrogates, which no store accepts."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
