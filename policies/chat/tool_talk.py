"""The tool calls of one conversation: what is left of the cap, kernels by their names, the kernel that a reply hands in."""

import re
from collections.abc import Sequence

from cudal2_agent.contract.records.exchange import Message, Prompt, ToolCall, ToolResult
from cudal2_agent.policies.chat.named_kernels import NamedKernels
from cudal2_agent.policies.chat.offered_tools import MalformedCall
from cudal2_agent.policies.chat.prompts.quoting import plain
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, chars_of
from cudal2_agent.policies.chat.toolbox import Toolbox

NO_CALL_LEFT = "No further call is possible. Reply with the kernel."
_HAND_IN = (
    "To hand in a kernel of a call unchanged, write a line `COMMIT` and its name, such as `COMMIT k1`, in place of the code."
)
_COMMIT = re.compile(r"^[ \t*`]*COMMIT[ \t:]+`?(k\d+)[ \t*`.]*$", re.MULTILINE)
_PROMPT_GROWTH = 1.5  # a prompt that has grown so far offers no tools, so that the reply still fits in the context


class ToolTalk:
    """The tools of one conversation. Without a toolbox no tool is offered.

    A kernel in a call gets a name, `k1` and so on, by which later calls and the reply may name it.
    """

    def __init__(self, toolbox: Toolbox | None, max_calls: int, prompt_tokens: int) -> None:
        self._toolbox = toolbox
        self._left = max_calls if toolbox else 0
        self._max_chars = _PROMPT_GROWTH * prompt_tokens * CHARS_PER_TOKEN
        self._kernels = NamedKernels()

    def offered(self, prompt: Prompt) -> int:
        """How many calls a reply to this prompt may make."""
        return max(self._left, 0) if chars_of(prompt) <= self._max_chars else 0

    def run(self, call: ToolCall, recorded: ToolResult | None, seconds_left: float) -> ToolResult:
        """The result of a call. A recorded result is taken as it is; its tool does not run again."""
        read, kernel = self._kernels.read(call)
        self._left -= 1
        if recorded is not None:
            return recorded
        if self._left < 0 or self._toolbox is None:
            return _not_run(call, "the cap on tool calls is reached")
        if isinstance(read, MalformedCall):
            return _not_run(call, read.problem)
        return self._toolbox.run(call, read, kernel, seconds_left)

    def continued(self, prompt: Prompt, text: str, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> Prompt:
        """The prompt with a reply that called tools, and their results."""
        said = Message(role="assistant", content=plain(text), calls=tuple(calls))
        answers = [Message(role="tool", content=result.text, call_id=result.call_id) for result in results]
        longer = Prompt(messages=(*prompt.messages, said, *answers))
        advice = [_HAND_IN] if self._kernels else []
        advice += [NO_CALL_LEFT] if not self.offered(longer) else []
        last = answers[-1].model_copy(update={"content": "\n\n".join([answers[-1].content, *advice])})
        return Prompt(messages=(*longer.messages[:-1], last))

    def handed_in(self, text: str) -> str:
        """The reply with the kernel that it commits in place of the line that names it."""
        named = _COMMIT.findall(text)
        source = self._kernels.source(named[0]) if len(set(named)) == 1 else None
        if source is None:
            return text
        fence = "`" * max((len(run) + 1 for run in re.findall(r"`{3,}", source)), default=3)
        block = f"{fence}cuda\n{source}{'' if source.endswith(chr(10)) else chr(10)}{fence}"
        return _COMMIT.sub(lambda _: block, text, count=1)


def _not_run(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call_id=call.id, text=f"It was not run: {reason}.", seconds=0.0)
