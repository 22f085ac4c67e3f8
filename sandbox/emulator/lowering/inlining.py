"""Calls replaced by the bodies of what they call, so that the core needs no stack.

Covered: calls of functions that the module defines, guarded or not, with parameters of any type. A function's variables and
parameters exist once, in local memory, which recursion alone would need more often.
Not covered: recursion, calls through pointers, functions without a body (printf, malloc, failed assertions).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Unsupported,
    Variable,
    Vector,
)

MAX_INSTRUCTIONS = 100_000  # labels, variables and targets of tables count as such
_PARAMETER_SPACES = ("param", "param::func")


def inline_calls(module: Module, entry: Function) -> Function:
    """An entry function without calls. Raises: Unsupported."""
    calls = any(instruction.parts[0] == "call" for instruction in entry.instructions)
    if not calls and all(variable.space != "param" for variable in entry.variables):
        return entry
    return _Inlining(module, entry).function()


@dataclass
class _Frame:
    """A function's body on its way into the entry function.

    `mark`: what its registers and labels get to be unique; empty for the entry. `arguments`: the caller's variables that stand
    for the parameters. `labels`: by the instruction they stand before. `position`: of the instruction to come.
    """

    function: Function
    mark: str
    arguments: dict[str, str]
    variables: frozenset[str]
    labels: dict[int, list[str]]
    position: int = 0

    @property
    def is_entry(self) -> bool:
        return not self.mark

    @property
    def after(self) -> str:
        """The label after the body; no label of PTX is an empty name with a mark."""
        return self.mark


@dataclass
class _Inlining:
    """The entry function under construction."""

    module: Module
    entry: Function
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)  # names of the functions under way
    calls: int = 0
    spent: int = 0

    def function(self) -> Function:
        stack = [self._frame(self.entry, {}, "", 0)]
        while stack:
            frame = stack[-1]
            self._place_labels(frame)
            if frame.position == len(frame.function.instructions):
                stack.pop()
                self.active.discard(frame.function.name)
                if not frame.is_entry:
                    self.labels[frame.after] = len(self.instructions)
                continue
            instruction = frame.function.instructions[frame.position]
            frame.position += 1
            if instruction.parts[0] == "call":
                stack.append(self._call(frame, instruction))
            elif instruction.parts[0] == "ret" and not frame.is_entry:
                self._leave(frame, instruction)
            else:
                self._append(self._renamed(frame, instruction))
        return replace(
            self.entry,
            registers=self.registers,
            variables=tuple(self.variables.values()),
            instructions=tuple(self.instructions),
            labels=self.labels,
            branch_targets=self.tables,
        )

    # ---- calls --------------------------------------------------------------------------------------------------------------
    def _call(self, frame: _Frame, instruction: Instruction) -> _Frame:
        """The frame of a called function, after a jump around it if the call is guarded."""
        callee = self._callee(instruction)
        if callee.name in self.active:
            raise Unsupported(f"call of {callee.name}, which is recursive,", instruction.line)
        arguments = self._arguments(frame, callee, instruction)
        self.calls += 1
        inner = self._frame(callee, arguments, f"#{self.calls}", instruction.line)
        if instruction.predicate is not None:
            self._append(self._jump(frame, instruction, inner.after, negated=not instruction.negated))
        return inner

    def _callee(self, instruction: Instruction) -> Function:
        target = instruction.operands[1] if len(instruction.operands) == 3 else None
        if not isinstance(target, Symbol):
            raise Unsupported("a call through a pointer", instruction.line)
        callee = self.module.functions.get(target.name)
        if callee is None or callee.kind != "func":
            raise Unsupported(f"call of {target.name}", instruction.line)
        return callee

    def _arguments(self, frame: _Frame, callee: Function, instruction: Instruction) -> dict[str, str]:
        """Names of the caller's variables by the callee's parameters. PTX allows no change to one during the call."""
        returned, _, given = instruction.operands
        assert isinstance(returned, Vector)
        assert isinstance(given, Vector)
        parameters, values = (*callee.returns, *callee.parameters), (*returned.items, *given.items)
        if len(returned.items) != len(callee.returns) or len(values) != len(parameters):
            raise Unsupported(f"call of {callee.name} with other parameters", instruction.line)
        arguments = {}
        for parameter, value in zip(parameters, values, strict=True):
            name = self._variable(frame, value.name) if isinstance(value, Symbol) else ""
            if name not in self.variables or self.variables[name].size_bytes < parameter.size_bytes:
                raise Unsupported(f"call of {callee.name} with {value}", instruction.line)
            arguments[parameter.name] = name
        return arguments

    def _leave(self, frame: _Frame, instruction: Instruction) -> None:
        last = frame.position == len(frame.function.instructions)
        if not last or instruction.predicate is not None:
            self._append(self._jump(frame, instruction, frame.after, negated=instruction.negated))

    def _jump(self, frame: _Frame, instruction: Instruction, label: str, *, negated: bool) -> Instruction:
        return replace(
            instruction,
            opcode="bra",
            parts=("bra",),
            operands=(Label(label),),
            predicate=self._predicate(frame, instruction),
            negated=negated and instruction.predicate is not None,
        )

    # ---- names --------------------------------------------------------------------------------------------------------------
    def _frame(self, function: Function, arguments: dict[str, str], mark: str, line: int) -> _Frame:
        tables = function.branch_targets
        self._spend(1 + len(function.labels) + len(function.variables) + sum(map(len, tables.values())), line)
        labels: dict[int, list[str]] = {}
        for name, index in function.labels.items():
            labels.setdefault(index, []).append(name + mark)
        for name, targets in tables.items():
            self.tables[name + mark] = tuple(target + mark for target in targets)
        names = frozenset(variable.name for variable in function.variables)
        self.active.add(function.name)
        frame = _Frame(function, mark, arguments, names, labels)
        for variable in function.variables:
            space = "local" if variable.space == "param" else variable.space
            name = self._variable(frame, variable.name)
            self.variables[name] = replace(variable, name=name, space=space)
        return frame

    def _place_labels(self, frame: _Frame) -> None:
        for label in frame.labels.get(frame.position, ()):
            self.labels[label] = len(self.instructions)

    def _variable(self, frame: _Frame, name: str) -> str:
        """What a name of a frame's function is called in the entry function."""
        if name in frame.arguments:
            return frame.arguments[name]
        return name if frame.is_entry or name not in frame.variables else f"{name}#{frame.function.name}"

    def _register(self, frame: _Frame, register: Register) -> Register:
        renamed = Register(register.name + frame.mark, register.type) if frame.mark else register
        self.registers.setdefault(renamed.name, renamed.type)
        return renamed

    def _predicate(self, frame: _Frame, instruction: Instruction) -> Register | None:
        return None if instruction.predicate is None else self._register(frame, instruction.predicate)

    def _operand(self, frame: _Frame, operand: Operand) -> Operand:
        match operand:
            case Register():
                return self._register(frame, operand)
            case Symbol(name=name, offset=offset):
                return Symbol(self._variable(frame, name), offset)
            case Label(name=name):
                return Label(name + frame.mark)
            case Negated(operand=register):
                return Negated(self._register(frame, register))
            case Vector(items=items):
                return Vector(tuple(self._operand(frame, item) for item in items))
            case Pair(first=first, second=second):
                return Pair(self._operand(frame, first), self._operand(frame, second))
            case Address(base=base, offset=offset, rest=rest):
                moved = self._operand(frame, base)
                assert isinstance(moved, type(base))
                return Address(moved, offset, tuple(self._operand(frame, item) for item in rest))
        return operand

    # ---- instructions -------------------------------------------------------------------------------------------------------
    def _renamed(self, frame: _Frame, instruction: Instruction) -> Instruction:
        parts = tuple(self._parts(frame, instruction))
        return replace(
            instruction,
            opcode=".".join(parts),
            parts=parts,
            operands=tuple(self._operand(frame, operand) for operand in instruction.operands),
            predicate=self._predicate(frame, instruction),
        )

    def _parts(self, frame: _Frame, instruction: Instruction) -> Iterator[str]:
        """The parts of an opcode, where parameters of functions have become local memory."""
        for part in instruction.parts:
            if part in _PARAMETER_SPACES and self._is_parameter(frame, instruction):
                if instruction.parts[0] not in ("ld", "st"):
                    raise Unsupported(f"{instruction.opcode} in a function that is called", instruction.line)
                part = "local"
            yield part

    def _is_parameter(self, frame: _Frame, instruction: Instruction) -> bool:
        """Whether an instruction on parameters means those of a function, not of the kernel."""
        bases = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
        return not frame.is_entry or any(isinstance(base, Symbol) and base.name in frame.variables for base in bases)

    def _append(self, instruction: Instruction) -> None:
        self._spend(1, instruction.line)
        self.instructions.append(replace(instruction, index=len(self.instructions)))

    def _spend(self, count: int, line: int) -> None:
        self.spent += count
        if self.spent > MAX_INSTRUCTIONS:
            raise Unsupported(f"a kernel of more than {MAX_INSTRUCTIONS} instructions, its calls inlined,", line)
