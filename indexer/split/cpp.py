"""The definitions of a C++ or CUDA file, parsed by tree-sitter.

Covered: namespaces, classes and their specialisations, functions and methods, aliases, enums, constants, concepts, macros,
also inside code that does not parse. Not covered: definitions that only the expansion of a macro contains.
"""

import re
from functools import cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from cudal2_agent.contract.records.knowledge import PieceKind
from cudal2_agent.indexer.split.blanking import blanked
from cudal2_agent.indexer.split.outline import Definition, disjoint

_DEPTH = 40  # maximum nesting of namespaces and classes; deeper definitions are not split
_CLASSES = frozenset({"class_specifier", "struct_specifier", "union_specifier"})
_KINDS: dict[str, PieceKind] = {
    "class_specifier": "class",
    "struct_specifier": "class",
    "union_specifier": "class",
    "enum_specifier": "enum",
    "function_definition": "function",
    "alias_declaration": "alias",
    "type_definition": "alias",
    "namespace_alias_definition": "alias",
    "concept_definition": "alias",
    "template_instantiation": "class",
    "declaration": "variable",
    "field_declaration": "variable",
    "friend_declaration": "variable",
    "static_assert_declaration": "text",
}
_BRACKETS = re.compile(r"(?<=<) | (?=[<>,])")
_WORD = re.compile(r"\w")
_SPACE = re.compile(r"\s+")
_ANONYMOUS = "(anonymous)"


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


def cpp_outline(text: str) -> tuple[Definition, ...]:
    """The definitions of a header or source."""
    code, macros = blanked(text.encode("utf-8", "replace"))
    walk = _Walk()
    walk.block(_parser().parse(code).root_node, "", 0)
    found = disjoint(walk.found)
    inside = {line for definition in found for line in range(definition.start, definition.end + 1)}
    free = [Definition(macro.name, "macro", macro.start, macro.end) for macro in macros if macro.start not in inside]
    return disjoint([*found, *free])


class _Walk:
    """Collects the definitions of one block. Nested walks collect the definitions inside them."""

    def __init__(self) -> None:
        self.found: list[Definition] = []

    def block(self, node: Node, scope: str, depth: int) -> None:
        """Collect the definitions among the children of a file, a namespace, a class body or an error node."""
        comment: tuple[int, int] | None = None
        before = ""
        for child in node.children:
            kind = child.type
            if kind == "comment":
                comment = self._join(comment, child)
                continue
            if before == "namespace" and node.type == "ERROR":  # a namespace whose end the grammar does not find
                scope = _join(scope, _text(child))
            before = kind
            if not child.is_named:
                continue
            start, end = child.start_point[0] + 1, child.end_point[0] + 1
            if comment and comment[1] < start <= comment[1] + 2:
                start = comment[0]
            comment = None
            self._take(child, kind, scope, start, end, depth)

    def _join(self, comment: tuple[int, int] | None, node: Node) -> tuple[int, int] | None:
        """The comment lines above the next definition. A comment on the last line of a definition belongs to that one."""
        start, end = node.start_point[0] + 1, node.end_point[0] + 1
        if self.found and start <= self.found[-1].end:
            return None
        if comment and start <= comment[1] + 1:
            return comment[0], end
        return start, end

    def _take(self, node: Node, kind: str, scope: str, start: int, end: int, depth: int) -> None:
        if kind in ("namespace_definition", "linkage_specification"):
            name = _text(node.child_by_field_name("name")) if kind == "namespace_definition" else ""
            body = node.child_by_field_name("body")
            if body is not None and depth < _DEPTH:
                self.block(body, _join(scope, name), depth + 1)
        elif kind == "ERROR" or kind == "declaration_list" or kind == "compound_statement":
            if depth < _DEPTH:
                self.block(node, scope, depth + 1)
        elif definition := self._definition(node, scope, start, end, depth):
            self.found.append(definition)

    def _definition(self, node: Node, scope: str, start: int, end: int, depth: int) -> Definition | None:
        inner = _inside_templates(node)
        kind = _KINDS.get(inner.type)
        if kind is None:
            return None
        owner = _owner(inner)
        if owner is not None:
            return _class(owner, scope, start, end, depth)
        name = _name(inner)
        if kind == "variable" and _declares_function(inner):
            kind = "function"
        return Definition(_join(scope, name) if _WORD.search(name) else "", kind, start, end)


def _class(node: Node, scope: str, start: int, end: int, depth: int) -> Definition:
    symbol = _join(scope, _shortened(_text(node.child_by_field_name("name"))) or _ANONYMOUS)
    if node.type == "enum_specifier":
        return Definition(symbol, "enum", start, end)
    body = node.child_by_field_name("body")
    members: tuple[Definition, ...] = ()
    if body is not None and depth < _DEPTH:
        walk = _Walk()
        walk.block(body, symbol, depth + 1)
        members = disjoint(walk.found)
    return Definition(symbol, "class", start, end, members)


def _inside_templates(node: Node) -> Node:
    """The declaration under its template heads."""
    while node.type == "template_declaration" and node.named_child_count:
        inner = node.named_children[-1]
        if inner.type in ("template_parameter_list", "requires_clause", "comment"):
            break
        node = inner
    return node


def _owner(node: Node) -> Node | None:
    """The class or enum that a node defines, if any."""
    if node.type in _CLASSES or node.type == "enum_specifier":
        return node
    if node.type in ("declaration", "field_declaration"):
        inner = node.child_by_field_name("type")
        if inner is not None and (inner.type in _CLASSES or inner.type == "enum_specifier"):
            declares = node.child_by_field_name("declarator")
            return inner if inner.child_by_field_name("body") is not None or declares is None else None
    return None


def _declares_function(node: Node) -> bool:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None:
        if declarator.type == "function_declarator":
            return True
        declarator = _within(declarator)
    return False


def _within(declarator: Node) -> Node | None:
    """The declarator inside a pointer, reference, array or initialiser declarator."""
    inner = declarator.child_by_field_name("declarator")
    if inner is None and declarator.type == "reference_declarator" and declarator.named_child_count:
        return declarator.named_children[-1]
    return inner


def _name(node: Node) -> str:
    """The name of a function, variable, alias or concept."""
    named = node.child_by_field_name("name")
    if named is not None:
        return _shortened(_text(named))
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "operator_cast":
        inner = _within(declarator)
        if inner is None:
            break
        declarator = inner
    if declarator is None:
        return ""
    if declarator.type == "operator_cast":
        return _shortened(_text(declarator).partition("(")[0])
    return _shortened(_text(declarator))


def _text(node: Node | None) -> str:
    if node is None or node.text is None:
        return ""
    return _BRACKETS.sub("", _SPACE.sub(" ", node.text.decode("utf-8", "replace")).strip())


def _join(scope: str, name: str) -> str:
    return f"{scope}::{name}" if scope and name else scope or name


def _shortened(name: str, limit: int = 90) -> str:
    """A name without the arguments of its template arguments, of at most `limit` characters."""
    if "<" not in name or "operator" in name:
        return name[:limit]
    parts: list[str] = []
    depth = 0
    for character in name:
        if character == "<":
            depth += 1
            if depth <= 2:
                parts.append("<…" if depth == 2 else "<")
        elif character == ">":
            if depth <= 2:
                parts.append(">")
            depth -= 1
        elif depth < 2:
            parts.append(character)
    short = "".join(parts)
    return short if len(short) <= limit else f"{short[: limit - 2]}…>"
