"""Registers that some path reads before any write: on a GPU they hold what an earlier kernel left there.

Covered: every path through branches and indexed branches; a guarded write counts as none.
Not covered: a read after a write under the same guard is listed, although it is in order. Whether a warpgroup's product reads
the accumulators that it writes is only known when it runs: the core detects that, as it does every read of them.
"""

import heapq
import itertools
from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.mentions import Mentions
from cudal2_agent.sandbox.emulator.lowering.table import Flag
from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Instruction, Unsupported, Vector

_NO_RESULT = frozenset({"bra", "brx", "nanosleep", "call", "ret", "exit", "setmaxnreg", "griddepcontrol", "fence", "membar"})
_BARRIERS = frozenset({"bar", "barrier"})
MAX_BITS = 1 << 30  # registers of interest times blocks
MAX_VISITS = 256  # of each block, on average


def maybe_unwritten(function: Function, mentions: Sequence[Mentions]) -> frozenset[str]:
    """The registers. Raises: Unsupported for a function whose blocks and registers are too many."""
    blocks = _blocks(function)
    exposed, written = zip(*(_block_sets(function, mentions, block) for block in blocks), strict=True) if blocks else ((), ())
    names = sorted(set().union(*exposed))
    if len(names) * len(blocks) > MAX_BITS:
        raise Unsupported(f"{len(blocks)} blocks with {len(names)} registers between them", 0)
    bit = {name: 1 << index for index, name in enumerate(names)}
    gains = [sum(bit[name] for name in each if name in bit) for each in written]
    known = _written_before(blocks, _successors(function, blocks), gains, (1 << len(names)) - 1)
    return frozenset(name for each, have in zip(exposed, known, strict=True) for name in each if not have & bit[name])


def _written_before(blocks: list[range], successors: list[list[int]], gains: list[int], everything: int) -> list[int]:
    """By block, what every path to its beginning has written. Raises: Unsupported where that takes too many steps.

    A block is visited again where a path to it has written less than was known: none of the others can change.
    """
    known = [everything] * len(blocks)
    if blocks:
        known[0] = 0
    waiting, queued, steps = [0], {0}, 0
    while waiting:
        at = heapq.heappop(waiting)
        queued.discard(at)
        steps += 1
        if steps > MAX_VISITS * (len(blocks) + MAX_VISITS):
            raise Unsupported(f"control flow of {len(blocks)} blocks that is not followed", 0)
        behind = known[at] | gains[at]
        for successor in successors[at]:
            if known[successor] & ~behind:
                known[successor] &= behind
                if successor not in queued:
                    heapq.heappush(waiting, successor)
                    queued.add(successor)
    return known


def _block_sets(function: Function, mentions: Sequence[Mentions], block: range) -> tuple[set[str], set[str]]:
    """Registers that a block may read before it writes them, and those that it writes for certain."""
    exposed: set[str] = set()
    written: set[str] = set()
    for index in block:
        mentioned = mentions[index]
        first_is_written = _writes_first(function.instructions[index])
        read = mentioned.guard + mentioned.rest if first_is_written else mentioned.all
        exposed.update(name for name in read if name not in written)
        if first_is_written and not mentioned.guard:
            written.update(mentioned.first)
    return exposed, written


def _writes_first(instruction: Instruction) -> bool:
    """Whether the registers of the first operand are results."""
    opcode = instruction.parts[0]
    without = opcode in _NO_RESULT or (opcode in _BARRIERS and "red" not in instruction.parts)
    return not without and bool(instruction.operands) and not isinstance(instruction.operands[0], Address)


# ---- control flow -----------------------------------------------------------------------------------------------------------
def _blocks(function: Function) -> list[range]:
    """Instructions that are executed one after the other."""
    count = len(function.instructions)
    starts = {0, *function.labels.values()}
    starts |= {each.index + 1 for each in function.instructions if each.parts[0] in ("bra", "brx", "ret", "exit")}
    edges = [*sorted(start for start in starts if start < count), count]
    return [range(first, end) for first, end in itertools.pairwise(edges)]


def _successors(function: Function, blocks: list[range]) -> list[list[int]]:
    at = {block.start: number for number, block in enumerate(blocks)}
    found = []
    for number, block in enumerate(blocks):
        last = function.instructions[block[-1]]
        after = [number + 1] if number + 1 < len(blocks) else []
        jumps = [at[start] for start in _targets(function, last) if start in at]
        leaves = last.parts[0] in ("bra", "brx", "ret", "exit") and last.predicate is None
        found.append(jumps if leaves else [*after, *jumps])
    return found


def _targets(function: Function, last: Instruction) -> list[int]:
    if last.parts[0] not in ("bra", "brx"):
        return []
    names = [getattr(operand, "name", "") for operand in last.operands]
    names = [target for name in names for target in function.branch_targets.get(name, (name,))]
    return [function.labels[name] for name in names if name in function.labels]


# Registers that a wgmma reads or writes asynchronously, and the operations that touch them.
_EMPTY: tuple[int, ...] = ()


def registers_of_products(function: Function) -> frozenset[str]:
    """Registers that a wgmma reads or writes on its own time: their slots are theirs alone, and touching them is checked."""
    names = set()
    for instruction in function.instructions:
        if instruction.parts[:2] == ("wgmma", "mma_async"):
            for operand in instruction.operands[:2]:
                if isinstance(operand, Vector):
                    names |= {getattr(item, "name", "") for item in operand.items}
    return frozenset(names)


def touched(
    lowering: Lowering, starts: list[int], tracked: frozenset[str], mentions: Sequence[Mentions]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """By operation, slots of products' registers that an instruction reads and writes; flags its first operation."""
    reads: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    writes: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    for instruction in lowering.function.instructions if tracked else ():
        if instruction.parts[0] == "wgmma" or starts[instruction.index] == starts[instruction.index + 1]:
            continue
        where = mentions[instruction.index]
        mentioned = [name for name in where.all if name in tracked]
        if not mentioned:
            continue
        written = _results(instruction) & set(mentioned)
        at = starts[instruction.index]
        slot = lowering.slots
        read = set(mentioned) - written | set(where.rest)
        reads[at] = tuple(slot.offset(slot.register(name)) for name in mentioned if name in read)
        writes[at] = tuple(slot.offset(slot.register(name)) for name in written)
        lowering.operations[at].flags |= Flag.TRACKED
    return reads, writes


def _results(instruction: Instruction) -> set[str]:
    first = instruction.operands[0]
    if isinstance(first, Address):
        return set()
    items = first.items if isinstance(first, Vector) else (first,)
    return {item.name for item in items if hasattr(item, "name")}
