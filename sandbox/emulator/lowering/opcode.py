"""Instructions whose handler works lane by lane: how an opcode is read, and which handler takes which operands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, WIDTHS, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.table import HANDLERS, Value
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction, Operand, Unsupported

Rule: TypeAlias = Callable[[Lowering, Instruction], None]

BITS = ("b16", "b32", "b64")
UNSIGNED = ("u16", "u32", "u64")
SIGNED = ("s16", "s32", "s64")
INTEGERS = (*UNSIGNED, *SIGNED)
WORDS = ("f32", "f64")
HALVES = ("f16", "bf16")
PACKED_HALVES = ("f16x2", "bf16x2")
PACKED_INTEGERS = ("u16x2", "s16x2")
FLOATS = frozenset({*WORDS, *HALVES, *PACKED_HALVES})
TYPES = frozenset({*(kind + bits for kind in "bus" for bits in WIDTHS), *FLOATS, *PACKED_INTEGERS, "pred"})


@dataclass(frozen=True, slots=True)
class Opcode:
    """The parts of an opcode after its name. `modifiers`: in the order in which they are written. `key`: without types."""

    base: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]
    key: str


def opcode_of(instruction: Instruction) -> Opcode:
    return _opcode(instruction.parts)


@lru_cache(maxsize=1024)
def _opcode(parts: tuple[str, ...]) -> Opcode:
    modifiers = tuple(part for part in parts[1:] if part not in TYPES)
    types = tuple(part for part in parts[1:] if part in TYPES)
    return Opcode(parts[0], modifiers, types, ".".join((parts[0], *modifiers)))


def unsupported(instruction: Instruction, why: str = "") -> Unsupported:
    return Unsupported(f"{instruction.opcode} {why}".strip(), instruction.line)


def bytes_of(kind: str) -> int:
    return 4 if kind in PACKED_INTEGERS else width_of(kind)


def refuse_integers(instruction: Instruction, operands: Sequence[Operand]) -> None:
    """Raises: Unsupported for an integer constant where a floating-point number is read."""
    if any(isinstance(operand, Immediate) for operand in operands):
        raise unsupported(instruction, "with an integer constant")


def lanewise(
    lowering: Lowering,
    instruction: Instruction,
    handler: str,
    sizes: Sequence[int],
    operands: Sequence[Operand] | None = None,
    /,
    **numbers: int,
) -> None:
    """Emit a handler with the operands in the order that it declares, the result first.

    `sizes`: bytes per lane, MASK for predicates. `numbers`: what the handler declares besides.
    Raises: Unsupported for a handler that the core does not have, or another number of operands.
    """
    written = instruction.operands if operands is None else operands
    if len(written) != len(sizes):
        raise unsupported(instruction, f"with {len(written)} operands")
    slots = [read(lowering, operand, size) for operand, size in zip(written[1:], sizes[1:], strict=True)]
    target = lowering.target(written[0], sizes[0])
    declared = HANDLERS.get(handler)
    if declared is None:
        raise Unsupported(f"the operation {handler}", instruction.line)
    sources: dict[str, Value] = dict(zip(declared.sources, slots, strict=True))
    lowering.emit(handler, result=target, **sources, **numbers)


def read(lowering: Lowering, operand: Operand, size: int) -> int:
    """The slot of a source operand, which as a predicate may be negated."""
    return lowering.predicate(operand) if size == MASK else lowering.source(operand, size)


@dataclass(frozen=True, slots=True)
class Form:
    """One handler's instructions.

    `types`: what may stand for the type, several joined by points. `handler`: with {types}, {bits} (b32 for s32) and
    {unsigned} (u32 for b32) to fill in. `shape`: a letter an operand, the result first: T as wide as the type, W twice that,
    4 a 32-bit register, P a predicate. `mode`: a number of the handler, None where it declares none.
    """

    types: tuple[str, ...]
    handler: str
    shape: str
    mode: int | None = None

    def sizes(self, size: int) -> tuple[int, ...]:
        meaning = {"T": size, "W": 2 * size, "4": 4, "P": MASK}
        return tuple(meaning[letter] for letter in self.shape)

    def handler_of(self, types: str) -> str:
        digits = types.lstrip("busf")
        return self.handler.format(types=types, bits="b" + digits, unsigned="u" + digits)


Forms: TypeAlias = Mapping[str, tuple[Form, ...]]


def by_form(forms: Forms, special: Mapping[str, Rule]) -> Rule:
    """The rule that looks for a form by name and modifiers, then types, and else for a rule by name and modifiers."""

    @lru_cache(maxsize=1024)
    def lanewise_form(parts: tuple[str, ...]) -> tuple[str, tuple[int, ...], dict[str, int]] | None:
        """The handler, the sizes of its operands and its numbers."""
        opcode = _opcode(parts)
        types = ".".join(opcode.types)
        for form in forms.get(opcode.key, ()):
            if types in form.types:
                numbers = {} if form.mode is None else {"mode": form.mode}
                return form.handler_of(types), form.sizes(bytes_of(opcode.types[0])), numbers
        return None

    def rule(lowering: Lowering, instruction: Instruction) -> None:
        if (found := lanewise_form(instruction.parts)) is not None:
            handler, sizes, numbers = found
            lanewise(lowering, instruction, handler, sizes, **numbers)
            return
        opcode = opcode_of(instruction)
        if opcode.key not in special:
            raise unsupported(instruction)
        special[opcode.key](lowering, instruction)

    return rule
