"""A kernel as the core executes it, lowered from PTX."""

from dataclasses import dataclass

import numpy as np

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.inlining import inline_calls
from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering, Operation, width_of
from cudal2_agent.sandbox.emulator.lowering.mentions import mentions_of
from cudal2_agent.sandbox.emulator.lowering.rules.rules import RULES
from cudal2_agent.sandbox.emulator.lowering.slots import SlotFile, lives_of
from cudal2_agent.sandbox.emulator.lowering.table import COLUMNS, HANDLERS, OPERATION, Kind, PlaceOf
from cudal2_agent.sandbox.emulator.lowering.unwritten import maybe_unwritten, registers_of_products, touched
from cudal2_agent.sandbox.emulator.lowering.variables import (
    MAX_BYTES,
    Constant,
    constants_of,
    laid_out,
    parameters_of,
    refuse_past,
    shared_of,
)
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Module, Unsupported

_BYTES = frozenset({"b8", "u8", "s8"})
_HANDLER, _KIND, _FLAGS, _INSTRUCTION = (COLUMNS[name] for name in ("handler", "kind", "flags", "instruction"))
_GUARD, _MEMBERS, _LIST, _COUNT = (COLUMNS[name] for name in ("guard", "members", "list", "count"))
_INDEX, _TARGET = COLUMNS["a"], COLUMNS["imm"]  # of branches


@dataclass(frozen=True)
class Program:
    """One entry. `parameters`: (offset, bytes) of each; `instructions`: by the numbers of the core's findings.

    `unwatched`: it may read old contents that only a run with taint detects.
    """

    entry: str
    core: core.Program
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    instructions: tuple[Instruction, ...]
    constants: tuple[Constant, ...]
    unwatched: bool = False


def lower(module: Module, entry: str) -> Program:
    """The program of one entry. Raises: Unsupported, which names the missing feature."""
    found = module.functions.get(entry)
    if found is None or found.kind != "entry":
        raise Unsupported(f"a module without entry {entry}", 0)
    function = inline_calls(module, found)
    constants = constants_of(module)
    parameters, parameter_bytes = parameters_of(function)
    shared, static_end = shared_of(function, module)
    local, local_bytes = laid_out([each for each in function.variables if each.space in ("local", "param")])
    refuse_past(MAX_BYTES["shared"], "shared", static_end - core.shared_base)
    refuse_past(MAX_BYTES["local"], "local", local_bytes)
    mentions = mentions_of(function)
    tracked = registers_of_products(function)
    unwritten = maybe_unwritten(function, mentions) - tracked  # the core notices itself when those are read
    sizes = {name: width_of(kind) for name, kind in function.registers.items()}
    lowering = Lowering(
        function=function,
        slots=SlotFile(sizes, lives_of(function, mentions, tracked | unwritten)),
        shared=shared,
        globals={constant.name: constant.address for constant in constants},
        parameters={each.name: offset for each, (offset, _) in zip(function.parameters, parameters, strict=True)},
        local=local,
    )
    starts = _emit(lowering)
    slots = lowering.slots
    reads, writes = touched(lowering, starts, tracked, mentions)
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
    """Bulk reductions read their target. Discarded memory, and the neighbour of a stored byte, count as written."""
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
    lowering.operations.append(Operation("", {}, last, Kind.EXIT))
    return starts


def _layout(lowering: Lowering, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Operations and their lists as the core reads them. Raises: OverflowError for a number that no field holds."""
    labels = lowering.function.labels
    lists: list[int] = []
    rows = [
        _row(operation, [starts[labels[name]] for name in operation.targets], lists, lowering.slots.offset)
        for operation in lowering.operations
    ]
    numbers = np.array(rows, dtype=np.int64)
    if numbers[:, :-1].min() < 0 or numbers[:, :-1].max() >= 2**32:
        raise OverflowError("an operation's number has more than 32 bits")
    table = np.zeros(len(rows), dtype=OPERATION)
    for name, column in COLUMNS.items():
        table[name] = numbers[:, column]
    return table, np.array(lists or [0], dtype=np.uint32)


def _row(operation: Operation, targets: list[int], lists: list[int], place: PlaceOf) -> list[int]:
    """An operation's record; what it lists is appended to `lists`."""
    row = [0] * len(COLUMNS)
    if operation.handler:
        handler = HANDLERS[operation.handler]
        row[_HANDLER] = handler.number
        listed = handler.encode(operation.operands, row, place)
    else:
        row[_INDEX] = place(operation.index)
        row[_TARGET] = targets[0] if operation.kind == Kind.BRANCH else 0
        listed = targets if operation.kind == Kind.BRANCH_INDEXED else []
    row[_KIND], row[_FLAGS], row[_INSTRUCTION] = operation.kind, operation.flags, operation.instruction
    row[_GUARD], row[_MEMBERS] = place(operation.guard), place(operation.members)
    row[_LIST], row[_COUNT] = len(lists), len(listed)
    lists += listed
    return row
