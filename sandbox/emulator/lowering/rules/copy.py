"""Asynchronous copies: cp.async of 4 to 16 bytes per lane, cp.async.bulk of tensors and ranges.

Covered: cp.async with source sizes, ignored sources, groups and mbarriers; bulk tensor loads, stores and reductions
in tile mode of one to five dimensions, multicast; bulk copies and reductions of ranges, also into shared memory; groups and
waits; st.async; prefetches, of which the core checks the range and the map.
Not covered: im2col and gather modes, byte masks, red.async.
"""

from collections.abc import Sequence
from dataclasses import replace

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.rules.barrier import refuse
from cudal2_agent.sandbox.emulator.lowering.table import MemoryOperand, Reduction, Space, TensorType
from cudal2_agent.sandbox.emulator.ptx.module import Address, Immediate, Instruction, Operand, Register, Vector

_HINTS = {"L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"}
_REDUCTIONS = {each.name.lower(): each for each in Reduction if each is not Reduction.STORE}
# b32 and b64 hold bits.
TYPES = {**{each.name.lower(): each for each in TensorType}, "b32": TensorType.U32, "b64": TensorType.U64}
_DIMENSIONS = {f"{count}d": count for count in range(1, 6)}
_MBARRIER = "mbarrier::complete_tx::bytes"


def _cp(lowering: Lowering, instruction: Instruction) -> None:
    parts = instruction.parts
    if parts[:2] == ("cp", "reduce"):
        _bulk(lowering, instruction, parts[4:])
    elif parts[2] == "bulk":
        _bulk(lowering, instruction, parts[3:])
    elif parts[2] in ("ca", "cg"):
        _copy(lowering, instruction)
    elif parts[2] == "commit_group":
        lowering.emit("cp.async.commit")
    elif parts[2] == "wait_group":
        lowering.emit("cp.async.wait", pending=_constant(instruction, 0))
    elif parts[2] == "wait_all":
        lowering.emit("cp.async.wait", pending=0, all=1)
    elif parts[2:4] == ("mbarrier", "arrive"):
        shared = "shared" in parts or "shared::cta" in parts
        place = lowering.place(instruction.operands[0], short=shared)
        lowering.emit("cp.async.arrive", mbarrier=place, generic=int(not shared), counted=int("noinc" in parts))
    else:
        raise refuse(instruction)


# ---- cp.async --------------------------------------------------------------------------------------------------------------
def _copy(lowering: Lowering, instruction: Instruction) -> None:
    rest = set(instruction.parts[3:]) - _HINTS - {"shared", "shared::cta", "global"}
    if rest - {""}:  # NVRTC writes the level of a prefetch behind a dot of its own
        raise refuse(instruction)
    target, source, size, *more = instruction.operands
    if "L2::cache_hint" in instruction.parts and more:
        more.pop()
    if len(more) > 1 or not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise refuse(instruction)
    to, come = lowering.place(target, short=True), lowering.place(source, short=False)
    read = skipped = 0
    if more and isinstance(more[0], Register) and more[0].type == "pred":
        skipped = lowering.source(more[0], MASK)
    elif more:
        read = lowering.source(more[0], 4)
    lowering.emit(
        "cp.async",
        target=replace(to, offset=to.offset & 0xFFFFFFFF),
        source=come,
        bytes=size.value,
        read_bytes=read,
        ignore_source=skipped,
    )


# ---- bulk --------------------------------------------------------------------------------------------------------------------
def _bulk(lowering: Lowering, instruction: Instruction, parts: tuple[str, ...]) -> None:
    if parts[0] == "commit_group":
        lowering.emit("cp.async.bulk.commit")
    elif parts[0] == "wait_group":
        lowering.emit("cp.async.bulk.wait", pending=_constant(instruction, 0))
    elif parts[0] == "prefetch":
        _prefetch(lowering, instruction, parts[1:])
    elif parts[0] == "tensor":
        _tensor(lowering, instruction, parts[1:])
    else:
        _range(lowering, instruction, parts)


def _prefetch(lowering: Lowering, instruction: Instruction, parts: tuple[str, ...]) -> None:
    operands = _without_hint(instruction)
    if parts[0] == "tensor" and parts[1] in _DIMENSIONS and not set(parts[2:]) - {"L2", "global", "tile", *_HINTS}:
        (source,) = operands
        tensor_map, coordinates = _tensor_operand(lowering, instruction, source, parts[1])
        lowering.emit("prefetch.box", map=tensor_map, coordinates=coordinates)
        return
    if parts[:2] != ("L2", "global") or set(parts[2:]) - _HINTS:
        raise refuse(instruction)
    source, size = operands
    lowering.emit("prefetch", address=lowering.place(source, short=False), space=Space.GLOBAL, bytes=lowering.source(size, 4))


def _tensor(lowering: Lowering, instruction: Instruction, parts: tuple[str, ...]) -> None:
    known = {*_DIMENSIONS, *_REDUCTIONS, *_HINTS, _MBARRIER, "tile", "bulk_group", "multicast::cluster", "global"}
    spaces = {"shared::cluster", "shared::cta"}
    if set(parts) - known - spaces or parts[0] not in _DIMENSIONS:
        raise refuse(instruction)
    operands = _without_hint(instruction)
    if _MBARRIER in parts:
        target, source, barrier, *mask = operands
        tensor_map, coordinates = _tensor_operand(lowering, instruction, source, parts[0])
        to, signalled = lowering.place(target, short=True), lowering.place(barrier, short=True)
        if len(mask) != int("multicast::cluster" in parts) or to.offset or signalled.offset:
            raise refuse(instruction)
        lowering.emit(
            "cp.async.bulk.tensor.load",
            target=to,
            map=tensor_map,
            coordinates=coordinates,
            mbarrier=signalled,
            ctas=lowering.source(mask[0], 2) if mask else 0,
        )
        return
    target, source = operands
    tensor_map, coordinates = _tensor_operand(lowering, instruction, target, parts[0])
    come = lowering.place(source, short=True)
    if come.offset:
        raise refuse(instruction)
    how = _reduction(parts)
    lowering.emit("cp.async.bulk.tensor.store", source=come, map=tensor_map, coordinates=coordinates, reduction=how)


def _reduction(parts: Sequence[str]) -> Reduction:
    return next((_REDUCTIONS[part] for part in parts if part in _REDUCTIONS), Reduction.STORE)


def _tensor_operand(
    lowering: Lowering, instruction: Instruction, operand: Operand, dimensions: str
) -> tuple[MemoryOperand, list[int]]:
    """A tensor map's address, and the slots of the coordinates."""
    if not isinstance(operand, Address) or len(operand.rest) != 1 or not isinstance(operand.rest[0], Vector):
        raise refuse(instruction)
    place = lowering.place(operand, short=False)
    coordinates = operand.rest[0].items
    if place.slot_bytes != 8 or len(coordinates) != _DIMENSIONS[dimensions]:
        raise refuse(instruction)
    return place, [lowering.source(each, 4) for each in coordinates]


def _range(lowering: Lowering, instruction: Instruction, parts: tuple[str, ...]) -> None:
    """cp.async.bulk and cp.reduce.async.bulk: target space, source space, completion mechanism."""
    spaces = [part for part in parts if part in ("global", "shared::cta", "shared::cluster")]
    rest = set(parts) - set(spaces) - _HINTS - {_MBARRIER, "bulk_group", "multicast::cluster", "noftz"}
    how = _reduction(parts)
    kind = next((TYPES[part] for part in parts if part in TYPES), TensorType.U8)
    if rest - set(_REDUCTIONS) - set(TYPES) or len(spaces) != 2:
        raise refuse(instruction)
    operands = _without_hint(instruction)
    if spaces[0] == "global":
        target, source, size = operands
        to, come = lowering.place(target, short=False), lowering.place(source, short=True)
        if to.slot_bytes != 8 or come.offset:
            raise refuse(instruction)
        lowering.emit(
            "cp.async.bulk.store",
            source=come,
            target=to,
            bytes=lowering.source(size, 4),
            reduction=how,
            type=kind,
        )
        return
    target, source, size, barrier, *mask = operands
    shares = spaces[1] != "global"
    to, signalled = lowering.place(target, short=True), lowering.place(barrier, short=True)
    come = lowering.place(source, short=shares)
    if how and not shares or to.offset or signalled.offset or len(mask) != int("multicast::cluster" in parts):
        raise refuse(instruction)
    numbers = {"reduction": how, "type": kind} if shares else {}
    lowering.emit(
        "cp.async.bulk.shared" if shares else "cp.async.bulk.load",
        target=to,
        source=come,
        bytes=lowering.source(size, 4),
        mbarrier=signalled,
        ctas=lowering.source(mask[0], 2) if mask else 0,
        **numbers,
    )


def lower_remote_store(lowering: Lowering, instruction: Instruction) -> None:
    """st.async: values stored into a peer's shared memory, with bytes completed at an mbarrier there."""
    kind = instruction.parts[-1]
    target, values, barrier = instruction.operands
    size = width_of(kind)
    items = values.items if isinstance(values, Vector) else (values,)
    if _MBARRIER not in instruction.parts or size not in (4, 8) or size * len(items) > 16:
        raise refuse(instruction)
    to, signalled = lowering.place(target, short=True), _at_zero(lowering, instruction, barrier)
    slots = [lowering.source(item, size) for item in items]
    lowering.emit("st.async", target=to, mbarrier=signalled, values=slots, value_bytes=size)


def _at_zero(lowering: Lowering, instruction: Instruction, operand: Operand) -> MemoryOperand:
    place = lowering.place(operand, short=True)
    if place.offset:
        raise refuse(instruction)
    return place


def _without_hint(instruction: Instruction) -> tuple[Operand, ...]:
    return instruction.operands[:-1] if "L2::cache_hint" in instruction.parts else instruction.operands


def _constant(instruction: Instruction, position: int) -> int:
    operand = instruction.operands[position] if position < len(instruction.operands) else None
    if not isinstance(operand, Immediate) or not 0 <= operand.value < 2**31:
        raise refuse(instruction)
    return operand.value


RULES: dict[str, Rule] = {"cp": _cp}
