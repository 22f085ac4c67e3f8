"""Plans over named buffers: calls, repeats, scratch and decimal scalars, and the rules that only modules have."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.launching import pack_argument
from cudal2_agent.contract.plan.plan import (
    LaunchPlan,
    ResolvedPlan,
    ScalarArg,
    Scratch,
    TensorPartArg,
    parse_plan,
    plan_from_json,
    render_plan,
)
from cudal2_agent.contract.plan.resolve import MAX_WRITTEN_OUT, resolve
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, Soundness, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.contract.records import AMPERE, LAUNCH

F32 = BufferElement.F32
RESULT = TensorType(shape=(4, 8), element=F32)
TASK = ModuleTask(
    name="steps",
    problem="",
    dims={"batch": 4, "steps": 3, "hidden": 8},
    buffers=(
        Buffer(name="x", shape=(3, 4, 8), element=F32, role=Role.INPUT),
        Buffer(name="weight", shape=(8, 8), element=F32, role=Role.PARAMETER),
        Buffer(name="out", shape=(4, 8), element=F32, role=Role.OUTPUT),
    ),
    graph=Graph(
        nodes=(
            GraphNode(
                name="sum",
                op="aten.sum.dim_IntList",
                args=({"node": "x"}, [0]),
                results=(TensorType(shape=(4, 8), element=F32),),
            ),
        ),
        outputs={"out": "sum"},
    ),
)
STEP = {
    "entry": "step",
    "grid": ["ceil(batch*hidden/128)", 1, 1],
    "block": [128, 1, 1],
    "args": [
        {"tensor": "x", "offset_bytes": "4*I*batch*hidden"},
        {"tensor": "h"},
        {"tensor": "out", "access": "write"},
        {"scalar": "1e-5", "type": "f32"},
    ],
}
CALL = {"call": "mm", "inputs": [{"tensor": "h"}, {"tensor": "weight", "permute": [1, 0]}], "out": {"tensor": "h"}}
SCRATCH = [{"name": "h", "shape": ["batch", "hidden"], "element": "f32"}]


def steps(**fields: Any) -> LaunchPlan:
    data = {"arch": "sm_80", "launches": [{"repeat": "steps", "launches": [CALL, STEP]}], "scratch": SCRATCH}
    return plan_from_json(data | fields)


def resolved(candidate: LaunchPlan, task: ModuleTask = TASK) -> ResolvedPlan:
    return resolve(candidate, task, LIMITS[task.arch], sms=108)


def one(*args: dict[str, Any], **launch: Any) -> LaunchPlan:
    return plan_from_json(
        {"arch": "sm_80", "launches": [STEP | {"args": [{"tensor": "out", "access": "write"}, *args]} | launch]}
    )


def test_a_repeat_is_written_out() -> None:
    plan = resolved(steps())
    assert [each.before for each in plan.calls] == [0, 1, 2]
    parts = [launch.args[0] for launch in plan.launches]
    assert parts == [TensorPartArg(tensor="x", offset_bytes=offset) for offset in (0, 128, 256)]
    assert plan.scratch == (Scratch(name="h", shape=(4, 8), element=F32),)
    assert plan.calls[0].call.inputs[1].shape == (8, 8)
    assert ResolvedPlan.model_validate_json(plan.model_dump_json()) == plan


def test_a_plan_over_buffers_survives_its_text() -> None:
    assert parse_plan(render_plan(steps())) == steps()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("f32", "1e-5", 1e-5), ("f64", "1/3", 1 / 3), ("f32", "2*hidden", 16), ("f32", 0.5, 0.5), ("i32", "hidden//3", 2)],
)
def test_a_scalar_may_have_a_fraction(kind: str, text: str | float, value: float) -> None:
    arg = resolved(one({"scalar": text, "type": kind})).launches[0].args[1]
    assert isinstance(arg, ScalarArg)
    assert arg.scalar == value


def test_a_part_of_a_buffer_is_packed_with_its_offset() -> None:
    (packed,) = {pack_argument(resolved(steps()).launches[1].args[0], {"x": 4096}, lambda _: b"")}
    assert int.from_bytes(packed, "little") == 4096 + 128


BROKEN = [
    ("plan-tensor", one({"tensor": "y"})),
    ("plan-tensor", one({"tensor": "x", "offset_bytes": 3 * 4 * 8 * 4})),
    ("plan-tensor", one({"tensor": "x", "offset_bytes": 2})),
    ("plan-write-input", one({"tensor": "weight", "access": "write"})),
    ("plan-write-input", one({"tensor": "x", "offset_bytes": 0, "access": "write"})),
    ("plan-scalar", one({"scalar": 0.5, "type": "i32"})),
    ("plan-expression", one({"scalar": "0.5", "type": "i32"})),
    ("plan-expression", one(grid=["I", 1, 1])),
    ("plan-output", one(args=[{"tensor": "x"}])),
    ("plan-launches", steps(launches=[CALL])),
    ("plan-repeat", steps(launches=[{"repeat": MAX_WRITTEN_OUT, "launches": [CALL, STEP]}])),
    ("plan-repeat", steps(launches=[{"repeat": "steps-3", "launches": [CALL, STEP]}])),
    ("plan-scratch", steps(scratch=[{"name": "x", "shape": [4, 8], "element": "f32"}])),
    ("plan-scratch", steps(scratch=[{"name": "workspace", "shape": [4], "element": "f32"}])),
    ("plan-scratch", steps(scratch=[{"name": "h", "shape": [0], "element": "f32"}])),
    ("plan-scratch", steps(scratch=[{"name": "h", "shape": [2**40], "element": "f32"}])),
    ("plan-call", steps(launches=[CALL | {"inputs": [{"tensor": "h", "shape": [4, 9]}, {"tensor": "weight"}]}, STEP])),
    ("plan-call", steps(launches=[CALL | {"inputs": [{"tensor": "h", "permute": [0, 0]}, {"tensor": "weight"}]}, STEP])),
    ("plan-call", steps(launches=[CALL | {"out": {"tensor": "h", "permute": [1, 0]}}, STEP])),
    ("plan-call", steps(launches=[CALL | {"inputs": [{"tensor": "h"}] * 3}, STEP])),
    ("plan-write-input", steps(launches=[CALL | {"out": {"tensor": "weight"}}, STEP])),
]


@pytest.mark.parametrize(("rule", "broken"), BROKEN)
def test_a_rule_of_modules_is_named(rule: str, broken: LaunchPlan) -> None:
    with pytest.raises(PlanError) as caught:
        resolved(broken)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    "fields",
    [
        {"launches": [LAUNCH] * 9},
        {"launches": [LAUNCH, {"repeat": 2, "launches": [LAUNCH]}]},
        {"launches": [LAUNCH], "scratch": [{"name": "h", "shape": [4], "element": "f32"}]},
        {"launches": [LAUNCH, {"call": "mm", "inputs": [{"tensor": "A"}, {"tensor": "B"}], "out": {"tensor": "D"}}]},
    ],
)
def test_a_matrix_product_has_kernel_launches_only(fields: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(plan_from_json({"arch": "sm_80"} | fields), AMPERE, LIMITS[Arch.SM_80], sms=108)
    assert caught.value.rule == "plan-launches"


def test_what_is_known_of_a_task_does_not_change_its_id() -> None:
    known = TASK.model_copy(update={"soundness": Soundness(status="sound")})
    assert known.id == TASK.id != TASK.model_copy(update={"dims": {**TASK.dims, "batch": 5}}).id


def test_tasks_are_told_apart_by_kind() -> None:
    task: TypeAdapter[Task] = TypeAdapter(Task)
    for each in (TASK, AMPERE):
        assert task.validate_json(each.model_dump_json()) == each
    assert isinstance(task.validate_python({"kind": "gemm", "m": 1, "n": 1, "k": 1}), GemmTask)


def test_a_task_names_a_value_for_each_output() -> None:
    with pytest.raises(ValidationError, match="every output"):
        ModuleTask.model_validate(TASK.model_dump() | {"graph": {"nodes": [], "outputs": {}}})


@pytest.mark.parametrize("name", ["x", "workspace"])
def test_buffers_have_names_of_their_own(name: str) -> None:
    buffers = (*TASK.buffers, Buffer(name=name, shape=(1,), element=F32, role=Role.INPUT))
    with pytest.raises(ValidationError, match="one name"):
        ModuleTask.model_validate(TASK.model_dump() | {"buffers": buffers})


def test_a_node_lists_what_it_reads_once() -> None:
    result = (TensorType(shape=(4,), element=F32),)
    node = GraphNode(
        name="cat", op="aten.cat.default", args=([{"node": "a"}, {"node": "b"}, {"node": "a"}],), kwargs={}, results=result
    )
    assert node.inputs() == ["a", "b"]


def test_the_buffers_of_a_product_follow_its_layout() -> None:
    task = GemmTask.model_validate({"m": 2, "n": 3, "k": 5, "layout": "tn"})
    assert [(each.name, each.shape, each.role.written) for each in task.buffers] == [
        ("A", (2, 5), False),
        ("B", (3, 5), False),
        ("D", (2, 3), True),
    ]
