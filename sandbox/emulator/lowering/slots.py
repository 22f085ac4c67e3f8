"""The register file of a warp: where each PTX register, constant and intermediate value lies.

PTX has a register for every value; a file with a slot for each would not fit a cache. Registers whose lives do not overlap
share a slot. A life is the span of instructions from the first to the last mention, widened over every loop that it reaches
into or out of, so that no value is lost between iterations.
"""

import heapq
from collections.abc import Collection, Sequence

from cudal2_agent.sandbox.emulator.lowering.loops import Loops
from cudal2_agent.sandbox.emulator.lowering.mentions import Mentions
from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Instruction

LANES = 32
ALIGNMENT = 32
MASK_BYTES = 4  # of a predicate: one bit per lane


def slot_bytes(size: int) -> int:
    """Bytes of a slot with `size` bytes per lane; 0 stands for a predicate."""
    wanted = LANES * size if size else MASK_BYTES
    return -(-wanted // ALIGNMENT) * ALIGNMENT


class SlotFile:
    """Slots by what they hold. Constants come first, in the part of the file that no operation writes.

    Since the constants are only known at the end, slots are handed out as negative numbers, and `offset` gives their place.
    """

    def __init__(self, registers: dict[str, int], lives: dict[str, tuple[int, int]]) -> None:
        self._constants: dict[tuple[int, int], int] = {}
        self._constant_image = bytearray(ALIGNMENT)  # offset 0 is no slot
        self._variable_bytes = 0
        self._sizes = registers
        self._registers = self._allocate(lives)
        self._scratch: dict[int, list[int]] = {}
        self._taken: dict[int, int] = {}

    def register(self, name: str) -> int:
        return -1 - self._registers[name]

    def constant(self, value: int, size: int) -> int:
        """The slot with `value` in every lane (as a predicate: all lanes where it is not zero)."""
        value &= (1 << (8 * size)) - 1 if size else 1
        key = (value, size)
        if key not in self._constants:
            self._constants[key] = len(self._constant_image)
            one = value.to_bytes(size, "little") * LANES if size else (b"\xff" if value else b"\x00") * MASK_BYTES
            self._constant_image += one.ljust(slot_bytes(size), b"\0")
        return self._constants[key]

    def fixed(self, size: int) -> int:
        """A slot that nothing else shares."""
        return -1 - self._new(size)

    def scratch(self, size: int) -> int:
        """A slot for a value within the current instruction."""
        taken, pool = self._taken.get(size, 0), self._scratch.setdefault(size, [])
        if taken == len(pool):
            pool.append(self._new(size))
        self._taken[size] = taken + 1
        return -1 - pool[taken]

    def next_instruction(self) -> None:
        self._taken.clear()

    @property
    def constants(self) -> bytes:
        return bytes(self._constant_image)

    @property
    def total_bytes(self) -> int:
        """Bytes of the file. Handlers of addresses of 4 or 8 bytes may claim 8 of the last slot, which has 4."""
        return len(self._constant_image) + self._variable_bytes + slot_bytes(8)

    def offset(self, slot: int) -> int:
        """The byte offset of a slot in the finished file."""
        return slot if slot >= 0 else len(self._constant_image) + (-1 - slot)

    def _new(self, size: int) -> int:
        start = self._variable_bytes
        self._variable_bytes += slot_bytes(size)
        return start

    def _allocate(self, lives: dict[str, tuple[int, int]]) -> dict[str, int]:
        """Linear scan: a register takes the slot of one whose life has ended, of the same size."""
        placed: dict[str, int] = {}
        free: dict[int, list[int]] = {}
        ending: list[tuple[int, int, int]] = []
        for name, (start, end) in sorted(lives.items(), key=lambda item: item[1]):
            while ending and ending[0][0] < start:
                _, place, size = heapq.heappop(ending)
                heapq.heappush(free.setdefault(size, []), place)
            size = self._sizes[name]
            pool = free.get(size)
            placed[name] = heapq.heappop(pool) if pool else self._new(size)
            heapq.heappush(ending, (end, placed[name], size))
        return placed


def lives_of(function: Function, mentions: Sequence[Mentions], pinned: Collection[str]) -> dict[str, tuple[int, int]]:
    """First and last instruction of every mentioned register's life; `pinned` ones live throughout."""
    last = max(len(function.instructions) - 1, 0)
    lives: dict[str, tuple[int, int]] = {}
    unsure: set[str] = set()
    for instruction, mentioned in zip(function.instructions, mentions, strict=True):
        at, first = instruction.index, []
        for name in mentioned.all:
            life = lives.get(name)
            if life is None:
                first.append(name)
            lives[name] = (at, at) if life is None else (life[0], at)
        if first:
            unsure.update(set(first) - _certainly_written(instruction, mentioned))
    for name in pinned:
        if name in lives:
            lives[name] = (0, last)
    loops = Loops(_loops(function), last + 1)
    return {name: (loops.around if name in unsure else loops.across)(*life) for name, life in lives.items()}


def _certainly_written(instruction: Instruction, mentions: Mentions) -> set[str]:
    """Registers that an unguarded instruction writes without reading them first: those of its first operand only."""
    if mentions.guard or isinstance(instruction.operands[0], Address):
        return set()
    return set(mentions.first) - set(mentions.rest)


def _loops(function: Function) -> list[tuple[int, int]]:
    """(first, last) instruction of every backward jump."""
    found = set()
    for instruction in function.instructions:
        if instruction.parts[0] not in ("bra", "brx"):
            continue
        for operand in instruction.operands:
            name = getattr(operand, "name", "")
            for target in function.branch_targets.get(name, (name,)):
                start = function.labels.get(target)
                if start is not None and start <= instruction.index:
                    found.add((start, instruction.index))
    return sorted(found)
