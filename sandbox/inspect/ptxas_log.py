"""The output of ptxas -v on each entry: registers, spills, stack, shared memory; and its warnings."""

import re
from dataclasses import dataclass, replace

_MAX_WARNINGS = 16
_MAX_CHARS = 300
_ENTRY = re.compile(r"^ptxas info\s*: Compiling entry function '(?P<name>[^']+)' for '[^']*'")
_FRAME = re.compile(
    r"^(?:ptxas\s+\.)?\s+(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"^ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)")
_SMEM = re.compile(r"(?P<bytes>\d+) bytes smem")
_STACK = re.compile(r"(?P<bytes>\d+) bytes cumulative stack size")
_WARNING = re.compile(r"\(C7\d{3}\)|Potential Performance Loss|\bwarning\b", re.IGNORECASE)


@dataclass(frozen=True)
class Resources:
    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_smem_bytes: int = 0


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources by entry. Spills of functions that are not inlined count for the entry they are compiled with.

    ptxas prints after the front end, so of two reports on one entry the last one is its own.
    """
    found: dict[str, Resources] = {}
    entry: str | None = None
    for line in log.splitlines():
        if match := _ENTRY.match(line):
            entry = match["name"]
            found[entry] = Resources()
        elif entry is None:
            continue
        elif match := _FRAME.match(line):
            have = found[entry]
            found[entry] = replace(
                have,
                spill_store_bytes=have.spill_store_bytes + int(match["stores"]),
                spill_load_bytes=have.spill_load_bytes + int(match["loads"]),
                stack_bytes=max(have.stack_bytes, int(match["stack"])),
            )
        elif match := _USED.match(line):
            smem, stack = _SMEM.search(match["rest"]), _STACK.search(match["rest"])
            found[entry] = replace(
                found[entry],
                registers=int(match["registers"]),
                static_smem_bytes=int(smem["bytes"]) if smem else 0,
                stack_bytes=max(found[entry].stack_bytes, int(stack["bytes"]) if stack else 0),
            )
    return found


def parse_warnings(log: str) -> tuple[str, ...]:
    """Warnings of the compiler, and what ptxas calls a potential performance loss, each once."""
    lines = (re.sub(r"^ptxas \w+\s*: ", "", line.strip()) for line in log.splitlines() if _WARNING.search(line))
    distinct = dict.fromkeys(line[:_MAX_CHARS] for line in lines if not line.startswith("Remark"))
    return tuple(distinct)[:_MAX_WARNINGS]
