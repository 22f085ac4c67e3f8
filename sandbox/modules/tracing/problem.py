"""A problem file as a Python module: its sizes, and what runs of it. Used where a file may run; nothing here confines it."""

import ast
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cudal2_agent.contract.errors import UsageError

FILE = "problem.py"  # as which its lines are quoted
_FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_MOST_DIGITS = 18
_MOST_NAME = 64


def dims_of(source: str) -> dict[str, int]:
    """The whole numbers that a file assigns at its top, each to one name and once; `sizes_0` is the first of a list `sizes`.

    Raises: UsageError for no Python.
    """
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
        if differing := [other for other in dims if places[other] == places[name] and dims[other] != value]:
            raise UsageError(f"{name} and {differing[0]} have one value in the file, so they must have one here")
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


def init_arguments(module: types.ModuleType) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of the model: KernelBench's later forms give `[[positional…], {named…}]`.

    Raises: UsageError for what is no list; whatever the file raises.
    """
    found = module.get_init_inputs()
    if not isinstance(found, list | tuple):
        raise UsageError(f"get_init_inputs returns {type(found).__name__}; it must return a list")
    if len(found) == 2 and isinstance(found[0], list | tuple) and isinstance(found[1], dict):
        return list(found[0]), dict(found[1])
    return list(found), {}


def plain_name(name: str) -> str:
    """What an input or a tensor of the model is called as a buffer."""
    return re.sub(r"\W", "_", name)[:_MOST_NAME]


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
        for name, value, place in _pairs(targets, statement):
            names.append(name)
            if len(name) <= _MOST_NAME and (number := _whole(value)) is not None:
                found.append((name, place, number))
    return [each for each in found if names.count(each[0]) == 1]


def _pairs(targets: list[ast.expr], statement: Any) -> Iterator[tuple[str, ast.expr, tuple[Any, str, int | None]]]:
    """Each name that a statement assigns, its value and where that stands."""
    value: Any = statement.value if targets else None
    several = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, value, (statement, "value", None)
            yield from ((f"{target.id}_{index}", each, (value, "elts", index)) for index, each in enumerate(several))
        elif isinstance(target, ast.Tuple):
            for index, (one, each) in enumerate(zip(target.elts, several, strict=False)):
                if isinstance(one, ast.Name):
                    yield one.id, each, (value, "elts", index)


def _whole(value: ast.expr) -> int | None:
    """The number that an expression of whole numbers is."""
    match value:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number if len(str(abs(number))) <= _MOST_DIGITS else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _whole(operand)
            return None if inner is None else -inner
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _FOLDED:
            one, other = _whole(left), _whole(right)
            if one is None or other is None or isinstance(op, ast.Pow) and not 0 <= other <= 64:
                return None
            if isinstance(op, ast.FloorDiv) and other == 0:
                return None
            number = int(_FOLDED[type(op)](one, other))
            return number if abs(number) < 10**_MOST_DIGITS else None
    return None
