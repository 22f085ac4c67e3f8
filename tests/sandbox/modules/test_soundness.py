"""Which wrong programs the cases of a module refuse, and which they cannot."""

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import GraphNode, TensorType
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.modules.redundancy import is_redundant
from cudal2_agent.sandbox.modules.soundness import check
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer
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


@pytest.mark.parametrize(("test", "redundant"), [("aten.isnan.default", True), ("aten.isinf.default", False)])
def test_a_choice_by_nan_alone_is_redundant(test: str, redundant: bool) -> None:
    nodes = [
        node("test", test, [of("x")], (8,), "bool"),
        node("nan", "aten.full.default", [[8], {"float": "nan"}], (8,)),
        node("chosen", "aten.where.self", [of("test"), of("nan"), of("x")], (8,)),
    ]
    assert is_redundant(small.task(nodes, {"x": (8,)}), "chosen") is redundant


def test_a_clamp_that_a_later_one_makes_redundant() -> None:
    nodes = [
        node("first", "aten.clamp.default", [of("x"), 0, 1], (8,)),
        node("mul", "aten.mul.Tensor", [of("first"), 2], (8,)),
        node("second", "aten.clamp.default", [of("mul"), 0, 1], (8,)),
    ]
    task = small.task(nodes, {"x": (8,)})
    assert [is_redundant(task, name) for name in ("first", "mul", "second")] == [True, False, False]


def test_one_number_added_before_a_softmax_changes_nothing() -> None:
    nodes = [
        node("add", "aten.add.Tensor", [of("x"), of("one")], (8, 96)),
        node("softmax", "aten._softmax.default", [of("add"), -1, False], (8, 96)),
    ]
    assert check(small.task(nodes, {"x": (8, 96)}, {"one": ()}), 1).reason == "redundant: add (add)"
    assert not is_redundant(small.task(nodes[:1], {"x": (8, 96)}, {"one": ()}), "add")


def test_a_group_norm_of_single_elements_decides_nothing() -> None:
    norm = GraphNode(
        name="norm",
        op="aten.native_group_norm.default",
        args=(of("x"), of("weight"), of("bias"), 8, 6, 1, 6, 1e-5),
        results=tuple(TensorType(shape=shape, element=BufferElement.F32) for shape in ((8, 6), (8, 6), (8, 6))),
    )
    nodes = [node("neg", "aten.neg.default", [of("y")], (8, 6)), norm, node("out_", "getitem", [of("norm"), 0], (8, 6))]
    nodes[1] = norm.model_copy(update={"args": (of("neg"), *norm.args[1:])})
    found = check(small.task(nodes, {"y": (8, 6)}, {"weight": (6,), "bias": (6,)}), 1)
    assert (found.status, found.reason.split(" ")[0]) == ("unchecked", "norm")


def test_a_value_at_zero_is_reached_where_another_input_must_be_positive() -> None:
    """x log x - x log y: at x = 0 it is 0 by a choice alone, and y may not be 0 there."""
    shape = (8, 96)
    nodes = [
        node("log", "aten.log.default", [of("x")], shape),
        node("mul", "aten.mul.Tensor", [of("x"), of("log")], shape),
        node("zero", "aten.eq.Scalar", [of("x"), 0], shape, "bool"),
        node("none", "aten.full.default", [list(shape), 0.0], shape),
        node("chosen", "aten.where.self", [of("zero"), of("none"), of("mul")], shape),
        node("logy", "aten.log.default", [of("y")], shape),
        node("other", "aten.mul.Tensor", [of("x"), of("logy")], shape),
        node("sub", "aten.sub.Tensor", [of("chosen"), of("other")], shape),
        node("all", "aten.sum.default", [of("sub")], ()),
    ]
    assert check(small.task(nodes, {"x": shape, "y": shape}), 1).reason == ""


def test_the_tracer_checks_a_task_without_its_file(tracer: Tracer) -> None:
    """In the jail, where PyTorch is loaded already."""
    zero = [
        node("sub", "aten.sub.Tensor", [of("x"), of("x")], (8, 96)),
        node("relu", "aten.relu.default", [of("sub")], (8, 96)),
    ]
    assert tracer.soundness(small.linear_relu(), 1) == check(small.linear_relu(), 1)
    found = tracer.soundness(small.task(zero, {"x": (8, 96)}), 1)
    assert (found.status, found.reason[:18]) == ("unsound", "zeros are accepted")
    broken = small.task([node("relu", "aten.relu.default", [of("nothing")], (8, 96))], {"x": (8, 96)})
    with pytest.raises(UsageError, match="wrong programs could not be tried"):
        tracer.soundness(broken, 1)


def test_a_reference_that_is_never_finite_is_unsound() -> None:
    shape = (8, 96)
    nodes = [
        node("zero", "aten.mul.Scalar", [of("x"), 0.0], shape),
        node("none", "aten.div.Tensor", [of("zero"), of("zero")], shape),
    ]
    found = check(small.task(nodes, {"x": shape}), 1)
    assert (found.status, found.reason) == ("unsound", "the reference is finite on none of our inputs")
