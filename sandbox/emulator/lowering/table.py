"""Operations as the core declares them: the record, the enums, and every handler with its operands by name.

Nothing is repeated here: names, numbers and types are those of the compiled core (`core/operand.hpp`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cudal2_agent.sandbox.emulator.core_module import core

Kind = core.Kind
Flag = core.Flag
Space = core.Space
Scope = core.Scope
Semantics = core.Semantics
Rounding = core.Rounding
Modifier = core.Modifier
Permutation = core.Permutation
Reduction = core.Reduction
BarrierReduction = core.BarrierReduction
TensorType = core.TensorType
Fragment = core.Fragment
WgmmaForm = core.WgmmaForm
ByteForm = core.ByteForm

SCOPES = {"cta": Scope.CTA, "cluster": Scope.CLUSTER, "gpu": Scope.DEVICE, "sys": Scope.DEVICE}
NO_FLAGS = Flag(0)
SPECIALS = tuple(core.special_registers)

_NAMES, _FORMATS, _OFFSETS = (list(each) for each in zip(*core.operation_fields, strict=True))
OPERATION = np.dtype({"names": _NAMES, "formats": _FORMATS, "offsets": _OFFSETS, "itemsize": core.operation_bytes})
COLUMNS: dict[str, int] = {name: index for index, name in enumerate(_NAMES)}
_NONE = -1  # in place of a column: the operand has no such field


@dataclass(frozen=True, slots=True)
class MemoryOperand:
    """An address: the slot of its base, the bytes per lane of that slot, and a constant offset."""

    slot: int
    slot_bytes: int
    offset: int


Value: TypeAlias = int | MemoryOperand | Sequence[int]
PlaceOf: TypeAlias = Callable[[int], int]  # the byte offset of a slot in the finished register file


class OperandError(TypeError):
    """Operands other than those that a handler declares: a fault of a lowering rule, never of a kernel."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An operand that is no list. Columns of the record: of its value, of an address's width and of its offset."""

    is_address: bool
    is_slot: bool
    column: int
    shift: int
    bytes: int
    width: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler of the core. `sources`: the slots that follow its result, in order. `lists`: name, minimum, maximum."""

    number: int
    name: str
    names: frozenset[str]
    required: frozenset[str]
    sources: tuple[str, ...]
    lists: tuple[tuple[str, int, int], ...]
    parts: Mapping[str, _Part]

    def check(self, operands: Mapping[str, Value]) -> None:
        """Raises: OperandError for names other than the declared ones, ValueError for a list of the wrong length."""
        given = operands.keys()
        if not self.required <= given:
            raise OperandError(f"{self.name} lacks the operand {', '.join(sorted(self.required - given))}")
        if not given <= self.names:
            raise OperandError(f"{self.name} has no operand {', '.join(sorted(given - self.names))}")
        for name, minimum, maximum in self.lists:
            slots = operands.get(name, ())
            if not isinstance(slots, Sequence):
                raise OperandError(f"{self.name} takes several slots as {name}")
            if not (minimum <= len(slots) <= maximum):
                raise ValueError(f"{self.name} with {len(slots)} slots as {name}")

    def encode(self, operands: Mapping[str, Value], row: list[int], place: PlaceOf) -> list[int]:
        """Fill in an operation's row; the slots of its list. Raises: OperandError."""
        parts = self.parts
        for name, value in operands.items():
            part = parts.get(name)
            if part is None:
                continue  # a list
            if part.is_slot:
                row[part.column] = place(value)  # type: ignore[arg-type]
            elif part.is_address:
                self._encode_address(name, part, value, row, place)
            else:
                row[part.column] |= int(value) << part.shift  # type: ignore[arg-type]
        return [place(slot) for name, _, _ in self.lists for slot in operands.get(name, ())]  # type: ignore[union-attr]

    def _encode_address(self, name: str, part: _Part, value: Value, row: list[int], place: PlaceOf) -> None:
        if not isinstance(value, MemoryOperand):
            raise OperandError(f"{self.name} takes an address as {name}")
        row[part.column] = place(value.slot)
        if part.width != _NONE:
            row[part.width] = value.slot_bytes
        elif value.slot_bytes != part.bytes:
            raise OperandError(f"{self.name} takes an address of {part.bytes} bytes as {name}, not of {value.slot_bytes}")
        if part.offset != _NONE:
            row[part.offset] = value.offset
        elif value.offset:
            raise OperandError(f"{self.name} takes no offset of {name}")


def _handler(number: int, declared: core.Handler) -> Handler:
    operands = declared.operands
    lists = [each for each in operands if each.role == core.Role.LIST]
    slots = [each for each in operands if each.role == core.Role.SLOT]
    return Handler(
        number=number,
        name=declared.name,
        names=frozenset(each.name for each in operands),
        required=frozenset(each.name for each in operands if not each.optional),
        sources=tuple(each.name for each in slots if each.field != "d"),
        lists=tuple((each.name, each.minimum, each.maximum or len(COLUMNS) ** 2) for each in lists),
        parts={each.name: _part(each) for each in operands if each.role != core.Role.LIST},
    )


def _part(operand: core.Operand) -> _Part:
    return _Part(
        is_address=operand.role == core.Role.ADDRESS,
        is_slot=operand.role == core.Role.SLOT,
        column=COLUMNS[operand.field],
        shift=operand.shift,
        bytes=operand.bytes,
        width=COLUMNS.get(operand.width, _NONE),
        offset=COLUMNS.get(operand.offset, _NONE),
    )


HANDLERS: Mapping[str, Handler] = {each.name: _handler(number, each) for number, each in enumerate(core.handlers())}
