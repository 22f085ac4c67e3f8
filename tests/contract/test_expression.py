"""Expressions of a launch plan: exact arithmetic, and only PlanError on any text."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.expression import MAX_LENGTH, MAX_VALUE, evaluate, holds

NAMES = {"M": 4096, "N": 1024, "K": 512, "SMS": 132}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil(N/256)", 4),
        ("ceil((M+1)/128)", 33),
        ("M//127", 32),
        ("K%100", 12),
        ("min(M, N, SMS)", 132),
        ("max(M*N//65536, SMS)", 132),
        ("4*M*N", 16777216),
        ("-(-M)", 4096),
        ("N/3*3", 1024),
        ("-7//2", -4),
        ("(0 - 7)%3", 2),
        (" SMS ", 132),
        ("ceil(-1/2)", 0),
        ("0x10", 16),
    ],
)
def test_values(text: str, value: int) -> None:
    assert evaluate(text, NAMES) == value


def test_a_number_is_itself() -> None:
    assert evaluate(7, NAMES) == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "M +",
        "X",
        "m",
        "__import__('os')",
        "M.real",
        "M[0]",
        "[M]",
        "(M, N)",
        "lambda: M",
        "M if N else K",
        "M and N",
        "M == N",
        "not M",
        "~M",
        "+M",
        "M ** 2",
        "10**10**10",
        "M << 40",
        "M @ N",
        "M; N",
        "(M := 3)",
        "1.5",
        "1e3",
        "1j",
        "'M'",
        "True",
        "None",
        "...",
        "f'{M}'",
        "min()",
        "ceil()",
        "ceil(M, N)",
        "min(M, key=N)",
        "min(*M)",
        "min(x for x in M)",
        "abs(M)",
        "ceil",
        "M/0",
        "M//(N-N)",
        "M%0",
        "N/3",
        "M(2)",
        "\u0661\u0662",
        "\uff11",
        "\uff2d",
        "\u039c",
        "M\x00",
        "\ud800",
        "M\nN",
        "await M",
        "yield",
        "9" * 25,
        "9" * MAX_LENGTH,
        "M*" * (MAX_LENGTH // 2 - 1) + "M",
        str(MAX_VALUE + 1),
        "1" + " " * MAX_LENGTH,
        "(" * 99 + "M" + ")" * 98,
    ],
)
def test_anything_else_is_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        evaluate(text, NAMES)
    assert caught.value.rule == "plan-expression"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["(" * 90 + "M" + ")" * 90, "-" * 190 + "M", "min(" * 39 + "M" + ")" * 39])
def test_deep_nesting_is_read(text: str) -> None:
    assert abs(evaluate(text, NAMES)) == 4096


def test_a_comment_length_text_is_refused_before_parsing() -> None:
    with pytest.raises(PlanError, match="longer than"):
        evaluate("(" * 10**6, NAMES)


@given(st.text(max_size=MAX_LENGTH + 5))
def test_arbitrary_text_raises_nothing_but_plan_error(text: str) -> None:
    assert_reads_or_refuses(text)


@given(st.text(alphabet="MNKS()+-*/%,<>= 019.ceilmaxn_[]:{}'\"\\", max_size=60))
def test_text_of_the_grammar_raises_nothing_but_plan_error(text: str) -> None:
    assert_reads_or_refuses(text)


def assert_reads_or_refuses(text: str) -> None:
    for read, kind in ((evaluate, int), (holds, bool)):
        try:
            assert isinstance(read(text, NAMES), kind)
        except PlanError:
            continue


Worth = tuple[str, Fraction | None]


def _join(op: str, left: Worth, right: Worth) -> Worth:
    """An operation's text and its value in Fraction arithmetic; None on division by zero or overflow."""
    text = f"({left[0]}{op}{right[0]})"
    a, b = left[1], right[1]
    if a is None or b is None or (op in {"/", "//", "%"} and b == 0):
        return text, None
    value = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a / b,
        "//": lambda: Fraction(math.floor(a / b)),
        "%": lambda: a - b * math.floor(a / b),
    }[op]()
    return text, value if abs(value) <= MAX_VALUE else None


def _ceil(inner: Worth) -> Worth:
    return f"ceil({inner[0]})", None if inner[1] is None else Fraction(math.ceil(inner[1]))


def _pick(name: str, parts: list[Worth]) -> Worth:
    text = f"{name}({','.join(part[0] for part in parts)})"
    values = [part[1] for part in parts]
    if any(value is None for value in values):
        return text, None
    return text, sorted(value for value in values if value is not None)[0 if name == "min" else -1]


leaves = st.one_of(
    st.integers(0, 10**6).map(lambda value: (str(value), Fraction(value))),
    st.sampled_from(sorted(NAMES)).map(lambda name: (name, Fraction(NAMES[name]))),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(_join, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner),
        st.builds(_ceil, inner),
        st.builds(_pick, st.sampled_from(["min", "max"]), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=10,
)


@given(expressions)
def test_it_agrees_with_fractions(expression: Worth) -> None:
    text, value = expression
    if value is None or value.denominator != 1 or len(text) > MAX_LENGTH:
        with pytest.raises(PlanError):
            evaluate(text, NAMES)
    else:
        assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ("K%64==0", True),
        ("K%63==0", False),
        ("M!=N", True),
        ("M<N", False),
        ("K<=512", True),
        ("M>N", True),
        ("SMS>=133", False),
        ("N/3<342", True),
        ("M==4096 ", True),
    ],
)
def test_conditions(condition: str, truth: bool) -> None:
    assert holds(condition, NAMES) is truth


@pytest.mark.parametrize(
    "condition", ["", "M", "1", "M<N<K", "M in (1,2)", "M is N", "not M==N", "M==N and K==1", "M=N", "M==X"]
)
def test_a_requirement_is_one_comparison(condition: str) -> None:
    with pytest.raises(PlanError) as caught:
        holds(condition, NAMES)
    assert caught.value.rule == "plan-expression"
