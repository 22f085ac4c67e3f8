"""What the rules of one function's lowering share: slots of operands, and the operations emitted so far."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cudal2_agent.sandbox.emulator.lowering.slots import SlotFile
from cudal2_agent.sandbox.emulator.lowering.table import HANDLERS, NO_FLAGS, SPECIALS, Flag, Kind, MemoryOperand, Value
from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Float,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Unsupported,
)

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
MASK = 0  # the size by which a rule asks for a predicate: a mask with a bit per lane


@lru_cache(maxsize=256)
def width_of(kind: str) -> int:
    """Bytes of a type name: b32, f16x2, bf16, u64; MASK for pred. Raises: Unsupported."""
    if kind == "pred":
        return MASK
    if kind in ("f16x2", "bf16x2"):
        return 4
    digits = kind.lstrip("busf")
    if kind[:1] not in ("b", "u", "s", "f") or digits not in WIDTHS:
        raise Unsupported(f"type .{kind}", 0)
    return WIDTHS[digits]


@dataclass(slots=True)
class Operation:
    """One operation, before it is laid out. `operands`: slots and numbers by the names that its handler declares.

    `handler`: empty for exits and branches. `targets`: labels; `index`: the slot that chooses among several.
    """

    handler: str
    operands: dict[str, Value]
    instruction: int
    kind: Kind = Kind.PLAIN
    flags: Flag = NO_FLAGS
    guard: int = 0
    members: int = 0
    index: int = 0
    targets: tuple[str, ...] = ()


@dataclass
class Lowering:
    """The state of one function's lowering.

    `shared`, `constant_space`, `parameters`: offsets or addresses of named variables in their spaces; `local`: offsets in a
    lane's local memory. `specials`: slots of special registers by their number; `symbols`: slots that hold addresses in
    shared memory, by (offset, bytes, generic).
    """

    function: Function
    slots: SlotFile
    shared: Mapping[str, int]
    globals: Mapping[str, int]
    parameters: Mapping[str, int]
    local: Mapping[str, int]
    operations: list[Operation] = field(default_factory=list)
    specials: dict[int, int] = field(default_factory=dict)
    symbols: dict[tuple[int, int, bool], int] = field(default_factory=dict)
    current: Instruction | None = None
    carry_slot: int = 0  # of the carry flag that add.cc and its kin write; 0 before the first of them

    # ---- operands -----------------------------------------------------------------------------------------------------------
    def source(self, operand: Operand, size: int) -> int:
        """The slot that holds an operand with `size` bytes per lane (MASK: a predicate). Raises: Unsupported."""
        match operand:
            case Register(type=kind):
                if width_of(kind) != size:
                    raise Unsupported(f"operand %{operand.name} of type .{kind} where {size} bytes are read", self._line)
                return self.slots.register(operand.name)
            case Immediate(value=value):
                return self.slots.constant(value, size)
            case Float():
                return self.slots.constant(_float_bits(operand, size, self._line), size)
            case Special(name=name):
                return self._special(name, size)
            case Symbol():
                return self._symbol(operand, size)
            case Sink():
                return 0
        raise Unsupported(f"operand {operand}", self._line)

    def target(self, operand: Operand, size: int) -> int:
        """The slot that an operand is written to; a sink gets one that is never read. Raises: Unsupported."""
        match operand:
            case Register(type=kind):
                if width_of(kind) != size:
                    raise Unsupported(f"operand %{operand.name} of type .{kind} where {size} bytes are written", self._line)
                return self.slots.register(operand.name)
            case Sink():
                return self.slots.scratch(size)
        raise Unsupported(f"result {operand}", self._line)

    def predicate(self, operand: Operand) -> int:
        """The slot of a predicate that is read, negated ones through an operation of their own. Raises: Unsupported."""
        if isinstance(operand, Negated):
            slot = self.slots.scratch(MASK)
            self.emit("not.pred", result=slot, value=self.source(operand.operand, MASK))
            return slot
        return self.source(operand, MASK)

    def width(self, operand: Operand) -> int:
        """Bytes per lane of a register operand as declared. Raises: Unsupported for another operand."""
        if not isinstance(operand, Register):
            raise Unsupported(f"operand {operand} where a register is needed", self._line)
        return width_of(operand.type)

    def scratch(self, size: int) -> int:
        return self.slots.scratch(size)

    def place(self, operand: Operand, *, short: bool) -> MemoryOperand:
        """A memory operand. `short`: addresses of its space have 4 bytes where a register does not say. Raises: Unsupported."""
        if not isinstance(operand, Address):
            raise Unsupported(f"operand {operand} where an address is needed", self._line)
        base = operand.base
        if isinstance(base, Register):
            size = width_of(base.type)
            if size not in (4, 8):
                raise Unsupported(f"address register %{base.name} of type .{base.type}", self._line)
            return MemoryOperand(self.slots.register(base.name), size, operand.offset)
        size = 4 if short else 8
        return MemoryOperand(self.source(base, size), size, operand.offset)

    # ---- operations ---------------------------------------------------------------------------------------------------------
    def emit(
        self, handler: str, kind: Kind = Kind.PLAIN, flags: Flag = NO_FLAGS, members: int = 0, /, **operands: Value
    ) -> None:
        """Append an operation under the current instruction's guard.

        `members`: the slot of a collective's member mask, 0 for all live lanes.
        Raises: Unsupported for a handler that the core does not have, OperandError for operands that it does not declare.
        """
        declared = HANDLERS.get(handler)
        if declared is None:
            raise Unsupported(f"the operation {handler}", self._line)
        declared.check(operands)
        self._append(Operation(handler, operands, 0, kind, flags, members=members))

    def branch(self, label: str) -> None:
        self._append(Operation("", {}, 0, Kind.BRANCH, targets=(label,)))

    def branch_indexed(self, index: int, labels: tuple[str, ...]) -> None:
        """`index`: the slot of the number of the label to go to."""
        self._append(Operation("", {}, 0, Kind.BRANCH_INDEXED, index=index, targets=labels))

    def exit(self) -> None:
        self._append(Operation("", {}, 0, Kind.EXIT))

    def _append(self, operation: Operation) -> None:
        instruction = self.current
        assert instruction is not None
        operation.instruction = instruction.index
        if instruction.predicate is not None:
            operation.guard = self.slots.register(instruction.predicate.name)
        if instruction.negated:
            operation.flags |= Flag.NEGATED
        self.operations.append(operation)

    # ---- what operands stand for --------------------------------------------------------------------------------------------
    def _special(self, name: str, size: int) -> int:
        if name not in SPECIALS:
            raise Unsupported(f"special register %{name}", self._line)
        number = SPECIALS.index(name)
        if number not in self.specials:
            self.specials[number] = self.slots.fixed(4)
        slot = self.specials[number]
        if size == 4:
            return slot
        converted = self.slots.scratch(size)
        if size == MASK:
            self.emit("setp.ne.b32", result=converted, left=slot, right=self.slots.constant(0, 4))
        else:
            self.emit("cvt.u64.u32" if size == 8 else "cvt.u16.u32", result=converted, value=slot)
        return converted

    def _symbol(self, symbol: Symbol, size: int) -> int:
        name, offset = symbol.name, symbol.offset
        if name in self.shared:
            key = ((self.shared[name] + offset) % 2**32, size, False)
            if key not in self.symbols:
                self.symbols[key] = self.slots.fixed(size)
            return self.symbols[key]
        for space in (self.globals, self.parameters, self.local):
            if name in space:
                return self.slots.constant(space[name] + offset, size)
        raise Unsupported(f"symbol {name}", self._line)

    @property
    def _line(self) -> int:
        return self.current.line if self.current is not None else 0


def _float_bits(literal: Float, size: int, line: int) -> int:
    """Bits of a literal in a format of `size` bytes; a decimal literal is a double in PTX and rounds where it is used."""
    if literal.width == 8 * size:
        return literal.bits
    if literal.width == 64 and size == 4:
        (value,) = struct.unpack("<d", literal.bits.to_bytes(8, "little"))
        try:
            return int.from_bytes(struct.pack("<f", value), "little")
        except OverflowError:
            return 0xFF800000 if value < 0 else 0x7F800000
    raise Unsupported(f"a {literal.width}-bit literal as {size} bytes", line)
