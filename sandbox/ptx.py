"""PTX as inspection reads it: entries and their parameters, opcodes, tensor-core instructions, lasting state, forbidden code.

This is the text that ptxas assembled, so macros can hide nothing from it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from contract.task import AccumulatorType

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(?:version|target|address_size|loc|file)\b[^\n;]*$", re.MULTILINE)
_POSITION = r"\.(?:loc|file)(?:\s+\d+)+(?:\s*,\s*(?:function_name|inlined_at)\s+[\w$]+(?:\s*\+\s*\d+)?(?:\s+\d+)*)*"
_STATEMENT = re.compile(
    rf"^(?:[\s{{}}]++|[\w$%]++:(?!:)|@!?%?[\w$]++\s|{_POSITION})*+(?P<opcode>[a-z][\w.:]*)(?P<operands>.*)$", re.DOTALL
)
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<bounds>[^{;]*)")
_PARAMETER = re.compile(r"\.param\b[^,]*?\.(?P<type>[busf])(?P<bits>8|16|32|64)\b[^,]*?[\w$]+(?:\[(?P<count>\d+)\])?\s*(?:,|$)")
_BOUND = re.compile(r"\.(?P<name>maxntid|reqntid|reqnctapercluster)\s+(?P<sizes>\d+(?:\s*,\s*\d+)*)")
_STATE = re.compile(r"(?<![\w.:])\.(?P<space>global|const)\b(?P<head>[^=;]*)(?:=(?P<value>[^;]*))?;")
_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"(?<![\w$%.])0[fdFDxX][0-9a-fA-F]+U?\b")
_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\b\s*(?:\([^)]*\))?\s*(?P<name>[\w$]+)")
_CLOCK = re.compile(r"%(?:clock|globaltimer|gridid|pm\d|envreg)\w*")
_SYMBOL = re.compile(r"(?<![\w$%.])[%A-Za-z_$][\w$%]*")
_NOT_A_NAME = re.compile(r"\[[^\]]*\]|\.\w+(?:\([^)]*\))?")
_FUNCTION = re.compile(r"(?=\.(?:entry|func)\b)")
_HEADER = re.compile(r"^\.(?:entry|func)\b[^{;]*+\{")
_LOADS = ("ld.", "ldu.", "setp.", "isspacep.", "prefetch")
_ADDRESS_ARITHMETIC = (
    "mov.",
    "add.",
    "sub.",
    "mad.",
    "mul.",
    "cvta.",
    "cvt.",
    "shl.",
    "or.",
    "and.",
    "xor.",
    "selp.",
    "min.",
    "max.",
)
_TRAP = re.compile(r"(?<![\w.$%])(?:trap|brkpt)(?=\s*;)|(?<![\w.$%])pmevent\b")
_TENSOR_CORE = re.compile(r"(?<![\w.$%])(?:mma|wgmma\.mma_async|wmma\.mma|tcgen05\.mma)\b[\w.:]*")


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

    @property
    def targets(self) -> set[str]:
        """Symbols and registers of the first operand, where arithmetic puts its result."""
        return set(_SYMBOL.findall(self._split()[0]))

    @property
    def sources(self) -> set[str]:
        """Symbols and registers of the other operands; of all where the first is an address."""
        return set(_SYMBOL.findall(self._split()[1]))

    def _split(self) -> tuple[str, str]:
        first, _, others = self.operands.partition("}" if self.operands.lstrip().startswith("{") else ",")
        return ("", self.operands) if "[" in first or not others else (first, others)


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
    def functions(self) -> tuple[tuple[Instruction, ...], ...]:
        """The instructions of each function; what stands before the first one comes as a group of its own."""
        return tuple(tuple(_instructions(body)) for body in _FUNCTION.split(self.text))

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        return tuple(instruction for function in self.functions for instruction in function)

    @cached_property
    def opcodes(self) -> dict[str, int]:
        """Instruction counts by first word: `mma`, `ld`, `cp`."""
        return dict(Counter(instruction.opcode.partition(".")[0] for instruction in self.instructions))

    @cached_property
    def mma(self) -> tuple[str, ...]:
        """The distinct tensor-core instructions, by full name."""
        return tuple(sorted(set(_TENSOR_CORE.findall(self.text))))

    def state(self) -> Iterator[str]:
        """Variables in device memory that code could write.

        Constants stand in `.global` too, and nothing marks them as such, so their use decides: the address may be computed
        with and read through, and not written through, stored, passed on or kept in an initialiser.
        """
        declared: set[str] = set()
        for match in _STATE.finditer(self.text):
            names = _NAME.findall(_NOT_A_NAME.sub(" ", match["head"]))
            if match["space"] == "global":
                declared.update(names)
            if _NAME.search(_NUMBER.sub(" ", match["value"] or "")):
                yield from names  # the initialiser holds an address
        for function in self.functions:
            yield from _written(function, declared)

    def clocks(self) -> list[str]:
        """Special registers that tell the time or count launches."""
        return _CLOCK.findall(self.text)

    def outside_calls(self) -> list[str]:
        """Functions used that the module does not define: printing, allocation, assertions, device-side launches."""
        outside = dict.fromkeys(match["name"] for match in _EXTERN_FUNCTION.finditer(self.text))
        used = Counter(name for name in _NAME.findall(self.text) if name in outside)
        return [name for name in outside if used[name] > 1]  # once is its declaration

    def traps(self) -> list[str]:
        return _TRAP.findall(self.text)


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


def _instructions(text: str) -> Iterator[Instruction]:
    for statement in _HEADER.sub("", text).split(";"):
        match = _STATEMENT.match(statement)
        if match:
            yield Instruction(match["opcode"], match["operands"])


def _written(function: tuple[Instruction, ...], declared: set[str]) -> Iterator[str]:
    """Variables whose address reaches anything but arithmetic and loads. Order of instructions is ignored: loops go back."""
    readers = defaultdict(list)
    for instruction in function:
        if not instruction.opcode.startswith(_LOADS):
            for name in instruction.sources:
                readers[name].append(instruction)
    origin = {name: name for name in declared if name in readers}  # symbol or register → variable whose address it may hold
    pending = list(origin)
    while pending:
        name = pending.pop()
        for instruction in readers[name]:
            if not instruction.opcode.startswith(_ADDRESS_ARITHMETIC):
                yield origin[name]
                continue
            fresh = [register for register in instruction.targets if register not in origin]
            origin |= dict.fromkeys(fresh, origin[name])
            pending += fresh
