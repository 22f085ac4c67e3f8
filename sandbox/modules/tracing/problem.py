"""A problem file as a Python module: its sizes, and what runs of it. Used inside the jail; nothing here confines the file."""

import ast
import sys
import types
from collections.abc import Mapping
from typing import Any

from cudal2_agent.contract.errors import UsageError

FILE = "problem.py"  # as which its lines are quoted
_FOLDED = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Pow)
_MOST_DIGITS = 18
_MOST_NAME = 64


def dims_of(source: str) -> dict[str, int]:
    """The whole numbers that a file assigns at its top, each to one name and once. Raises: UsageError for no Python."""
    return {name: value for name, _, value in _assigned(_parsed(source))}


def with_dims(source: str, dims: Mapping[str, int]) -> ast.Module:
    """The file's syntax tree with other sizes. Raises: UsageError, also for a name that is no size of the file."""
    tree = _parsed(source)
    places = {name: place for name, place, _ in _assigned(tree)}
    if unknown := sorted(dims.keys() - places.keys()):
        known = ", ".join(sorted(places)) or "none"
        raise UsageError(f"{unknown[0]!r} is no size of the problem: its whole numbers at the top are {known}")
    for name, value in dims.items():
        holder, field, index = places[name]
        number = ast.copy_location(ast.Constant(value), getattr(holder, field) if index is None else holder.elts[index])
        if index is None:
            setattr(holder, field, number)
        else:
            holder.elts[index] = number
    return tree


def load(source: str, dims: Mapping[str, int]) -> types.ModuleType:
    """Run a problem file. Raises: UsageError for a file that is no problem; whatever the file raises."""
    module = types.ModuleType("problem")
    module.__file__ = FILE
    sys.modules["problem"] = module  # dataclasses and pickle look for it
    exec(compile(with_dims(source, dims), FILE, "exec"), module.__dict__)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise UsageError(f"the problem file defines no {name}; it needs Model, get_inputs and get_init_inputs")
    return module


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source, FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        line = f", line {exc.lineno}" if isinstance(exc, SyntaxError) else ""
        reason = exc.msg if isinstance(exc, SyntaxError) else str(exc) or type(exc).__name__
        raise UsageError(f"the problem file{line} is no Python: {reason}") from exc


def _assigned(tree: ast.Module) -> list[tuple[str, tuple[Any, str, int | None], int]]:
    """(name, where its value stands, value) of every size."""
    found: list[tuple[str, tuple[Any, str, int | None], int]] = []
    names: list[str] = []
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) and statement.value is not None else targets
        for target in targets:
            if isinstance(target, ast.Name):
                pairs = [(target, statement.value, (statement, "value", None))]
            elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                pairs = [
                    (one, value, (statement.value, "elts", place))
                    for place, (one, value) in enumerate(zip(target.elts, statement.value.elts, strict=False))
                ]
            else:
                continue
            for one, value, place in pairs:
                if isinstance(one, ast.Name) and len(one.id) <= _MOST_NAME:
                    names.append(one.id)
                    if len(targets) == 1 and (number := _whole(value)) is not None:
                        found.append((one.id, place, number))
    return [each for each in found if names.count(each[0]) == 1]


def _whole(value: ast.expr) -> int | None:
    """The number that an expression of whole numbers is."""
    match value:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number if len(str(abs(number))) <= _MOST_DIGITS else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _whole(operand)
            return None if inner is None else -inner
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _FOLDED):
            one, other = _whole(left), _whole(right)
            if one is None or other is None or isinstance(op, ast.Pow) and not 0 <= other <= 64:
                return None
            if isinstance(op, ast.FloorDiv) and other == 0:
                return None
            number = {
                ast.Add: lambda: one + other,
                ast.Sub: lambda: one - other,
                ast.Mult: lambda: one * other,
                ast.FloorDiv: lambda: one // other,
                ast.Pow: lambda: one**other,
            }[type(op)]()
            return number if abs(number) < 10**_MOST_DIGITS else None
    return None
