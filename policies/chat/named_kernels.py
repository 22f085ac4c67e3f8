"""The kernels of one conversation by their names, `k1` and so on: a file is written once, and later calls name or patch it."""

import re
from collections import Counter
from collections.abc import Sequence

from cudal2_agent.contract.records.exchange import ToolCall
from cudal2_agent.policies.chat.offered_tools import KERNEL, PATCH, TOOLS, MalformedCall, ReadCall, Tool, read_call
from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, Malformed
from cudal2_agent.policies.chat.replies.patch import apply_patch, read_patch

MAX_SOURCE_CHARS = 256 * 1024
_NAME = re.compile(r"([a-z])(\d{1,6})")


class NamedKernels:
    """Reads calls of `tools`, and names the kernels in them."""

    def __init__(self, tools: Sequence[Tool] = TOOLS) -> None:
        self._tools = tools
        self._sources: dict[str, str] = {}
        self._taken: Counter[str] = Counter()  # numbers, by letter

    def source(self, name: str) -> str | None:
        return self._sources.get(name)

    def name(self, source: str, letter: str = "k") -> str:
        """The name of a source, a new one where it has none."""
        known = next((name for name, text in self._sources.items() if text == source), None)
        if known is None:
            self._taken[letter] += 1
            known = f"{letter}{self._taken[letter]}"
            self._sources[known] = source
        return known

    def restore(self, call: ToolCall, name: str) -> ReadCall | MalformedCall:
        """Read an earlier call, whose kernel has that name. It stays taken where the kernel is not known any more."""
        read, found = self.read(call)
        if found != name and (parsed := _NAME.fullmatch(name)):
            self._taken[parsed[1]] = max(self._taken[parsed[1]], int(parsed[2]))
            if found:
                self._sources[name] = self._sources.pop(found)
        return read

    def read(self, call: ToolCall) -> tuple[ReadCall | MalformedCall, str]:
        """The call with the source in place of a kernel's name, and the name of the kernel; empty where it has none."""
        read = read_call(call, self._tools)
        if isinstance(read, MalformedCall) or read.tool.argument != KERNEL:
            return read, ""
        base = self._source(read)
        if isinstance(base, MalformedCall):
            return base, ""
        source = _patched(base, read.others[PATCH]) if PATCH in read.others else base
        if isinstance(source, MalformedCall):
            return source, ""
        return ReadCall(read.tool, source, read.others, base if PATCH in read.others else ""), self.name(source)

    def _source(self, read: ReadCall) -> str | MalformedCall:
        """The source that the call names or holds."""
        named = read.text.strip()
        base = self._sources.get(named)
        if base is None and re.fullmatch(r"\w{1,40}", named):
            return MalformedCall(f"there is no kernel {named!r}; known kernels: {', '.join(self._sources) or 'none yet'}")
        source = read.text if base is None else base
        if len(source) > MAX_SOURCE_CHARS:
            return MalformedCall(f"the kernel has more than {MAX_SOURCE_CHARS} characters")
        return source


def _patched(source: str, text: str) -> str | MalformedCall:
    patch = read_patch([FencedBlock("diff", text, closed=True)], "")
    patched = patch if isinstance(patch, Malformed) else apply_patch(patch, source)
    return MalformedCall(patched.problem) if isinstance(patched, Malformed) else patched
