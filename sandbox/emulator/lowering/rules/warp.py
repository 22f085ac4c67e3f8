"""Operations across the lanes of a warp: shuffles, votes, matches, reductions, elections.

Covered: the .sync forms, activemask, bar.warp.sync and nanosleep (which do nothing to data).
Not covered: the forms without .sync, which sm_70 dropped, and redux of f32.
"""

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule, opcode_of, read, unsupported
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Kind
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction, Operand, Pair, Sink

_ALL_LANES = 0xFFFFFFFF
_SHUFFLES = ("up", "down", "bfly", "idx")
_VOTES = {"all": "pred", "any": "pred", "uni": "pred", "ballot": "b32"}
_REDUCTIONS = {
    **{(name, kind): f"redux.{name}.{kind}" for name in ("min", "max") for kind in ("u32", "s32")},
    **{("add", kind): "redux.add" for kind in ("u32", "s32")},
    **{(name, "b32"): f"redux.{name}" for name in ("and", "or", "xor")},
}


def _members(lowering: Lowering, operand: Operand) -> int:
    """The slot of a member mask; 0 for the constant of all lanes."""
    if isinstance(operand, Immediate) and operand.value & _ALL_LANES == _ALL_LANES:
        return 0
    return lowering.source(operand, 4)


def _check(instruction: Instruction, modifiers: tuple[str, ...], operands: int) -> None:
    if opcode_of(instruction).modifiers != modifiers or len(instruction.operands) != operands:
        raise unsupported(instruction)


def _two(lowering: Lowering, operand: Operand) -> tuple[Operand, int]:
    """`d|p`: d, and the slot of p, which need not be there."""
    if isinstance(operand, Pair):
        return operand.first, lowering.target(operand.second, MASK)
    return operand, lowering.scratch(MASK)


def _shfl(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    mode = opcode.modifiers[-1] if opcode.modifiers else ""
    _check(instruction, ("sync", mode), 5)
    if mode not in _SHUFFLES or opcode.types != ("b32",):
        raise unsupported(instruction)
    results, *sources, members = instruction.operands
    value, lane, clamp = (lowering.source(operand, 4) for operand in sources)
    target, within = _two(lowering, results)
    lowering.emit(
        f"shfl.{mode}",
        Kind.PLAIN,
        Flag.COLLECTIVE,
        _members(lowering, members),
        result=lowering.target(target, 4),
        value=value,
        lane=lane,
        clamp=clamp,
        within=within,
    )


def _vote(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    mode = opcode.modifiers[-1] if opcode.modifiers else ""
    _check(instruction, ("sync", mode), 3)
    if mode not in _VOTES or opcode.types != (_VOTES[mode],):
        raise unsupported(instruction)
    _emit(lowering, instruction, f"vote.{mode}", 4 if mode == "ballot" else MASK, MASK)


def _match(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    mode = opcode.modifiers[0] if opcode.modifiers else ""
    _check(instruction, (mode, "sync"), 3)
    if mode not in ("any", "all") or opcode.types not in (("b32",), ("b64",)):
        raise unsupported(instruction)
    _emit(lowering, instruction, f"match.{mode}.{opcode.types[0]}", 4, 4 if opcode.types == ("b32",) else 8)


def _redux(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    name = opcode.modifiers[-1] if opcode.modifiers else ""
    _check(instruction, ("sync", name), 3)
    handler = _REDUCTIONS.get((name, ".".join(opcode.types)))
    if handler is None:
        raise unsupported(instruction)
    _emit(lowering, instruction, handler, 4, 4)


def _emit(lowering: Lowering, instruction: Instruction, handler: str, result: int, source: int) -> None:
    """A collective of `d, a, members` or `d|p, a, members`."""
    results, operand, members = instruction.operands
    if isinstance(results, Pair) and not handler.startswith("match.all"):
        raise unsupported(instruction, "with two results")
    target, second = _two(lowering, results)
    mask, value = _members(lowering, members), read(lowering, operand, source)
    operands = {"predicate" if handler.startswith("vote") else "value": value}
    if handler.startswith("match.all"):
        operands["equal"] = second
    lowering.emit(handler, Kind.PLAIN, Flag.COLLECTIVE, mask, result=lowering.target(target, result), **operands)


def _activemask(lowering: Lowering, instruction: Instruction) -> None:
    _check(instruction, (), 1)
    lowering.emit("activemask", result=lowering.target(instruction.operands[0], 4))


def _elect(lowering: Lowering, instruction: Instruction) -> None:
    _check(instruction, ("sync",), 2)
    results, members = instruction.operands
    target, elected = _two(lowering, results)
    slot = lowering.scratch(4) if isinstance(target, Sink) else lowering.target(target, 4)
    lowering.emit("elect", Kind.PLAIN, Flag.COLLECTIVE, _members(lowering, members), result=slot, elected=elected)


def warp_barrier(lowering: Lowering, instruction: Instruction) -> None:
    """bar.warp.sync: the lanes reconverge."""
    _check(instruction, ("warp", "sync"), 1)
    lowering.emit("bar.warp", Kind.PLAIN, Flag.COLLECTIVE, _members(lowering, instruction.operands[0]))


def _nanosleep(lowering: Lowering, instruction: Instruction) -> None:
    _check(instruction, (), 1)
    lowering.emit("nanosleep")


RULES: dict[str, Rule] = {
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "activemask": _activemask,
    "elect": _elect,
    "nanosleep": _nanosleep,
}
