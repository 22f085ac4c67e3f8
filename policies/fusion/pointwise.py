"""Element-wise operators of ATen in CUDA C++. NaN goes through comparisons as it does in ATen."""

from collections.abc import Mapping, Sequence
from typing import Any

from cudal2_agent.policies.fusion.expressions import CType, Expr, ExpressionPool
from cudal2_agent.policies.fusion.values import Unplanned

# {0}, {1}, {2}: operands; all of the result's type.
_FUNCTIONS = {
    "relu": "({0} < 0 ? 0 : {0})",
    "neg": "(-{0})",
    "abs": "fabs({0})",
    "exp": "exp({0})",
    "exp2": "exp2({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log2": "log2({0})",
    "log10": "log10({0})",
    "log1p": "log1p({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
    "reciprocal": "(1 / {0})",
    "tanh": "tanh({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tan": "tan({0})",
    "atan": "atan({0})",
    "sinh": "sinh({0})",
    "cosh": "cosh({0})",
    "erf": "erf({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "rint({0})",
    "trunc": "trunc({0})",
    "sign": "({0} > 0 ? 1 : {0} < 0 ? -1 : {0})",
    "sigmoid": "(1 / (1 + exp(-{0})))",
    "silu": "({0} / (1 + exp(-{0})))",
    "mish": "({0} * tanh({0} > 20 ? {0} : log1p(exp({0}))))",
    "hardswish": "({0} * clamp01(({0} + 3) / 6))",
    "hardsigmoid": "clamp01(({0} + 3) / 6)",
    "log_sigmoid_forward": "((({0} < 0) ? {0} : 0) - log1p(exp(-fabs({0}))))",
    "selu": "({0} > 0 ? {0} * 1.0507009873554805f : expm1({0}) * 1.7580993408473766f)",
    "square": "({0} * {0})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "maximum": "max_nan({0}, {1})",
    "minimum": "min_nan({0}, {1})",
    "pow": "pow({0}, {1})",
    "atan2": "atan2({0}, {1})",
    "fmod": "fmod({0}, {1})",
    "hypot": "hypot({0}, {1})",
    "clone": "{0}",
    "alias": "{0}",
    "detach": "{0}",
    "_to_copy": "{0}",
    "to": "{0}",
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"logical_and": "({0} && {1})", "logical_or": "({0} || {1})", "logical_not": "(!{0})", "logical_xor": "({0} != {1})"}
_TESTS = {"isnan": "({0} != {0})", "isinf": "(fabs({0}) == INF_F)"}
_WITH_ARGUMENTS = ("add", "sub", "rsub", "where", "clamp", "hardtanh", "relu6", "leaky_relu", "elu", "gelu", "softplus")
_OTHERS = ("bitwise_not", "masked_fill", "threshold", "addcmul", "addcdiv", "lerp")
_CHEAP = (
    "relu",
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "square",
    "mul",
    "maximum",
    "minimum",
)
OPERATORS = frozenset([*_FUNCTIONS, *_COMPARISONS, *_LOGIC, *_TESTS, *_WITH_ARGUMENTS, *_OTHERS])
_EXPENSIVE = frozenset(_FUNCTIONS) - frozenset(_CHEAP) | {"elu", "gelu", "softplus"}
_POWERS = {0.5: "sqrt({0})", 1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})", -1: "(1 / {0})", -0.5: "rsqrt({0})"}
_ORDER: list[CType] = ["bool", "int", "long long", "float", "double"]


def cost(name: str, operands: Sequence[Any]) -> int:
    """About how many instructions an element takes. `operands`: as the graph has them."""
    if name == "pow" and operands[1] in _POWERS:
        return 2
    return 8 if name == "div" else 20 if name in _EXPENSIVE else 2


def element(pool: ExpressionPool, name: str, operands: Sequence[Any], kwargs: Mapping[str, Any], ctype: CType) -> Expr:
    """One element of an operation's result. `operands`: expressions, or numbers, strings and None as the graph has them.

    Raises: Unplanned.
    """

    def as_type(value: Any, wanted: CType = ctype) -> Expr:
        return pool.cast(value, wanted) if isinstance(value, Expr) else pool.literal(value, wanted)

    first = operands[0]
    match name:
        case "add" | "sub" | "rsub":
            left, right = (operands[1], operands[0]) if name == "rsub" else operands[:2]
            scale = kwargs.get("alpha", operands[2] if len(operands) > 2 else 1)
            sign = "+" if name == "add" else "-"
            right = as_type(right) if scale == 1 else pool.call("({0} * {1})", ctype, as_type(right), as_type(scale))
            return pool.call(f"({{0}} {sign} {{1}})", ctype, as_type(left), right)
        case "where":
            return pool.call("({0} ? {1} : {2})", ctype, as_type(first, "bool"), *map(as_type, operands[1:]))
        case "masked_fill":
            return pool.call("({1} ? {2} : {0})", ctype, as_type(first), as_type(operands[1], "bool"), as_type(operands[2]))
        case "clamp" | "hardtanh" | "relu6":
            low, high = _bounds(name, operands, kwargs)
            value = as_type(first)
            if low is not None:
                value = pool.call("({0} < {1} ? {1} : {0})", ctype, value, as_type(low))
            return value if high is None else pool.call("({0} > {1} ? {1} : {0})", ctype, value, as_type(high))
        case "leaky_relu":
            slope = operands[1] if len(operands) > 1 else 0.01
            return pool.call("({0} > 0 ? {0} : {0} * {1})", ctype, as_type(first), as_type(slope))
        case "threshold":
            return pool.call("({0} <= {1} ? {2} : {0})", ctype, *map(as_type, operands[:3]))
        case "elu":
            alpha, scale, inner = [*operands[1:4], 1, 1, 1][:3]
            text = "({0} > 0 ? {0} * {2} : expm1({0} * {3}) * {1})"
            return pool.call(text, ctype, as_type(first), as_type(alpha * scale), as_type(scale), as_type(inner))
        case "gelu":
            if kwargs.get("approximate", "none") == "tanh":
                inner_text = "tanh(0.7978845608028654f * ({0} + 0.044715f * {0} * {0} * {0}))"
            else:
                inner_text = "erf({0} * 0.7071067811865476f)"
            return pool.call(f"({{0}} * 0.5f * (1 + {inner_text}))", ctype, as_type(first))
        case "softplus":
            beta, limit = (operands[1] if len(operands) > 1 else 1), (operands[2] if len(operands) > 2 else 20)
            text = "({0} * {1} > {2} ? {0} : log1p(exp({0} * {1})) / {1})"
            return pool.call(text, ctype, as_type(first), as_type(beta), as_type(limit))
        case "addcmul" | "addcdiv":
            sign = "*" if name == "addcmul" else "/"
            scaled = as_type(kwargs.get("value", 1))
            return pool.call(f"({{0}} + {{3}} * {{1}} {sign} {{2}})", ctype, *map(as_type, operands[:3]), scaled)
        case "lerp":
            return pool.call("({0} + {2} * ({1} - {0}))", ctype, *map(as_type, operands[:3]))
        case "pow" if not isinstance(operands[1], Expr):
            return _power(pool, as_type(first), float(operands[1]), ctype)
        case "div" if kwargs.get("rounding_mode"):
            raise Unplanned("aten.div", "with a rounding mode")
        case "round" if kwargs.get("decimals"):
            raise Unplanned("aten.round", "to decimals")
        case _ if name in _COMPARISONS:
            common = max((each.ctype for each in operands[:2] if isinstance(each, Expr)), key=_ORDER.index)
            if any(isinstance(each, float) for each in operands[:2]) and _ORDER.index(common) < _ORDER.index("float"):
                common = "float"
            return pool.call(f"({{0}} {_COMPARISONS[name]} {{1}})", "bool", *(as_type(each, common) for each in operands[:2]))
        case _ if name in _LOGIC:
            return pool.call(_LOGIC[name], "bool", *(as_type(each, "bool") for each in operands))
        case _ if name in _TESTS:
            if first.ctype not in ("float", "double"):
                return pool.literal(value=False, ctype="bool")
            return pool.call(_TESTS[name], "bool", first)
        case "bitwise_not":
            return pool.call("(!{0})" if ctype == "bool" else "(~{0})", ctype, as_type(first))
        case "abs" if ctype in ("int", "long long"):
            return pool.call("({0} < 0 ? -{0} : {0})", ctype, as_type(first))
        case _ if name in _FUNCTIONS:
            text = _FUNCTIONS[name]
            wanted = sum(f"{{{at}}}" in text for at in range(3))
            values = [as_type(each) for each in operands[:wanted]]
            return values[0] if text == "{0}" else pool.call(text, ctype, *values)
    raise Unplanned(f"aten.{name}")


def _bounds(name: str, operands: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    defaults = {"clamp": (None, None), "hardtanh": (-1, 1), "relu6": (0, 6)}[name]
    given = (*operands[1:3], *defaults[len(operands) - 1 :])
    return kwargs.get("min", kwargs.get("min_val", given[0])), kwargs.get("max", kwargs.get("max_val", given[1]))


def _power(pool: ExpressionPool, value: Expr, exponent: float, ctype: CType) -> Expr:
    if exponent in _POWERS:
        return value if exponent == 1 else pool.call(_POWERS[exponent], ctype, value)
    return pool.call("pow({0}, {1})", ctype, value, pool.literal(exponent, ctype))
