"""A kernel as the core executes it, lowered from PTX."""

from dataclasses import dataclass, replace

import numpy as np

from sandbox.emulator.core_module import core
from sandbox.emulator.lowering.families.rules import RULES
from sandbox.emulator.lowering.inlining import inline_calls
from sandbox.emulator.lowering.lowering import Lowering, Operation, width_of
from sandbox.emulator.lowering.slots import SlotFile, lives_of, names_in, names_of
from sandbox.emulator.lowering.table import OPERATION, Flag, Kind
from sandbox.emulator.lowering.unwritten import maybe_unwritten
from sandbox.emulator.ptx.module import Address, Function, Instruction, Module, Unsupported, Variable, Vector

MOST_BYTES = {"param": 1 << 15, "shared": 227 << 10, "local": 512 << 10, "const": 1 << 26}  # of a kernel; local: of a thread
CONSTANT_BASE = 0x2000_0000_0000  # where constant variables of a module lie, as addresses
_EMPTY: tuple[int, ...] = ()
_BYTES = frozenset({"b8", "u8", "s8"})


@dataclass(frozen=True)
class Constant:
    """A constant variable of the module, at an address of its own. Shape: data (bytes,)."""

    name: str
    address: int
    data: bytes


@dataclass(frozen=True)
class Program:
    """One entry. `parameters`: (offset, bytes) of each; `instructions`: what the core's reports number.

    `unwatched`: it may read old contents that only a run with taint notices.
    """

    entry: str
    core: core.Program
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    instructions: tuple[Instruction, ...]
    constants: tuple[Constant, ...]
    unwatched: bool = False


def lower(module: Module, entry: str) -> Program:
    """The program of one entry. Raises: Unsupported naming what the emulator does not know."""
    found = module.functions.get(entry)
    if found is None or found.kind != "entry":
        raise Unsupported(f"a module without entry {entry}", 0)
    function = inline_calls(module, found)
    constants = _constants(module)
    parameters, parameter_bytes = _parameters(function)
    shared, static_end = _shared(function, module)
    local, local_bytes = _laid_out([each for each in function.variables if each.space in ("local", "param")])
    _refuse_past(MOST_BYTES["shared"], "shared", static_end - core.shared_base)
    _refuse_past(MOST_BYTES["local"], "local", local_bytes)
    tracked = _products_registers(function)
    unwritten = maybe_unwritten(function) - tracked  # the core notices itself when those are read
    sizes = {name: width_of(kind) for name, kind in function.registers.items()}
    lowering = Lowering(
        function=function,
        slots=SlotFile(sizes, lives_of(function, tracked | unwritten)),
        shared=shared,
        globals={constant.name: constant.address for constant in constants},
        parameters={each.name: offset for each, (offset, _) in zip(function.parameters, parameters, strict=True)},
        local=local,
    )
    starts = _emit(lowering)
    slots = lowering.slots
    reads, writes = _touched(lowering, starts, tracked)
    table, lists = _layout(lowering, starts)
    made = core.Program.make(
        table=table.view(np.uint8).reshape(-1),
        lists=lists,
        constants=np.frombuffer(slots.constants, dtype=np.uint8),
        register_bytes=slots.total_bytes,
        specials=[(slots.offset(slot), which) for which, slot in lowering.specials.items()],
        symbols=[(slots.offset(slot), size, offset, generic) for (offset, size, generic), slot in lowering.symbols.items()],
        static_smem_end=static_end,
        local_bytes=local_bytes,
        tracked_reads=reads,
        tracked_writes=writes,
    )
    return Program(
        entry=entry,
        core=made,
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        instructions=function.instructions,
        constants=constants,
        unwatched=bool(local_bytes or unwritten) or any(map(_reads_unwatched, function.instructions)),
    )


def _reads_unwatched(instruction: Instruction) -> bool:
    """Bulk reductions read their target; what is discarded, and the neighbour of a byte that is stored, count as written."""
    parts = instruction.parts
    bytewise = parts[0] == "st" and not _BYTES.isdisjoint(parts)
    return parts[0] == "discard" or parts[:2] == ("cp", "reduce") or (bytewise and "local" not in parts)


def _emit(lowering: Lowering) -> list[int]:
    """Lower every instruction; the first operation of each, and one past the last."""
    starts = []
    for instruction in lowering.function.instructions:
        starts.append(len(lowering.operations))
        lowering.current = instruction
        lowering.slots.next_instruction()
        rule = RULES.get(instruction.parts[0])
        if rule is None:
            raise Unsupported(f"opcode {instruction.opcode}", instruction.line, instruction.place)
        try:
            rule(lowering, instruction)
        except Unsupported as exc:
            raise Unsupported(exc.what, exc.line, instruction.place) from exc
        except (ValueError, IndexError) as exc:  # operands in a number that the opcode does not have
            raise Unsupported(f"the form {instruction.text!r}", instruction.line, instruction.place) from exc
    starts.append(len(lowering.operations))
    last = lowering.function.instructions[-1].index if lowering.function.instructions else 0
    lowering.operations.append(Operation(handler="", kind=Kind.EXIT, instruction=last))
    return starts


def _layout(lowering: Lowering, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Operations and their lists as the core reads them."""
    numbers = {name: index for index, name in enumerate(core.handlers())}
    place = lowering.slots.offset
    table = np.zeros(len(lowering.operations), dtype=OPERATION)
    lists: list[int] = []
    rows = []
    for operation in lowering.operations:
        if operation.handler and operation.handler not in numbers:
            raise Unsupported(f"the operation {operation.handler}", _line(lowering, operation))
        targets = [starts[_label(lowering, label)] for label in operation.targets]
        listed = targets or [place(slot) for slot in operation.listed]
        imm = starts[_label(lowering, operation.target)] if operation.target is not None else operation.imm
        slots = (place(slot) for slot in (operation.guard, operation.d, operation.a, operation.b, operation.c, operation.e))
        rows.append(
            (
                numbers.get(operation.handler, 0),
                operation.kind,
                operation.flags,
                *slots,
                place(operation.meeting),
                len(lists),
                len(listed),
                operation.p,
                operation.q,
                operation.r,
                operation.s,
                operation.instruction,
                imm,
            )
        )
        lists += listed
    table[:] = rows
    return table, np.array(lists or [0], dtype=np.uint32)


def _label(lowering: Lowering, name: str) -> int:
    return lowering.function.labels[name]


def _line(lowering: Lowering, operation: Operation) -> int:
    return lowering.function.instructions[operation.instruction].line


# ---- registers of products ------------------------------------------------------------------------------------------------
def _products_registers(function: Function) -> frozenset[str]:
    """Registers that a wgmma reads or writes on its own time: their slots are theirs alone, and touching them is checked."""
    names = set()
    for instruction in function.instructions:
        if instruction.parts[:2] == ("wgmma", "mma_async"):
            for operand in instruction.operands[:2]:
                if isinstance(operand, Vector):
                    names |= {getattr(item, "name", "") for item in operand.items}
    return frozenset(names)


def _touched(
    lowering: Lowering, starts: list[int], tracked: frozenset[str]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """By operation, slots of products' registers that an instruction reads and writes; flags its first operation."""
    reads: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    writes: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    for instruction in lowering.function.instructions if tracked else ():
        if instruction.parts[0] == "wgmma" or starts[instruction.index] == starts[instruction.index + 1]:
            continue
        mentioned = [name for name in names_in(instruction) if name in tracked]
        if not mentioned:
            continue
        written = _results(instruction) & set(mentioned)
        at = starts[instruction.index]
        slot = lowering.slots
        read = set(mentioned) - written | {name for operand in instruction.operands[1:] for name in names_of(operand)}
        reads[at] = tuple(slot.offset(slot.register(name)) for name in mentioned if name in read)
        writes[at] = tuple(slot.offset(slot.register(name)) for name in written)
        operation = lowering.operations[at]
        lowering.operations[at] = _flagged(operation)
    return reads, writes


def _flagged(operation: Operation) -> Operation:
    return replace(operation, flags=operation.flags | Flag.TRACKED)


def _results(instruction: Instruction) -> set[str]:
    first = instruction.operands[0]
    if isinstance(first, Address):
        return set()
    items = first.items if isinstance(first, Vector) else (first,)
    return {item.name for item in items if hasattr(item, "name")}


# ---- variables ------------------------------------------------------------------------------------------------------------
def _parameters(function: Function) -> tuple[tuple[tuple[int, int], ...], int]:
    places, end = [], 0
    for each in function.parameters:
        end = _aligned(end, each.alignment)
        places.append((end, each.size_bytes))
        end += each.size_bytes
        _refuse_past(MOST_BYTES["param"], "param", end)
    return tuple(places), end


def _shared(function: Function, module: Module) -> tuple[dict[str, int], int]:
    """Offsets of variables in shared memory, and where dynamic shared memory begins."""
    variables = [each for each in (*function.variables, *module.variables.values()) if each.space == "shared"]
    fixed = [each for each in variables if each.size_bytes]
    open_ended = [each for each in variables if not each.size_bytes]
    offsets, end = _laid_out(fixed, start=core.shared_base)
    end = _aligned(end, max((each.alignment for each in open_ended), default=16))
    return {**offsets, **{each.name: end for each in open_ended}}, end


def _constants(module: Module) -> tuple[Constant, ...]:
    constants, address = [], CONSTANT_BASE
    for each in module.variables.values():
        if each.space not in ("const", "global"):
            continue
        address = _aligned(address, max(each.alignment, 256))
        _refuse_past(MOST_BYTES["const"], each.space, address - CONSTANT_BASE + each.size_bytes)
        data = each.initial if each.initial is not None else bytes(each.size_bytes)
        constants.append(Constant(each.name, address, data))
        address += max(each.size_bytes, 1)
    return tuple(constants)


def _laid_out(variables: list[Variable], start: int = 0) -> tuple[dict[str, int], int]:
    offsets, end = {}, start
    for each in variables:
        end = _aligned(end, each.alignment)
        offsets[each.name] = end
        end += each.size_bytes
    return offsets, end


def _refuse_past(most: int, space: str, size: int) -> None:
    """Raises: Unsupported where variables take more memory than a GPU, or the emulator, has for them."""
    if size > most:
        raise Unsupported(f"{size} bytes of .{space} variables", 0)


def _aligned(value: int, alignment: int) -> int:
    return -(-value // max(alignment, 1)) * max(alignment, 1)
