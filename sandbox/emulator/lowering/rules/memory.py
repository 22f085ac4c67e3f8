"""Loads, stores, atomics, and the instructions that only advise the caches.

Covered: ld, ldu, st, atom and red in every space a kernel has, scalar and vector, with their memory order; discard; mapa,
getctarank; prefetches, which only check their addresses. Priorities and cache policies do nothing.
Elsewhere: st.async, an asynchronous store into a peer's shared memory (`copy.py`).
Not covered: multimem, red.async, 128-bit atomics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.table import SCOPES, Kind, Scope, Semantics, Space
from cudal2_agent.sandbox.emulator.ptx.module import Address, Instruction, Operand, Register, Sink, Symbol, Unsupported, Vector

_SEMANTICS = {
    **{each.name.lower(): each for each in Semantics},
    "volatile": Semantics.RELAXED,
    "mmio": Semantics.RELAXED,
}
_SPACES = {
    "global": Space.GLOBAL,
    "shared": Space.SHARED,
    "shared::cta": Space.SHARED,
    "shared::cluster": Space.SHARED,
    "param": Space.PARAM,
    "param::entry": Space.PARAM,
    "local": Space.LOCAL,
    "const": Space.CONST,
}
_OWN_SHARED = ("shared", "shared::cta")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WITHOUT_EFFECT = frozenset({"nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"})
_HINT = "L2::cache_hint"

_MAX_VECTOR_BYTES = 32
_MEMORY_TYPES = frozenset({*(f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)), "f32", "f64", "b128"})

_INTEGERS = ("u32", "s32", "u64", "s64")
_BITS = ("b32", "b64")
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_ATOMIC_TYPES: Mapping[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
    "min": (*_INTEGERS, *_HALVES),
    "max": (*_INTEGERS, *_HALVES),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
    "exch": (*_BITS, "b128"),
    "cas": ("b16", *_BITS, "b128"),
}


@dataclass(frozen=True, slots=True)
class _AccessForm:
    """What the modifiers of a memory instruction say. `own`: only the CTA's own shared memory. `rest`: what else they are."""

    space: Space
    own: bool
    semantics: Semantics
    scope: Scope
    count: int
    type: str
    hinted: bool
    rest: frozenset[str]


def _form(instruction: Instruction) -> _AccessForm:
    """The modifiers of a memory instruction; ptxas takes them in any order."""
    space, own, semantics, scope, count, kind, hinted, rest = (
        Space.GENERIC,
        False,
        Semantics.WEAK,
        Scope.DEVICE,
        1,
        "",
        False,
        [],
    )
    for part in instruction.parts[1:]:
        if part in _SPACES:
            space, own = _SPACES[part], part in _OWN_SHARED
        elif part in _SEMANTICS:
            semantics = max(semantics, _SEMANTICS[part])
        elif part in SCOPES:
            scope = SCOPES[part]
        elif part in _VECTORS:
            count = _VECTORS[part]
        elif not kind and (part in _MEMORY_TYPES or part in _HALVES):
            kind = part
        elif part.startswith(("L1::", "L2::")):
            hinted |= part == _HINT
        elif part not in _WITHOUT_EFFECT:
            rest.append(part)
    return _AccessForm(space, own, semantics, scope, count, kind, hinted, frozenset(rest))


# ---- ld and st -------------------------------------------------------------------------------------------------------------
def _load(lowering: Lowering, instruction: Instruction) -> None:
    form = _plain_form(instruction)
    values, address = _operands(instruction, 2, form)
    items = _items(values, form.count, instruction)
    size, width = _sizes(lowering, form, items, instruction)
    signed = form.type.startswith("s") and width > size
    slots = [lowering.target(item, width) for item in items]
    kind = Kind.PLAIN if form.semantics == Semantics.WEAK else Kind.POLL
    _emit(lowering, f"ld.{'s' if signed else 'u'}{8 * size}.b{8 * width}", form, address, instruction, kind=kind, values=slots)


def _store(lowering: Lowering, instruction: Instruction) -> None:
    form = _plain_form(instruction)
    if form.space in (Space.PARAM, Space.CONST):
        raise Unsupported(instruction.opcode, instruction.line)
    address, values = _operands(instruction, 2, form)
    items = _items(values, form.count, instruction)
    size, width = _sizes(lowering, form, items, instruction)
    slots = [_value(lowering, item, width, instruction) for item in items]
    _emit(lowering, f"st.b{8 * size}.b{8 * width}", form, address, instruction, values=slots)


def _plain_form(instruction: Instruction) -> _AccessForm:
    form = _form(instruction)
    if form.rest or form.type not in _MEMORY_TYPES or form.count * width_of(form.type) > _MAX_VECTOR_BYTES:
        raise Unsupported(instruction.opcode, instruction.line)
    return form


def _sizes(lowering: Lowering, form: _AccessForm, items: Sequence[Operand], instruction: Instruction) -> tuple[int, int]:
    """Bytes of a value in memory and in its register, which may be wider."""
    size = width_of(form.type)
    width = next((lowering.width(item) for item in items if isinstance(item, Register)), size)
    if width < size or (width == 16) != (size == 16):
        raise Unsupported(f"{instruction.opcode} of a register of {8 * width} bits", instruction.line)
    return size, width


# ---- atom and red ----------------------------------------------------------------------------------------------------------
def _atomic(lowering: Lowering, instruction: Instruction) -> None:
    form = _form(instruction)
    operation = _atomic_operation(form, instruction)
    returns = instruction.parts[0] == "atom"
    operands = _operands(instruction, 2 + returns + (operation == "cas"), form)
    results = operands[0] if returns else Vector((Sink(),) * form.count) if form.count > 1 else Sink()
    address, *values = operands[returns:]
    size = width_of(form.type)
    slots = {"results": [lowering.target(item, size) for item in _items(results, form.count, instruction)]}
    for name, value in zip(("operands", "replacements"), values, strict=False):
        slots[name] = [_value(lowering, item, size, instruction) for item in _items(value, form.count, instruction)]
    kind, strong = Kind.POLL if returns else Kind.PLAIN, replace(form, semantics=max(form.semantics, Semantics.RELAXED))
    _emit(lowering, f"atom.{operation}.{form.type}", strong, address, instruction, kind=kind, **slots)


def _atomic_operation(form: _AccessForm, instruction: Instruction) -> str:
    """The operation of an atomic. Raises: Unsupported for one that PTX, or the core, does not have."""
    half = form.type in _HALVES
    operation = next(iter(form.rest - {"noftz"}), "")
    vectors = (2, 4, 8) if form.type in ("f16", "bf16") else (2, 4) if half or form.type == "f32" else ()
    known = form.type in _ATOMIC_TYPES.get(operation, ()) and form.space in (Space.GENERIC, Space.GLOBAL, Space.SHARED)
    right_vector = form.count == 1 or (form.count in vectors and form.space != Space.SHARED)
    right_rest = form.rest == ({operation, "noftz"} if half else {operation})
    if not known or not right_rest or not right_vector or (half and operation != "add" and form.count == 1):
        raise Unsupported(instruction.opcode, instruction.line)
    return operation


# ---- operands --------------------------------------------------------------------------------------------------------------
def _operands(instruction: Instruction, count: int, form: _AccessForm | None = None) -> tuple[Operand, ...]:
    """The operands without the cache policy that may follow them. Raises: Unsupported for another number of them."""
    if len(instruction.operands) != count + (form is not None and form.hinted):
        raise Unsupported(f"{instruction.opcode} with {len(instruction.operands)} operands", instruction.line)
    return instruction.operands[:count]


def _items(operand: Operand, count: int, instruction: Instruction) -> tuple[Operand, ...]:
    if count == 1:
        return (operand,)
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise Unsupported(f"{instruction.opcode} of other than {count} values", instruction.line)
    return operand.items


def _value(lowering: Lowering, operand: Operand, size: int, instruction: Instruction) -> int:
    if isinstance(operand, Sink) or size == MASK:
        raise Unsupported(f"{instruction.opcode} of {operand}", instruction.line)
    return lowering.source(operand, size)


def _named(lowering: Lowering, space: Space) -> Mapping[str, int]:
    """The variables whose names may stand as addresses of a space."""
    return {
        Space.SHARED: lowering.shared,
        Space.PARAM: lowering.parameters,
        Space.LOCAL: lowering.local,
    }.get(space, lowering.globals)


def _emit(
    lowering: Lowering,
    handler: str,
    form: _AccessForm,
    address: Operand,
    instruction: Instruction,
    *,
    kind: Kind = Kind.PLAIN,
    **registers: Sequence[int],
) -> None:
    """`kind`: POLL for what a warp may repeat until others change memory."""
    base = address.base if isinstance(address, Address) else None
    if isinstance(base, Symbol) and base.name not in _named(lowering, form.space):
        raise Unsupported(f"{instruction.opcode} of {base.name}", instruction.line)
    place = lowering.place(address, short=form.space == Space.SHARED)
    lowering.emit(
        f"{handler}.a{8 * place.slot_bytes}",
        kind,
        address=replace(place, offset=_signed(place.offset)),
        space=form.space,
        semantics=form.semantics,
        own_shared=int(form.own),
        scope=form.scope,
        **registers,
    )


def _signed(offset: int) -> int:
    """An offset as the 64-bit number that it wraps to."""
    return (offset + 2**63) % 2**64 - 2**63


# ---- caches ----------------------------------------------------------------------------------------------------------------
def _prefetch(lowering: Lowering, instruction: Instruction) -> None:
    """Memory holds the same after it; the core checks what it is of."""
    (address,) = _operands(instruction, 1)
    space = next((_SPACES[part] for part in instruction.parts if part in _SPACES), Space.GENERIC)
    if space == Space.LOCAL:
        return
    base = address.base if isinstance(address, Address) else None
    if isinstance(base, Symbol) and base.name not in _named(lowering, space):
        raise Unsupported(f"{instruction.opcode} of {base.name}", instruction.line)
    place = lowering.place(address, short=False)
    if place.slot_bytes != 8:
        raise Unsupported(f"{instruction.opcode} of a 32-bit address", instruction.line)
    handler = "prefetch.map" if "tensormap" in instruction.parts else "prefetch"
    lowering.emit(handler, address=replace(place, offset=_signed(place.offset)), space=space)


def _advice(lowering: Lowering, instruction: Instruction) -> None:
    """A priority of lines that are in the cache: memory holds the same after it."""


def _discard(lowering: Lowering, instruction: Instruction) -> None:
    if instruction.parts not in (("discard", "global", "L2"), ("discard", "L2")):
        raise Unsupported(instruction.opcode, instruction.line)
    address, _ = _operands(instruction, 2)
    place = lowering.place(address, short=False)
    if place.slot_bytes != 8:
        raise Unsupported(f"{instruction.opcode} of a 32-bit address", instruction.line)
    space = Space.GLOBAL if "global" in instruction.parts else Space.GENERIC
    lowering.emit("discard", address=replace(place, offset=_signed(place.offset)), space=space)


def _policy(lowering: Lowering, instruction: Instruction) -> None:
    """A cache policy is a hint, so any number will do."""
    if not instruction.operands:
        raise Unsupported(f"{instruction.opcode} without operands", instruction.line)
    target = lowering.target(instruction.operands[0], 8)
    lowering.emit("cvt.u64.u32", result=target, value=lowering.slots.constant(0, 4))


# ---- clusters --------------------------------------------------------------------------------------------------------------
def _map_to_rank(lowering: Lowering, instruction: Instruction) -> None:
    kind, size = _peer_type(instruction)
    target, address, rank = _operands(instruction, 3)
    own, of_rank = _peer_address(lowering, address, size, instruction), lowering.source(rank, 4)
    lowering.emit(f"mapa.{kind}", result=lowering.target(target, size), address=own, rank=of_rank)


def _rank(lowering: Lowering, instruction: Instruction) -> None:
    kind, size = _peer_type(instruction)
    target, address = _operands(instruction, 2)
    own = _peer_address(lowering, address, size, instruction)
    lowering.emit(f"getctarank.{kind}", result=lowering.target(target, 4), address=own)


def _peer_type(instruction: Instruction) -> tuple[str, int]:
    """The type of an address in shared memory, or a generic one, and its bytes."""
    if instruction.parts[1:] in (("shared::cluster", "u32"), ("shared::cluster", "u64"), ("u64",)):
        return instruction.parts[-1], width_of(instruction.parts[-1])
    raise Unsupported(instruction.opcode, instruction.line)


def _peer_address(lowering: Lowering, address: Operand, size: int, instruction: Instruction) -> int:
    generic = "shared::cluster" not in instruction.parts
    if isinstance(address, Symbol) and (generic or address.name not in lowering.shared):
        raise Unsupported(f"{instruction.opcode} of {address.name}", instruction.line)
    return lowering.source(address, size)


RULES: dict[str, Callable[[Lowering, Instruction], None]] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "applypriority": _advice,
    "discard": _discard,
    "createpolicy": _policy,
    "mapa": _map_to_rank,
    "getctarank": _rank,
}
