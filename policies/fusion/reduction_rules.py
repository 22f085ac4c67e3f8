"""Reductions: what a thread keeps, how it takes an element, how two threads' states become one, and what the result is.

State fields are C++ variables: `{v}` is the state's own field v, `{o_v}` that of another state, `{x}` the element, `{at}` its
position among the reduced elements, `{xs}` an array of several. NaN wins a maximum; of equal elements the first, as in ATen.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReductionRule:
    """`fields`: (name, C type or "" for the element's, start). `take`, `merge`: statements over `{name}`, and `{o_name}` of the
    other state. `outputs`: by name, an expression over `{name}`. `cost`: about how many instructions an element takes.

    `take_all`: a statement that takes several elements in fewer instructions; a thread then keeps one state for all it reads.
    """

    fields: tuple[tuple[str, str, str], ...]
    take: str
    merge: str
    outputs: dict[str, str]
    cost: int = 2
    take_all: str = ""


def _best(start: str, better: str) -> ReductionRule:
    found = f"{{x}} {better} {{v}} || ({{x}} != {{x}} && {{v}} == {{v}})"
    other = (
        f"{{o_v}} {better} {{v}} || ({{o_v}} != {{o_v}} && {{v}} == {{v}})"
        f" || ({{o_i}} < {{i}} && ({{o_v}} == {{v}} || ({{o_v}} != {{o_v}} && {{v}} != {{v}})))"
    )
    return ReductionRule(
        fields=(("v", "", start), ("i", "unsigned", "0xffffffffu")),
        take=f"if ({found} || {{i}} == 0xffffffffu) {{ {{v}} = {{x}}; {{i}} = {{at}}; }}",
        merge=f"if ({other}) {{ {{v}} = {{o_v}}; {{i}} = {{o_i}}; }}",
        outputs={"value": "{v}", "index": "(long long)({i})"},
    )


def _simple(start: str, text: str) -> ReductionRule:
    return ReductionRule(
        fields=(("v", "", start),),
        take="{v} = " + text.replace("{b}", "{x}").replace("{a}", "{v}") + ";",
        merge="{v} = " + text.replace("{b}", "{o_v}").replace("{a}", "{v}") + ";",
        outputs={"value": "{v}"},
    )


OPERATIONS: dict[str, ReductionRule] = {
    "sum": _simple("0", "{a} + {b}"),
    "prod": _simple("1", "{a} * {b}"),
    "max": _simple("LOWEST", "max_nan({a}, {b})"),
    "min": _simple("HIGHEST", "min_nan({a}, {b})"),
    "any": _simple("false", "({a} || {b})"),
    "all": _simple("true", "({a} && {b})"),
    "argmax": _best("LOWEST", ">"),
    "argmin": _best("HIGHEST", "<"),
    # Count, mean and sum of squared distances from it.
    "moments": ReductionRule(
        fields=(("n", "", "0"), ("m", "", "0"), ("q", "", "0")),
        take="take_moments({n}, {m}, {q}, {x});",
        merge="merge_moments({n}, {m}, {q}, {o_n}, {o_m}, {o_q});",
        outputs={"mean": "{m}", "variance": "({q} / {n})", "squares": "{q}"},
        cost=7,
        take_all="take_moments({n}, {m}, {q}, {xs});",
    ),
    # The largest element, and the sum of the powers of e of the distances from it.
    "powers": ReductionRule(
        fields=(("m", "", "LOWEST"), ("s", "", "0")),
        take="take_powers({m}, {s}, {x});",
        merge="merge_powers({m}, {s}, {o_m}, {o_s});",
        outputs={"max": "{m}", "sum": "{s}"},
        cost=13,
        take_all="take_powers({m}, {s}, {xs});",
    ),
}


def start(text: str, ctype: str) -> str:
    """The start of a field in C++."""
    limits = {
        "LOWEST": {"float": "-INF_F", "double": "-(double)INF_F", "int": "(-2147483647 - 1)", "long long": "LOWEST_I64"},
        "HIGHEST": {"float": "INF_F", "double": "(double)INF_F", "int": "2147483647", "long long": "HIGHEST_I64"},
    }
    return limits[text].get(ctype, "false" if text == "LOWEST" else "true") if text in limits else text
