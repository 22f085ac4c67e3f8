"""The lowering against the core's declarations: handlers, operands by name, enums and the record of an operation."""

import ast
import enum
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.sandbox.emulator import core_module
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.rules import rules
from cudal2_agent.sandbox.emulator.lowering.slots import SlotFile
from cudal2_agent.sandbox.emulator.lowering.table import COLUMNS, HANDLERS, OPERATION, Handler, MemoryOperand, OperandError
from tests.sandbox.emulator.ptx.small_ptx import module

_FOLDER = Path(rules.__file__).parent
_STUB = Path(core_module.__file__).with_name("_core.pyi")
_OPTIONS = 4  # positions of emit: handler, kind, flags, members


def emits() -> Iterator[tuple[str, ast.Call]]:
    """Every call of `emit` in the lowering, with the file and line."""
    for path in sorted([*_FOLDER.glob("*.py"), *_FOLDER.parent.glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                yield f"{path.stem}:{node.lineno}", node


def handlers_of(name: ast.expr) -> list[Handler]:
    """The handlers that a literal or a formatted name may mean; none for a name that is computed elsewhere."""
    if isinstance(name, ast.Constant):
        return [HANDLERS[name.value]]
    if isinstance(name, ast.IfExp):
        return [*handlers_of(name.body), *handlers_of(name.orelse)]
    if not isinstance(name, ast.JoinedStr):
        return []
    pattern = "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in name.values)
    return [handler for known, handler in HANDLERS.items() if re.fullmatch(pattern, known)]


CALLS = list(emits())


def test_every_family_lowers_through_emit():
    """Or through what other modules offer it; prefetches and their like emit nothing."""
    emitting = {where.split(":")[0] for where, _ in CALLS}
    assert {path.stem for path in _FOLDER.glob("*.py")} - emitting == {"__init__", "rules", "floating"}
    assert len(rules.RULES) > 80


@pytest.mark.parametrize(("where", "call"), CALLS, ids=[where for where, _ in CALLS])
def test_a_lowering_names_what_its_handlers_declare(where, call):
    """The operands of each `emit`; those handed on as `**operands` are checked when they are emitted."""
    assert len(call.args) <= _OPTIONS
    candidates = handlers_of(call.args[0])
    given = {keyword.arg for keyword in call.keywords if keyword.arg}
    complete = all(keyword.arg for keyword in call.keywords)
    literal = isinstance(call.args[0], ast.Constant)
    fitting = [each for each in candidates if given <= each.names and (not complete or each.required <= given)]
    assert fitting == candidates if literal else fitting or not candidates, where


def test_operands_that_a_handler_does_not_declare_are_refused():
    lowering = Lowering(module(".visible .entry k()\n{\nret;\n}\n").functions["k"], SlotFile({}, {}), {}, {}, {}, {})
    with pytest.raises(OperandError, match=r"fence lacks the operand scope"):
        lowering.emit("fence")
    with pytest.raises(OperandError, match=r"fence has no operand a"):
        lowering.emit("fence", scope=0, a=32)
    with pytest.raises(OperandError, match=r"pack.2x16 takes several slots as elements"):
        lowering.emit("pack.2x16", result=32, elements=64)
    with pytest.raises(ValueError, match=r"pack.2x16 with 3 slots as elements"):
        lowering.emit("pack.2x16", result=32, elements=(64, 96, 128))


def encoded(handler: str, **operands: object) -> tuple[dict[str, int], list[int]]:
    row = [0] * len(COLUMNS)
    listed = HANDLERS[handler].encode(operands, row, lambda slot: slot)
    return dict(zip(COLUMNS, row, strict=True)), listed


def test_operands_lie_in_their_declared_fields():
    place = MemoryOperand(slot=96, slot_bytes=4, offset=-8)
    row, _ = encoded("mbarrier.arrive", mbarrier=place, generic=1, relaxed=1, drop=1, no_complete=1)
    assert (row["a"], row["p"], row["imm"], row["q"], row["r"], row["s"]) == (96, 4, -8, 1, 1, 0b11)
    _, listed = encoded("atom.cas.b32.a64", replacements=[3], operands=[2], results=[1], address=MemoryOperand(32, 8, 0))
    assert listed == [1, 2, 3]


def test_an_address_is_what_its_handler_takes():
    with pytest.raises(OperandError, match=r"discard takes an address as address"):
        encoded("discard", address=32, space=1)
    with pytest.raises(OperandError, match=r"an address of 8 bytes as address, not of 4"):
        encoded("discard", address=MemoryOperand(32, 4, 0), space=1)
    with pytest.raises(OperandError, match=r"cp.async.bulk.load takes no offset of target"):
        encoded("cp.async.bulk.load", target=MemoryOperand(32, 4, 16))


def test_every_declared_operand_lies_in_a_field_of_its_own():
    for declared in core.handlers():
        fields = [(operand.field, operand.shift) for operand in declared.operands if operand.field != "list"]
        fields += [(each, 0) for operand in declared.operands for each in (operand.width, operand.offset) if each]
        assert len(fields) == len(set(fields)), declared.name
        assert len({operand.name for operand in declared.operands}) == len(declared.operands), declared.name


def test_numbers_name_an_exported_enum():
    types = {operand.type for declared in core.handlers() for operand in declared.operands if operand.type}
    assert all(issubclass(getattr(core, name), enum.IntEnum | enum.IntFlag) for name in types)


def test_the_record_is_the_core_s():
    assert OPERATION.itemsize == core.operation_bytes
    assert [(name, OPERATION.fields[name][1]) for name in OPERATION.names] == [(n, o) for n, _, o in core.operation_fields]


def test_the_stub_has_the_members_of_the_core_s_enums():
    classes = [node for node in ast.parse(_STUB.read_text()).body if isinstance(node, ast.ClassDef)]
    written = {
        node.name: {line.targets[0].id: line.value.value for line in node.body if isinstance(line, ast.Assign)}
        for node in classes
        if any(isinstance(base, ast.Attribute) and base.attr in ("IntEnum", "IntFlag") for base in node.bases)
    }
    exported = {
        name: each
        for name, each in vars(core).items()
        if isinstance(each, type) and issubclass(each, enum.IntEnum | enum.IntFlag)
    }
    assert written == {name: {member: int(each[member]) for member in each.__members__} for name, each in exported.items()}


def test_detectors_have_the_core_s_names():
    assert [each.value for each in Detector] == core.detectors
