"""Problem files become tasks: buffers, sizes, graphs; and the graph computes what the module does."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cudal2_agent.contract.errors import UsageError  # noqa: E402
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask  # noqa: E402
from cudal2_agent.contract.records.named_buffer import BufferElement, Role  # noqa: E402
from cudal2_agent.sandbox.modules.interpreter import Interpreter, own_values, without  # noqa: E402
from cudal2_agent.sandbox.modules.operators import packet_of  # noqa: E402
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer  # noqa: E402
from tests.sandbox.modules.conftest import PROBLEMS, Traced  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="traces run in a jail")


def module(name: str) -> ModuleType:
    found = ModuleType(name)
    exec((PROBLEMS / f"{name}.py").read_text("utf-8"), found.__dict__)
    return found


def kinds(task: ModuleTask) -> list[str]:
    return [packet_of(node.op) for node in task.graph.nodes]


def of_the_module(name: str, values: dict[str, Any], *, training: bool = False) -> Any:
    """What the module computes from the values of a task, and the module."""
    file = module(name)
    with torch.no_grad():
        model = file.Model(*file.get_init_inputs()).train(training)
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for key, value in own.items():
            if key.replace(".", "_") in values:
                value.copy_(values[key.replace(".", "_")])
        for key, value in vars(model).items():
            if isinstance(value, torch.Tensor):
                value.copy_(values[key])
        return model, file


@pytest.mark.parametrize("training", [False, True])
def test_the_graph_computes_what_the_module_does(traced: Traced, training: bool) -> None:
    name = "linear_norm" if training else "activations"
    task = traced(name, training=training)
    values = own_values(task, seed=3)
    model, _ = of_the_module(name, values, training=training)
    with torch.no_grad():
        wanted = model(values["x"])
    assert torch.allclose(Interpreter(task.graph).run(values)["out"], wanted, atol=1e-6)
    finer = Interpreter(task.graph, floating=BufferElement.F64).run(values)["out"]
    assert finer.dtype is torch.float64
    assert torch.allclose(finer.float(), wanted, atol=1e-5)


def test_operations_stay_whole(traced: Traced) -> None:
    assert kinds(traced("activations")) == [
        *("convolution", "_native_batch_norm_legit_no_training", "getitem", "mish", "native_group_norm", "getitem", "gelu"),
        *("max_pool2d_with_indices", "getitem", "silu", "mean", "add", "elu", "softplus", "hardswish", "mul", "hardtanh"),
        *("avg_pool2d", "add", "view", "_softmax", "cumsum"),
    ]


def test_buffers_have_the_names_of_the_module(traced: Traced) -> None:
    task = traced("linear_norm")
    assert [(each.name, each.shape, each.role) for each in task.buffers] == [
        ("x", (4, 8), Role.INPUT),
        ("linear_weight", (16, 8), Role.PARAMETER),
        ("linear_bias", (16,), Role.PARAMETER),
        ("norm_weight", (16,), Role.PARAMETER),
        ("norm_bias", (16,), Role.PARAMETER),
        ("out", (4, 16), Role.OUTPUT),
    ]
    assert task.dims == {"batch": 4, "features": 8, "hidden": 16}
    assert task.flops == 2 * 4 * 8 * 16
    assert ModuleTask.model_validate_json(task.model_dump_json()) == task


def test_other_sizes_and_another_arithmetic(traced: Traced) -> None:
    task = traced("linear_norm", dims={"hidden": 6, "batch": 3}, arithmetic=Arithmetic.F16)
    assert task.dims == {"batch": 3, "features": 8, "hidden": 6}
    assert (task.buffers[-1].shape, {each.element for each in task.buffers}) == ((3, 6), {BufferElement.F16})
    with pytest.raises(UsageError, match=r"'depth' is no size of the problem.*batch, features, hidden"):
        traced("linear_norm", dims={"depth": 3})


def test_inputs_and_outputs_of_every_kind(traced: Traced) -> None:
    task = traced("many")
    buffers = {each.name: each for each in task.buffers}
    assert [name for name, each in buffers.items() if each.role is Role.INPUT] == ["ids", "pair_a", "pair_b"]
    assert [name for name, each in buffers.items() if each.role is Role.OUTPUT] == ["out0", "out1", "out2"]
    assert (buffers["ids"].low, buffers["ids"].high, buffers["ids"].element) == (2, 10, BufferElement.I64)
    assert buffers["mask"].fixed
    assert buffers["order"].fixed
    assert (buffers["scale"].fixed, buffers["scale"].low, buffers["scale"].high) == (False, 2.0, 2.0)
    assert task.returns == {"dict": {"sum": "out0", "best": {"list": ["out1", "out2"]}}}
    assert task.notes == ("An input that is not contiguous was made contiguous.",)
    values = own_values(task, seed=1)
    model, _ = of_the_module("many", values)
    with torch.no_grad():
        wanted = model(values["ids"], 1.5, {"a": values["pair_a"], "b": values["pair_b"]})
    found = Interpreter(task.graph).run(values)
    for name, want in zip(("out0", "out1", "out2"), (wanted["sum"], *wanted["best"]), strict=True):
        assert torch.allclose(found[name].float(), want.float(), equal_nan=True), name


def test_the_problem_draws_its_values_by_a_seed(traced: Traced) -> None:
    task = traced("many")
    one, again, other = (own_values(task, seed) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["pair_a"], other["pair_a"])
    assert torch.equal(one["mask"], torch.tril(torch.ones(6, 6)))
    assert 2 <= one["ids"].min() <= one["ids"].max() < 11


def test_recurrent_layers_are_one_operation(traced: Traced) -> None:
    task = traced("recurrent")
    assert [kind for kind in kinds(task) if kind in ("lstm", "gru", "mm", "addmm")] == ["lstm", "gru"]
    values = own_values(task)
    model, _ = of_the_module("recurrent", values)
    with torch.no_grad():
        wanted = model(values["x"])
    found = Interpreter(task.graph).run(values)
    assert torch.allclose(found["out0"], wanted[0], atol=1e-6)
    assert torch.allclose(found["out1"], wanted[1], atol=1e-6)


def test_what_forward_updates_is_a_state(traced: Traced) -> None:
    task = traced("needs_values")
    assert [(each.name, each.role) for each in task.buffers] == [
        ("x", Role.INPUT),
        ("held", Role.STATE),
        ("out", Role.OUTPUT),
    ]
    x, held = torch.tensor([4.0, 8.0, 12.0]), torch.ones(3)
    found = Interpreter(task.graph).run({"x": x, "held": held})
    assert found["held"].tolist() == [2.0, 3.0, 4.0]
    assert found["out"].tolist() == [4.0, 6.0, 8.0]
    assert held.tolist() == [1.0, 1.0, 1.0]


def test_inputs_of_a_petabyte_take_no_memory(traced: Traced) -> None:
    task = traced("huge")
    assert task.buffers[0].bytes == 1 << 45
    assert {each.name: each.shape for each in task.buffers}["weight"] == (1 << 27,)


def test_an_operation_is_left_out(traced: Traced) -> None:
    task = traced("linear_norm")
    dropped = without(task, task.graph.nodes[-1].name)
    assert dropped is not None
    values = own_values(task)
    assert Interpreter(dropped).run(values)["out"].min() < 0 <= Interpreter(task.graph).run(values)["out"].min()


def test_only_listed_operators_run(traced: Traced) -> None:
    task = traced("linear_norm")
    for op in ("aten.uniform_.default", "aten.from_file.default", "aten.relu.nothing", "aten.save.default"):
        node = task.graph.nodes[-1].model_copy(update={"op": op})
        with pytest.raises(ValueError, match="not among the operators"):
            Interpreter(task.graph.model_copy(update={"nodes": (*task.graph.nodes[:-1], node)}))


def test_a_value_that_is_missing_is_named(traced: Traced) -> None:
    task = traced("linear_norm")
    values = own_values(task)
    del values["norm_bias"]
    with pytest.raises(ValueError, match="norm_bias"):
        Interpreter(task.graph).run(values)


def test_the_tracer_outlives_a_child_that_dies(tracer: Tracer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ended its process"):
        tracer.trace("import os\nos._exit(0)", "dies")
    assert tracer.trace((PROBLEMS / "linear_norm.py").read_text("utf-8"), "lives").name == "lives"
    assert not list(tmp_path.iterdir())


def test_sizes_shrink_as_far_as_the_module_runs(tracer: Tracer, traced: Traced) -> None:
    task = traced("convolutional")
    small = tracer.reduced(task, 20_000)
    assert sum(each.elements for each in small.buffers) < 20_000 < sum(each.elements for each in task.buffers)
    assert small.dims["channels"] % 4 == 0
    assert small.dims["channels"] == small.dims["widths_0"]
    assert (small.dims["kernel_size"], small.dims["groups"]) == (3, 4)
    assert [node.op for node in small.graph.nodes] == [node.op for node in task.graph.nodes]
    assert tracer.reduced(small, 1 << 30).dims == small.dims
