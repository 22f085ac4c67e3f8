"""The classes, functions and constants of a Python module, parsed by the standard library."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from cudal2_agent.indexer.split.outline import Definition, disjoint

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def python_outline(path: str, text: str, lines: Sequence[str]) -> tuple[Definition, ...]:
    """The definitions of a module. Raises: SyntaxError, also for code that is nested too deeply to be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a file do not concern the user
            tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as exc:
        raise SyntaxError(str(exc)) from exc
    return disjoint(_definitions(tree.body, _module(path), lines))


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(part for part in parts if part not in ("__init__", "/", ".."))


def _definitions(body: Sequence[ast.stmt], scope: str, lines: Sequence[str]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
            yield _definition(node, scope, lines)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _constants(node, scope, lines)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            inner = list(_definitions(_branches(node), scope, lines))
            if any(definition.kind != "variable" for definition in inner):
                yield from inner


def _branches(node: ast.If | ast.Try | ast.With) -> list[ast.stmt]:
    if isinstance(node, ast.With):
        return node.body
    handled = [statement for handler in node.handlers for statement in handler.body] if isinstance(node, ast.Try) else []
    return [*node.body, *handled, *node.orelse]


def _definition(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, scope: str, lines: Sequence[str]) -> Definition:
    symbol = f"{scope}.{node.name}"
    start = _with_comment(min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), lines)
    end = node.end_lineno or node.lineno
    if isinstance(node, ast.ClassDef):
        return Definition(symbol, "class", start, end, disjoint(_definitions(node.body, symbol, lines)))
    return Definition(symbol, "function", start, end)


def _constants(node: ast.Assign | ast.AnnAssign, scope: str, lines: Sequence[str]) -> Iterator[Definition]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if names:
        start = _with_comment(node.lineno, lines)
        yield Definition(f"{scope}.{names[0]}", "variable", start, node.end_lineno or node.lineno)


def _with_comment(start: int, lines: Sequence[str]) -> int:
    while start > 1 and lines[start - 2].lstrip().startswith("#"):
        start -= 1
    return start
