"""Which wrong programs the cases of a module refuse, and which they cannot."""

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
