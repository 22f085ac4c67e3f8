"""The tools as a request offers them, in the form of the chat-completions protocol."""

from dataclasses import dataclass
from typing import Any

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
    "Searches notes about the architecture and the indexed CUTLASS sources. Returns excerpts.",
)
TOOLS = (COMPILE, VERIFY, PREDICT, SEARCH)
