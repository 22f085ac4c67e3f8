"""PTX as inspection reads it: entries and their parameters, opcodes, tensor-core instructions, lasting state, forbidden code.

This is the text that ptxas assembled, so macros can hide nothing from it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from contract.task import AccumulatorType

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(?:version|target|address_size|loc|file)\b[^\n;]*$", re.MULTILINE)
_STATEMENT = re.compile(r"^(?:[\s{}]|[\w$%]+:(?!:)|@!?%?[\w$]+\s)*(?P<opcode>[a-z][\w.:]*)(?P<operands>.*)$", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<bounds>[^{;]*)")
_PARAMETER = re.compile(r"\.param\b[^,]*?\.(?P<type>[busf])(?P<bits>8|16|32|64)\b[^,]*?[\w$]+(?:\[(?P<count>\d+)\])?\s*(?:,|$)")
_BOUND = re.compile(r"\.(?P<name>maxntid|reqntid|reqnctapercluster)\s+(?P<sizes>\d+(?:\s*,\s*\d+)*)")
_STATE = re.compile(r"(?<![\w.:])\.(?P<space>global|const)\b(?P<head>[^=;]*)(?:=(?P<value>[^;]*))?;")
_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"(?<![\w$%.])0[fdFDxX][0-9a-fA-F]+U?\b")
_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\b\s*(?:\([^)]*\))?\s*(?P<name>[\w$]+)")
_CLOCK = re.compile(r"%(?:clock|globaltimer|gridid|pm\d|envreg)\w*")
_DIRECT_READ = re.compile(r"^[^\[\]]*\[\s*(?P<name>[A-Za-z_$][\w$]*)\s*(?:\+\s*\d+)?\s*\]\s*$", re.DOTALL)
_TRAPS = frozenset({"trap", "brkpt", "pmevent"})
_TENSOR_CORE = re.compile(r"(?:mma|wgmma\.mma_async|wmma\.mma|tcgen05\.mma)\b")


@dataclass(frozen=True)
class Entry:
    """A kernel's header. `parameter_bytes` in order; bounds are None where the source sets none."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int | None
    required_block: tuple[int, int, int] | None
    required_cluster: tuple[int, int, int] | None


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: str


@dataclass(frozen=True)
class Ptx:
    """One PTX module."""

    original: str

    @cached_property
    def text(self) -> str:
        """The module without comments and without directives that end at the end of their line."""
        code = _COMMENT.sub(lambda match: '""' if match[0].startswith('"') else " ", self.original)
        return _LINE_DIRECTIVE.sub("", code)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {match["name"]: _entry(match) for match in _ENTRY.finditer(self.text)}

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        matches = (_STATEMENT.match(statement) for statement in self.text.split(";"))
        return tuple(Instruction(match["opcode"], match["operands"]) for match in matches if match)

    @cached_property
    def opcodes(self) -> dict[str, int]:
        """Instruction counts by first word: `mma`, `ld`, `cp`."""
        return dict(Counter(instruction.opcode.partition(".")[0] for instruction in self.instructions))

    @cached_property
    def mma(self) -> tuple[str, ...]:
        """The distinct tensor-core instructions, by full name."""
        names = (instruction.opcode for instruction in self.instructions)
        return tuple(sorted({name for name in names if _TENSOR_CORE.match(name)}))

    def state(self) -> Iterator[str]:
        """Variables in device memory that code could write, or whose address leaves a plain read.

        Constants stand in `.global` too, and nothing marks them as such, so the use decides: a read by name is harmless.
        """
        declared = {}
        for match in _STATE.finditer(self.text):
            head = _NAME.findall(re.sub(r"\[[^\]]*\]|\.\w+(?:\([^)]*\))?", " ", match["head"]))
            if match["space"] == "global":
                declared.update(dict.fromkeys(head))
            if _NAME.search(_NUMBER.sub(" ", match["value"] or "")):
                yield from head  # an initialiser that holds an address
        for instruction in self.instructions:
            for name in _NAME.findall(instruction.operands):
                if name in declared and not _is_read(instruction, name):
                    yield name

    def clocks(self) -> Iterator[str]:
        """Special registers that tell the time or count launches."""
        for instruction in self.instructions:
            yield from _CLOCK.findall(instruction.operands)

    def outside_calls(self) -> Iterator[str]:
        """Functions called that the module does not define: printing, allocation, assertions, device-side launches."""
        outside = {match["name"] for match in _EXTERN_FUNCTION.finditer(self.text)}
        for instruction in self.instructions:
            if instruction.opcode.startswith("call"):
                yield from (name for name in _NAME.findall(instruction.operands) if name in outside)

    def traps(self) -> Iterator[str]:
        for instruction in self.instructions:
            if instruction.opcode in _TRAPS:
                yield instruction.opcode


def accumulators(mma: str) -> set[AccumulatorType]:
    """Accumulator types of one tensor-core instruction's name; empty where it names neither f32 nor f16.

    A name lists the types D, A, B, C (`mma`, `wmma` of bf16), D, C (`wmma` of f16) or D, A, B (`wgmma`).
    `tcgen05.mma` has its accumulator in a run-time descriptor and names none.
    """
    if mma.startswith("tcgen05"):
        return set()
    types = re.findall(r"\.(f32|f16|bf16|tf32|f64|s32|u8|s8|u4|s4|b1|e4m3|e5m2|e2m1|e2m3|e3m2)(?=\.|$)", mma)
    held = types[:1] if mma.startswith("wgmma") else types[:1] + types[-1:]
    return {AccumulatorType(kind) for kind in held if kind in ("f32", "f16")}


def _entry(match: re.Match[str]) -> Entry:
    bounds = {
        bound["name"]: tuple(int(size) for size in bound["sizes"].split(",")) for bound in _BOUND.finditer(match["bounds"])
    }
    block, cluster = bounds.get("reqntid"), bounds.get("reqnctapercluster")
    most = bounds.get("maxntid") or block
    return Entry(
        name=match["name"],
        parameter_bytes=tuple(
            int(part["bits"]) // 8 * int(part["count"] or 1) for part in _PARAMETER.finditer(match["parameters"] or "")
        ),
        max_threads=_product(most) if most else None,
        required_block=_triple(block) if block else None,
        required_cluster=_triple(cluster) if cluster else None,
    )


def _triple(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _product(sizes: tuple[int, ...]) -> int:
    x, y, z = _triple(sizes)
    return x * y * z


def _is_read(instruction: Instruction, name: str) -> bool:
    match = _DIRECT_READ.match(instruction.operands) if instruction.opcode.startswith("ld.") else None
    return match is not None and match["name"] == name
