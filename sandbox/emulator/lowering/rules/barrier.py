"""Barriers of CTAs and clusters, mbarriers, fences, and what orders kernels.

Covered: bar and barrier in all forms, barrier.cluster, mbarrier with counts, tokens and parity, expect_tx and complete_tx,
fences of every scope, proxy fences for shared memory, griddepcontrol; the form of setmaxnreg.
Not covered: fence.proxy.tensormap; warpgroups that wait for more registers by setmaxnreg than others have given up.
"""

from collections.abc import Iterable

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.rules.warp import warp_barrier
from cudal2_agent.sandbox.emulator.lowering.table import NO_FLAGS, SCOPES, BarrierReduction, Flag, Kind, MemoryOperand, Scope
from cudal2_agent.sandbox.emulator.ptx.module import Address, Instruction, Operand, Sink, Unsupported

_REDUCTIONS = {"and": BarrierReduction.AND, "or": BarrierReduction.OR, "popc": BarrierReduction.POPC}
_SHARED = ("shared", "shared::cta", "shared::cluster")


def refuse(instruction: Instruction) -> Unsupported:
    return Unsupported(instruction.opcode, instruction.line)


# ---- bar ---------------------------------------------------------------------------------------------------------------------
def _bar(lowering: Lowering, instruction: Instruction) -> None:
    parts = [part for part in instruction.parts[1:] if part not in ("aligned", "cta")]
    if parts[:1] == ["warp"]:
        warp_barrier(lowering, instruction)
    elif parts[:1] == ["cluster"]:
        _cluster(lowering, instruction)
    elif parts == ["sync"] or parts == ["arrive"]:
        _meet(lowering, instruction, parts[0])
    elif len(parts) == 3 and parts[0] == "red" and parts[1] in _REDUCTIONS:
        _reduce(lowering, instruction, parts[1])
    else:
        raise refuse(instruction)


def _meet(lowering: Lowering, instruction: Instruction, how: str) -> None:
    number, *count = instruction.operands
    if len(count) > 1:
        raise refuse(instruction)
    lowering.emit(
        f"bar.{how}",
        Kind.WAITING if how == "sync" else Kind.PLAIN,
        _together(instruction),
        barrier=lowering.source(number, 4),
        threads=lowering.source(count[0], 4) if count else 0,
    )


def _together(instruction: Instruction) -> Flag:
    """Flags of a barrier: its aligned forms, which `bar` always means, are executed by all lanes of a warp together."""
    return Flag.COLLECTIVE if instruction.parts[0] == "bar" or "aligned" in instruction.parts else NO_FLAGS


def _reduce(lowering: Lowering, instruction: Instruction, how: str) -> None:
    result, number, *count, predicate = instruction.operands
    if len(count) > 1:
        raise refuse(instruction)
    lowering.emit(
        "bar.sync",
        Kind.WAITING,
        _together(instruction),
        result=lowering.target(result, 4 if how == "popc" else MASK),
        barrier=lowering.source(number, 4),
        threads=lowering.source(count[0], 4) if count else 0,
        predicate=lowering.predicate(predicate),
        reduction=_REDUCTIONS[how],
    )


def _cluster(lowering: Lowering, instruction: Instruction) -> None:
    rest = set(instruction.parts[2:]) - {"aligned", "release", "acquire"}
    if "arrive" in rest and rest <= {"arrive", "relaxed"}:
        lowering.emit("barrier.cluster.arrive", Kind.PLAIN, _together(instruction), relaxed=int("relaxed" in rest))
    elif rest == {"wait"}:
        lowering.emit("barrier.cluster.wait", Kind.WAITING, _together(instruction))
    else:
        raise refuse(instruction)


# ---- mbarrier ----------------------------------------------------------------------------------------------------------------
_MBARRIER_MODIFIERS = {"b64", "cta", "cluster", "release", "acquire", "relaxed", *_SHARED}


def _mbarrier(lowering: Lowering, instruction: Instruction) -> None:
    what = instruction.parts[1]
    rest = set(instruction.parts[2:]) - _MBARRIER_MODIFIERS
    if what in ("init", "inval", "expect_tx", "complete_tx") and not rest:
        _state(lowering, instruction, what)
    elif what in ("arrive", "arrive_drop") and rest <= {"expect_tx", "noComplete"}:
        _arrive(lowering, instruction, expects="expect_tx" in rest, drops=what == "arrive_drop")
    elif what == "pending_count" and not rest:
        result, state = instruction.operands
        lowering.emit("mbarrier.pending", result=lowering.target(result, 4), state=lowering.source(state, 8))
    elif what in ("try_wait", "test_wait") and rest <= {"parity"}:
        _test(lowering, instruction, parity="parity" in rest)
    else:
        raise refuse(instruction)


def _state(lowering: Lowering, instruction: Instruction, what: str) -> None:
    place, generic = _barrier_place(lowering, instruction, instruction.operands[0])
    given = instruction.operands[1:]
    if len(given) != (0 if what == "inval" else 1):
        raise refuse(instruction)
    count = lowering.source(given[0], 4) if given else 0
    if what == "init":
        lowering.emit("mbarrier.init", mbarrier=place, generic=generic, arrivals=count)
    elif what == "inval":
        lowering.emit("mbarrier.inval", mbarrier=place, generic=generic)
    else:
        lowering.emit("mbarrier.expect", mbarrier=place, generic=generic, bytes=count, complete=int(what == "complete_tx"))


def _arrive(lowering: Lowering, instruction: Instruction, *, expects: bool, drops: bool) -> None:
    token: Operand = Sink()
    operands = list(instruction.operands)
    if not isinstance(operands[0], Address):
        token = operands.pop(0)
    place, generic = _barrier_place(lowering, instruction, operands[0])
    if len(operands) > 2 or (expects and len(operands) != 2):
        raise refuse(instruction)
    number = lowering.source(operands[1], 4) if len(operands) == 2 else 0
    lowering.emit(
        "mbarrier.arrive",
        state=0 if isinstance(token, Sink) else lowering.target(token, 8),
        mbarrier=place,
        generic=generic,
        arrivals=0 if expects else number,
        expected_bytes=number if expects else 0,
        relaxed=int("relaxed" in instruction.parts),
        drop=int(drops),
        no_complete=int("noComplete" in instruction.parts),
    )


def _test(lowering: Lowering, instruction: Instruction, *, parity: bool) -> None:
    if len(instruction.operands) not in (3, 4):  # the fourth is a time limit, which no answer depends on
        raise refuse(instruction)
    result, address, state = instruction.operands[:3]
    place, generic = _barrier_place(lowering, instruction, address)
    lowering.emit(
        "mbarrier.test.parity" if parity else "mbarrier.test.state",
        Kind.WAITING,
        done=lowering.target(result, MASK),
        mbarrier=place,
        generic=generic,
        phase=lowering.source(state, 4 if parity else 8),
    )


def _barrier_place(lowering: Lowering, instruction: Instruction, operand: Operand) -> tuple[MemoryOperand, int]:
    """Where an mbarrier lies, and whether its address is generic."""
    shared = not set(_SHARED).isdisjoint(instruction.parts)
    return lowering.place(operand, short=shared), int(not shared)


# ---- fences ------------------------------------------------------------------------------------------------------------------
def _fence(lowering: Lowering, instruction: Instruction) -> None:
    parts = set(instruction.parts[1:])
    if "mbarrier_init" in parts:
        lowering.emit("fence.mbarrier_init")
    elif parts & {"proxy"}:
        kind = parts & {"async", "alias", "async::generic"}
        if not kind:
            raise refuse(instruction)
        lowering.emit("nothing" if "alias" in kind else "fence.proxy.async")
    elif parts <= {"acq_rel", "sc", "acquire", "release", "sync_restrict::shared::cluster", *SCOPES}:
        lowering.emit("fence", scope=_scope(parts))
    else:
        raise refuse(instruction)


def _membar(lowering: Lowering, instruction: Instruction) -> None:
    if "proxy" in instruction.parts:
        raise refuse(instruction)
    lowering.emit("fence", scope=_scope(instruction.parts))


def _scope(parts: Iterable[str]) -> Scope:
    """The scope of a fence: the device if it names none, as in membar.gl."""
    return next((SCOPES[part] for part in parts if part in SCOPES), Scope.DEVICE)


def _dependency(lowering: Lowering, instruction: Instruction) -> None:
    what = instruction.parts[1]
    if what not in ("wait", "launch_dependents"):
        raise refuse(instruction)
    lowering.emit(f"griddepcontrol.{what}")


def _registers(lowering: Lowering, instruction: Instruction) -> None:  # noqa: ARG001 (a rule's signature)
    lowering.emit("nothing", Kind.PLAIN, Flag.COLLECTIVE)


RULES: dict[str, Rule] = {
    "bar": _bar,
    "barrier": _bar,
    "mbarrier": _mbarrier,
    "fence": _fence,
    "membar": _membar,
    "griddepcontrol": _dependency,
    "setmaxnreg": _registers,
}
