"""The plan's comment is found, parsed and rendered; a malformed one is refused in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.plan import LaunchPlan, parse_plan, plan_from_json, render_plan
from cudal2_agent.contract.records.candidate import Candidate, Origin
from tests.contract.records import LAUNCH, plan, tensor_map

BODY = 'extern "C" __global__ void hgemm() {}\n'
PLAIN = json.dumps({"arch": "sm_80", "launches": [LAUNCH]})
SPREAD = json.dumps({"arch": "sm_80", "launches": [LAUNCH]}, indent=2)


@pytest.mark.parametrize(
    "source",
    [
        f"// cudal2: {PLAIN}\n{BODY}",
        f"//cudal2:{PLAIN}\n{BODY}",
        f"{BODY}/* cudal2: {PLAIN} */",
        f"/* cudal2:\n{SPREAD}\n*/\n{BODY}",
        "// cudal2: " + SPREAD.replace("\n", "\n// ") + "\n" + BODY,
        "  // cudal2: " + SPREAD.replace("\n", "\n  //   ") + "\n" + BODY,
        f"// cudal2: {PLAIN}\n// the word cudal2: in prose is no plan\n{BODY}",
    ],
)
def test_every_spelling_of_the_comment_is_read(source: str) -> None:
    assert parse_plan(source) == plan()


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (BODY, "plan-missing"),
        ("", "plan-missing"),
        ("// cudal2: none", "plan-missing"),
        (f"cudal2: {PLAIN}", "plan-missing"),
        (f"// cudal2: {PLAIN}\n// cudal2: {PLAIN}\n", "plan-missing"),
        ("// cudal2: {", "plan-json"),
        ("// cudal2: {'arch': 'sm_80'}", "plan-json"),
        ("// cudal2: {" + '"a":{' * 100_000, "plan-json"),
        ('// cudal2: {"arch": ' + "1" * 5000 + "}", "plan-json"),
        ("// cudal2: {}", "plan-schema"),
        ('// cudal2: {"arch": "sm_80", "launches": []}', "plan-schema"),
    ],
)
def test_a_source_without_one_sound_plan_is_refused(source: str, rule: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(source)
    assert caught.value.rule == rule
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"arch": "sm_75"}, "arch"),
        ({"arch": None}, "arch"),
        ({"launches": None}, "launches"),
        ({"launches": [LAUNCH] * 257}, "launches"),
        ({"launches": [LAUNCH | {"entry": "a b"}]}, "entry"),
        ({"launches": [LAUNCH | {"entry": "x" * 129}]}, "entry"),
        ({"launches": [LAUNCH | {"grid": [1, 1]}]}, "grid"),
        ({"launches": [LAUNCH | {"grid": [1.5, 1, 1]}]}, "grid"),
        ({"launches": [LAUNCH | {"cluster": ["M", 1, 1]}]}, "cluster"),
        ({"launches": [LAUNCH | {"stream": 1}]}, "stream"),
        ({"launches": [LAUNCH | {"args": [{"tensor": "a b"}]}]}, "args"),
        ({"launches": [LAUNCH | {"args": [{"tensor": "A", "scalar": "K"}]}]}, "args"),
        ({"launches": [LAUNCH | {"args": [{"scalar": "K"}] * 65}]}, "args"),
        ({"launches": [LAUNCH | tensor_map(swizzle=48)]}, "swizzle"),
        ({"accumulate": "f64"}, "accumulate"),
        ({"workspace": {"bytes": 4, "zero": "later"}}, "workspace"),
        ({"requires": "K%64==0"}, "requires"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], where: str) -> None:
    with pytest.raises(PlanError, match=where) as caught:
        plan_from_json({"arch": "sm_80", "launches": [LAUNCH], **fields})
    assert caught.value.rule == "plan-schema"


@pytest.mark.parametrize("data", [None, 3, "x", [], [LAUNCH], True])
def test_json_that_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(PlanError):
        plan_from_json(data)


RICH_PLANS = [
    plan(),
    plan({"args": []}),
    plan({"cluster": [2, 1, 1], "programmatic": True, "dynamic_smem": "2*128*64"}, arch="sm_90a"),
    plan(tensor_map(l2=256), arch="sm_90a", accumulate="f16", requires=["K%64==0", "M//2>=8"], atomics=True),
    plan(workspace={"bytes": "4*M*N", "zero": True}),
    plan(workspace={"bytes": "4*M*N", "zero": "restored", "zero_bytes": 1024}),
    plan_from_json(
        {"arch": "sm_80", "launches": [LAUNCH, LAUNCH | {"entry": "reduce", "args": [{"scalar": 3, "type": "f32"}]}]}
    ),
]


@pytest.mark.parametrize("original", RICH_PLANS)
def test_a_rendered_plan_reads_back_equal(original: LaunchPlan) -> None:
    assert parse_plan(render_plan(original) + BODY) == original


expressions = st.one_of(
    st.integers(0, 2**31), st.text("MNKS()+-*/%, 0123456789ceilmnax", max_size=40).filter(lambda t: "*/" not in t)
)


@given(st.tuples(expressions, expressions, expressions), st.booleans(), st.lists(expressions, max_size=4))
def test_rendering_round_trips_whatever_the_expressions(
    grid: tuple[object, ...], programmatic: bool, scalars: list[object]
) -> None:
    launch = {"grid": list(grid), "programmatic": programmatic, "args": [{"scalar": value} for value in scalars]}
    original = plan(launch)
    assert parse_plan(render_plan(original) + BODY) == original


def test_equal_code_is_one_candidate() -> None:
    source = render_plan(plan()) + BODY
    first = Candidate.from_source(source, Origin(policy="schedule"))
    second = Candidate.from_source(source, Origin(policy="chat", note="rewritten"))
    assert first.id == second.id


def test_source_flags_compiler_and_plan_each_change_the_id() -> None:
    base = Candidate.from_source(render_plan(plan()) + BODY, Origin(policy="schedule"))
    others = [
        base.model_copy(update={"source": base.source + " "}),
        base.model_copy(update={"flags": ("-DX=1",)}),
        base.model_copy(update={"flags": ("-DX=1", "-DY=1")}),
        base.model_copy(update={"flags": ("-DY=1", "-DX=1")}),
        base.model_copy(update={"flags": ("-DX=1 -DY=1",)}),
        base.model_copy(update={"compiler": "nvcc"}),
        base.model_copy(update={"plan": plan({"block": [128, 1, 1]})}),
    ]
    assert len({base.id, *(other.id for other in others)}) == len(others) + 1
