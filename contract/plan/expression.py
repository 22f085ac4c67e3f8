"""Integer expressions of a launch plan: names of sizes, + - * / % //, ceil, min, max; comparisons in `requires`.

The grammar of the standard library parses an expression, and an allow-list of nodes interprets it. Nothing is evaluated
as code. Division is exact (rational): `ceil(N/256)` rounds up, and a bare `N/3` must be a whole number. Decimal numbers such
as `1e-5` are read exactly, for scalars of floating point.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from cudal2_agent.contract.errors import PlanError

MAX_LENGTH = 200
MAX_VALUE = 2**63
# Excludes look-alike letters, which Python folds into M, N and K, and quotes and escapes, which make its parser warn.
_ALPHABET = re.compile(r"[A-Za-z0-9_ ()+\-*/%,<>=!.]*")

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[..., Fraction]] = {
    "ceil": lambda a: Fraction(math.ceil(a)),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
}


def _fail(text: str, why: str) -> PlanError:
    return PlanError("plan-expression", f"expression {text[:80]!r}: {why}")


def _parse(text: str, *, decimals: bool = False) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise _fail(text, f"longer than {MAX_LENGTH} characters")
    if not _ALPHABET.fullmatch(text):
        raise _fail(text, "has a character that is not allowed in expressions")
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise _fail(text, "is not a valid expression") from exc
    if not decimals and any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in ast.walk(parsed)):
        raise _fail(text, "only whole numbers are allowed here")
    return parsed


def _walk(node: ast.expr, text: str, names: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            result = Fraction(value)
        case ast.Constant(value=float() as value) if math.isfinite(value):
            result = Fraction(repr(value))
        case ast.Name(id=name):
            if name not in names:
                raise _fail(text, f"unknown name {name!r}; known are {', '.join(sorted(names))}")
            result = Fraction(names[name])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _walk(left, text, names), _walk(right, text, names)
            if b == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
                raise _fail(text, "divides by zero")
            result = _BINARY[type(op)](a, b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_walk(operand, text, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS:
            if not args or (name == "ceil" and len(args) != 1):
                raise _fail(text, f"{name}() takes {'one argument' if name == 'ceil' else 'arguments'}")
            result = _CALLS[name](*(_walk(arg, text, names) for arg in args))
        case _:
            raise _fail(text, f"only {', '.join(names)}, + - * / % //, ceil(), min(), max() are allowed")
    if abs(result) > MAX_VALUE:
        raise _fail(text, f"is out of range; values up to {MAX_VALUE} are allowed")
    return result


def evaluate(expression: int | str, names: Mapping[str, int]) -> int:
    """The value of an expression for given M, N, K and SMS.

    Raises: PlanError where it does not parse, divides by zero, or is not a whole number.
    """
    if isinstance(expression, int):
        return expression
    value = _walk(_parse(expression), expression, names)
    if value.denominator != 1:
        raise _fail(expression, f"is {value}, not a whole number, for {dict(names)}")
    return int(value)


def evaluate_decimal(expression: float | str, names: Mapping[str, int]) -> float:
    """The value of an expression as the nearest f64; it may have a fraction. Raises: PlanError."""
    return (
        expression
        if isinstance(expression, int | float)
        else float(_walk(_parse(expression, decimals=True), expression, names))
    )


def divides_evenly(expression: int | str, names: Mapping[str, int]) -> bool:
    """Whether every division that no ceil() rounds is whole: `(M/64)*(N/64)` means multiples of 64, not of 4096 in all.

    Raises: PlanError where the expression has no value.
    """
    if isinstance(expression, int):
        return True
    nodes: list[ast.AST] = [_parse(expression)]
    while nodes:
        match nodes.pop():
            case ast.Call(func=ast.Name(id="ceil")):
                continue
            case ast.BinOp(op=ast.Div()) as node if _walk(node, expression, names).denominator != 1:
                return False
            case node:
                nodes += ast.iter_child_nodes(node)
    return True


def holds(condition: str, names: Mapping[str, int]) -> bool:
    """Whether one comparison such as `K%64==0` holds. Raises: PlanError for anything but a comparison."""
    node = _parse(condition)
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE):
        raise _fail(condition, "a requirement is one comparison, like K%64==0")
    left, right = _walk(node.left, condition, names), _walk(node.comparators[0], condition, names)
    return _COMPARE[type(node.ops[0])](left, right)
