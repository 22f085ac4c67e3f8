"""The body of a function: statements in scopes, made into instructions.

A label may be used before it stands, anything else only after its declaration; so statements are cut first, and read when
all labels are known.
"""

import re
from dataclasses import dataclass, field, replace

from cudal2_agent.sandbox.emulator.ptx.declarations import registers, variables
from cudal2_agent.sandbox.emulator.ptx.lexer import LINKAGE, NAME, PRAGMA, PtxText, Quota, shown, tokens
from cudal2_agent.sandbox.emulator.ptx.module import (
    Function,
    Instruction,
    Label,
    PtxError,
    Register,
    SourceLine,
    Symbol,
    Variable,
)
from cudal2_agent.sandbox.emulator.ptx.operands import operands
from cudal2_agent.sandbox.emulator.ptx.scopes import NameScope

# The last named group to match is the kind of the statement.
_STATEMENT = re.compile(
    rf"""
    (?P<open>\{{) | (?P<close>\}})
    | \.loc\s+(?P<file>\d{{1,9}})\s+(?P<place>\d{{1,9}}\s+\d{{1,9}})
      (?:\s*,\s*function_name\s+[\w$]++(?:\s*\+\s*\d+)?)?
      (?:\s*,\s*inlined_at\s+(?P<into>\d{{1,9}})\s+(?P<at>\d{{1,9}}\s+\d{{1,9}}))?
    | (?P<label>{NAME})\s*+:(?!:) (?:\s*+\.(?P<table>branchtargets|calltargets|callprototype)\b(?P<listed>[^;{{}}]*+);)?
    | (?P<pragma>{PRAGMA})
    | \.reg\b(?P<registers>[^;{{}}]*+);
    | (?P<linkage>{LINKAGE})\.(?P<space>local|shared|param|global|const)\b(?P<variables>[^;]*+);
    | (?:@\s*+(?P<negated>!?+)\s*+(?P<predicate>{NAME})\s++)?+
      (?P<opcode>[a-z]\w*+(?:\s*+(?:\.|::)\s*+\w++)*+) (?P<operands>[^;]*+);
    """,
    re.ASCII | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with its position. `kind`: the name of a group of the pattern."""

    match: re.Match[str]
    kind: str
    scope: NameScope
    line: int


@dataclass
class Body:
    """Reads one function's statements. `files`: names by number."""

    header: Function
    scope: NameScope
    files: dict[int, str]
    quota: Quota
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    place: SourceLine | None = None
    seen: dict[tuple[str, str], SourceLine] = field(default_factory=dict)  # places so far, by file, and line with column

    def read(self, source: PtxText) -> Function:
        """The function whose opening brace was taken last. Raises: PtxError, Unsupported."""
        for statement in self._cut(source):
            _READERS[statement.kind](self, statement.match, statement.scope, statement.line)
        for table, targets in self.branch_targets.items():
            if not all(target in self.labels for target in targets):
                raise PtxError(f"{shown(table)} lists a label that stands before no instruction", source.line)
        return replace(
            self.header,
            registers=self.registers,
            variables=tuple(self.variables.values()),
            instructions=tuple(self.instructions),
            labels=self.labels,
            branch_targets=self.branch_targets,
        )

    def _cut(self, source: PtxText) -> list[Statement]:
        """The statements up to the closing brace. Their scopes then have all labels."""
        statements: list[Statement] = []
        scope, scopes = self.scope, 0
        while True:
            match = source.take(_STATEMENT)
            self.quota.spend("statements", 1, source.line)
            kind = match.lastgroup or ""
            if kind == "open":
                scopes += 1
                scope = scope.inner(scopes, source.line)
            elif kind != "close":
                if match["label"]:
                    scope.declare(match["label"], _labelled(match, scope), source.line)
                statements.append(Statement(match, kind, scope, source.line))
            elif scope is self.scope or scope.outer is None:
                return statements
            else:
                scope = scope.outer

    def _label(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        self.labels[scope.label(match["label"], line).name] = len(self.instructions)

    def _table(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        if match["table"] == "branchtargets":
            names = [token for token in tokens(match["listed"], line) if token != ","]
            targets = tuple(scope.label(name, line).name for name in names)
            self.branch_targets[scope.label(match["label"], line).name] = targets

    def _place(self, match: re.Match[str], _scope: NameScope, _line: int) -> None:
        """Where the next instructions come from. A call that was itself inlined stood in the text before what it calls."""
        place = self._at(match["file"], match["place"])
        if place is not None and match["into"]:
            call = self.seen.get((match["into"], match["at"])) or self._at(match["into"], match["at"])
            place = SourceLine(place.file, place.line, call and SourceLine(call.file, call.line, _outermost(call)))
        if place is not None:
            self.seen[match["file"], match["place"]] = place
        self.place = place

    def _at(self, file: str, place: str) -> SourceLine | None:
        """A place without its caller; None for the compiler's own code, which has line 0."""
        name, number = self.files.get(int(file)), int(place.split()[0])
        return SourceLine(name, number) if name is not None and number else None

    def _pragma(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        """Advice to ptxas; nothing depends on it."""

    def _registers(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        kind, names = registers(match["registers"], line, self.quota, any_form=scope.any_form)
        scope.declare_registers(names, kind, line)
        self.registers.update(dict.fromkeys((name + scope.mark for name in names) if scope.mark else names, kind))

    def _variables(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        external = ".extern" in match["linkage"]
        for variable in variables(match["variables"], match["space"], line, self.quota, external=external):
            taken = variable.name in self.variables or self.scope.find(variable.name) is not None
            unique = f"{variable.name}{scope.mark or '@0'}" if taken else variable.name
            scope.declare(variable.name, Symbol(unique, 0), line)
            self.variables[unique] = replace(variable, name=unique)

    def _operands(self, match: re.Match[str], scope: NameScope, line: int) -> None:
        opcode = "".join(match["opcode"].split())
        call = opcode == "call" or opcode.startswith("call.")
        instruction = Instruction(
            opcode=opcode,
            parts=tuple(opcode.split(".")),
            operands=operands(match["operands"], scope, line, call=call),
            predicate=_predicate(match["predicate"], scope, line),
            negated=bool(match["negated"]),
            index=len(self.instructions),
            line=line,
            place=self.place,
            text=" ".join(match[0][:-1].split()),
        )
        self.instructions.append(instruction)


_READERS = {
    "label": Body._label,
    "listed": Body._table,
    "place": Body._place,
    "at": Body._place,
    "pragma": Body._pragma,
    "registers": Body._registers,
    "variables": Body._variables,
    "operands": Body._operands,
}


def _labelled(match: re.Match[str], scope: NameScope) -> Label | Symbol:
    """What a label stands for: a place in the code, a table of such, or the types of an indirect call."""
    unique = match["label"] + scope.mark
    return Symbol(unique, 0) if match["table"] in ("calltargets", "callprototype") else Label(unique)


def _outermost(call: SourceLine) -> SourceLine | None:
    """The outermost of the calls that led to a call; None where it was not inlined."""
    return call.caller and (call.caller.caller or call.caller)


def _predicate(name: str | None, scope: NameScope, line: int) -> Register | None:
    if name is None:
        return None
    register = scope.register(name, line)
    if register.type != "pred":
        raise PtxError(f"{shown(name)} is no predicate", line)
    return register
