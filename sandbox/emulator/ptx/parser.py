"""PTX text to a module.

Covered: what NVRTC and nvcc print up to PTX 9.0, and what inline assembly may add to it; hostile text, which costs time and
memory in proportion to its length and raises nothing but PtxError and Unsupported.
Not covered: whether instructions exist and their operands suit them; variables with an attribute or with addresses as their
initial values; vector registers, textures; 32-bit addresses.
"""

import re
from dataclasses import replace

from cudal2_agent.sandbox.emulator.ptx.body import Body
from cudal2_agent.sandbox.emulator.ptx.declarations import parameters, variables
from cudal2_agent.sandbox.emulator.ptx.lexer import LINKAGE, NAME, PRAGMA, PtxText, Quota, shown
from cudal2_agent.sandbox.emulator.ptx.module import Function, Module, PtxError, Symbol, Unsupported, Variable
from cudal2_agent.sandbox.emulator.ptx.scopes import NameScope

# The last named group to match says what it is.
_TOP = re.compile(
    rf"""
    \.version\s+(?P<major>\d{{1,4}})\.(?P<version>\d{{1,4}})
    | \.target\s+(?P<target>\w++)(?:\s*,\s*\w++)*+
    | \.address_size\s+(?P<address_size>\d{{1,4}})
    | (?P<file>\.file)\s+\d+\s+"[^"\n]*+"(?:\s*,\s*\d+\s*,\s*\d+)?
    | (?P<section>\.section)\s+\.debug_\w++\s*\{{[^}}"]*+\}}
    | (?P<pragma>{PRAGMA})
    | \.alias\s+(?P<alias>{NAME})\s*,\s*(?P<aliased>{NAME})\s*;
    | {LINKAGE}\.(?P<kind>entry|func)\b(?P<head>[^;{{}}]*+)(?P<function>[;{{])
    | (?P<linkage>{LINKAGE})\.(?P<space>global|const|shared)\b(?P<variables>[^;]*+);
    """,
    re.ASCII | re.VERBOSE,
)
_HEAD = re.compile(
    rf"""
    \s*+(?:\.attribute\s*\([^)]*\)\s*)?
    (?:\((?P<returns>[^()]*+)\)\s*+)? (?P<name>{NAME})\s*+ (?:\((?P<parameters>[^()]*+)\))?+ (?P<directives>[^()]*+)
    """,
    re.ASCII | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"\s*\.(?P<name>[a-z_]{1,40})(?P<numbers>(?:\s*+,?+\s*+\d{1,9})*+)\s*", re.ASCII)
_FILE = re.compile(r'\.file\s++(?P<number>\d{1,9})\s++"(?P<name>[^"\n]*+)"', re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)


def parse(text: str, *, any_form: bool = False) -> Module:
    """The module that a PTX text describes.

    `any_form`: also vector registers, their components, selectors of video instructions and parameters in registers, which
    inspection reads and nothing executes: a component stands as its whole register. Raises: PtxError, Unsupported.
    """
    return _ModuleReader(PtxText(text), any_form).read()


class _ModuleReader:
    """Reads what stands outside functions."""

    def __init__(self, source: PtxText, any_form: bool) -> None:
        self._source = source
        self._quota = Quota()
        self._scope = NameScope(any_form=any_form)
        # nvcc prints the names of files after the code that refers to them.
        self._files = {int(match["number"]): match["name"] for match in _FILE.finditer(source.text)}
        self._target: str | None = None
        self._version: tuple[int, int] | None = None
        self._functions: dict[str, Function] = {}
        self._variables: dict[str, Variable] = {}
        self._aliases: list[tuple[str, str, int]] = []

    def read(self) -> Module:
        while not self._source.ended:
            match = self._source.take(_TOP)
            self._quota.spend("statements", 1, self._source.line)
            self._take(match, self._source.line)
        if self._version is None or self._target is None:
            raise PtxError("a module without .version and .target", self._source.line)
        for alias, aliased, line in self._aliases:
            self._functions[alias] = replace(self._defined(aliased, line), name=alias)
        return Module(self._target, self._version, self._functions, self._variables)

    def _take(self, match: re.Match[str], line: int) -> None:
        kind = match.lastgroup
        if kind == "version":
            self._version = int(match["major"]), int(match["version"])
        elif kind == "target":
            self._target = match["target"]
        elif kind == "address_size" and int(match["address_size"]) != 64:
            raise Unsupported(f"an address size of {match['address_size']}", line)
        elif kind == "aliased":
            self._aliases.append((match["alias"], match["aliased"], line))
        elif kind == "function":
            self._take_function(match, line)
        elif kind == "variables":
            self._take_variables(match, line)

    def _take_variables(self, match: re.Match[str], line: int) -> None:
        external = ".extern" in match["linkage"]
        for variable in variables(match["variables"], match["space"], line, self._quota, external=external):
            if variable.name not in self._variables or not self._variables[variable.name].external:
                self._scope.declare(variable.name, Symbol(variable.name, 0), line)
            self._variables[variable.name] = variable

    def _take_function(self, match: re.Match[str], line: int) -> None:
        """A function, or its declaration, which only makes its name known."""
        header, scope = self._header(match, line)
        known = self._scope.find(header.name)
        if known is None:
            self._scope.declare(header.name, Symbol(header.name, 0), line)
        if header.name in self._variables or not isinstance(known, Symbol | None):
            raise PtxError(f"{shown(header.name)} is declared twice", line)
        if match["function"] == "{":
            if header.name in self._functions:
                raise PtxError(f"{shown(header.name)} is defined twice", line)
            self._functions[header.name] = Body(header, scope, self._files, self._quota).read(self._source)

    def _header(self, match: re.Match[str], line: int) -> tuple[Function, NameScope]:
        head = _HEAD.fullmatch(match["head"])
        if head is None:
            raise PtxError(f"{shown(match[0][:60])} is no head of a function", line)
        returns, own = parameters(head["returns"], line, self._quota, any_form=self._scope.any_form)
        taken, others = parameters(head["parameters"], line, self._quota, any_form=self._scope.any_form)
        scope = self._scope.inner(0, line)
        for parameter in returns + taken:
            if match["function"] == "{" or parameter.name != "_":
                scope.declare(parameter.name, Symbol(parameter.name, 0), line)
        for register in own + others:
            scope.declare(register.name, register, line)
        directives = _directives(head["directives"], line)
        return Function(head["name"], match["kind"], taken, returns, {}, (), (), {}, {}, directives), scope

    def _defined(self, name: str, line: int) -> Function:
        if name not in self._functions:
            raise PtxError(f"an alias of {shown(name)}, which has no body", line)
        return self._functions[name]


def _directives(text: str, line: int) -> dict[str, tuple[int, ...]]:
    """`.maxntid 512, 1, 1 .minnctapersm 1` and the like: numbers by name."""
    found: dict[str, tuple[int, ...]] = {}
    text, at = text.rstrip(), 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None:
            raise PtxError(f"{shown(text[at : at + 60].strip())} is no directive of a function", line)
        found[match["name"]] = tuple(int(number) for number in _NUMBER.findall(match["numbers"]))
        at = match.end()
    return found
