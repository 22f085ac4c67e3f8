"""Which wrong programs the cases of a module refuse, and which they cannot."""

import pytest

from cudal2_agent.sandbox.modules.redundancy import is_redundant
from cudal2_agent.sandbox.modules.soundness import check
from tests.sandbox.modules import small_tasks as small
from tests.sandbox.modules.small_tasks import node, of


def test_a_relu_is_sound_though_its_own_inputs_are_never_negative() -> None:
    found = check(small.task([node("relu", "aten.relu.default", [of("x")], (8, 96))], {"x": (8, 96)}), 1)
    assert (found.status, {(each.kind, each.on) for each in found.accepted}) == (
        "sound",
        {("identity", "own"), ("dropped", "own")},
    )


def test_a_linear_layer_is_sound() -> None:
    assert check(small.linear_relu(), 1).status == "sound"


def test_an_output_that_is_always_zero_is_unsound() -> None:
    nodes = [
        node("most", "aten.amax.default", [of("x"), [1], True], (8, 1)),
        node("mean", "aten.mean.dim", [of("most"), [1], True], (8, 1)),
        node("sub", "aten.sub.Tensor", [of("most"), of("mean")], (8, 1)),
        node("gelu", "aten.gelu.default", [of("sub")], (8, 1)),
    ]
    found = check(small.task(nodes, {"x": (8, 96)}), 1)
    assert found.status == "unsound"
    assert found.reason.startswith("zeros are accepted; a constant is accepted; the answer for other inputs is accepted")
    assert {each.operation for each in found.accepted if each.on == "ours"} >= {"gelu"}


def test_what_changes_nothing_for_any_input_is_named_and_not_held_against_the_task() -> None:
    nodes = [
        node("tanh", "aten.tanh.default", [of("x")], (8, 96)),
        node("clamp", "aten.clamp.default", [of("tanh"), -1, 1], (8, 96)),
        node("div", "aten.div.Tensor", [of("clamp"), 1.0], (8, 96)),
    ]
    found = check(small.task(nodes, {"x": (8, 96)}), 1)
    assert (found.status, found.reason) == ("sound", "redundant: clamp (clamp), div (div)")


@pytest.mark.parametrize(
    ("op", "args", "redundant"),
    [
        ("aten.clamp.default", [-1, 1], True),
        ("aten.clamp.default", [-1, 0.999], False),
        ("aten.relu.default", [], False),
        ("aten.mul.Tensor", [1], True),
        ("aten.add.Tensor", [1e-5], False),
    ],
)
def test_a_range_tells_what_is_redundant(op: str, args: list[float], redundant: bool) -> None:
    nodes = [node("tanh", "aten.tanh.default", [of("x")], (8,)), node("last", op, [of("tanh"), *args], (8,))]
    assert is_redundant(small.task(nodes, {"x": (8,)}), "last") is redundant


def test_a_clamp_that_a_later_one_makes_redundant() -> None:
    nodes = [
        node("first", "aten.clamp.default", [of("x"), 0, 1], (8,)),
        node("mul", "aten.mul.Tensor", [of("first"), 2], (8,)),
        node("second", "aten.clamp.default", [of("mul"), 0, 1], (8,)),
    ]
    task = small.task(nodes, {"x": (8,)})
    assert [is_redundant(task, name) for name in ("first", "mul", "second")] == [True, False, False]
