"""Every rule of `resolve`: a plan that violates it, the rule's name, and the nearest valid plan."""

import itertools
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedPlan, ScalarArg, TensorMapArg, WorkspaceArg, plan_from_json
from cudal2_agent.contract.plan.resolve import (
    MAX_CTAS,
    MAX_WORKSPACE_BYTES,
    MIN_CTAS,
    MIN_WORKSPACE_BYTES,
    max_ctas,
    max_workspace_bytes,
    operand_shape,
    resolve,
)
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, Layout
from tests.contract.records import AMPERE, HOPPER, LAUNCH, plan, tensor_map, with_args

SMEM_80 = LIMITS[Arch.SM_80].max_smem_per_block_bytes
SPACE = {"workspace": {"bytes": 256}}
MOST = max_workspace_bytes(AMPERE)
CTAS = max_ctas(AMPERE)


def resolved(candidate: LaunchPlan, task: GemmTask = AMPERE) -> ResolvedPlan:
    return resolve(candidate, task, LIMITS[task.arch], sms=108)


def hopper(launch: dict[str, Any] | None = None, **fields: Any) -> LaunchPlan:
    return plan(launch, **({"arch": "sm_90a"} | fields))


def typed(value: int, kind: str) -> dict[str, Any]:
    return with_args({"scalar": value, "type": kind})


def test_expressions_become_numbers() -> None:
    launch = resolved(plan(with_args({"scalar": "ceil(K/64)"}, {"workspace": "16*2"}), workspace={"bytes": "N"})).launches[0]
    assert launch.grid == (8, 32, 1)
    assert launch.args[1:] == (ScalarArg(scalar=8), WorkspaceArg(workspace=32))


def view(**fields: Any) -> dict[str, Any]:
    """A map of A in slabs of 64 columns, whose elements lie K apart from row to row."""
    three = {"dims": [64, "M", "K//64"], "strides": ["K", 64], "box": [64, 128, 2]}
    return tensor_map(**three | fields)


def packed(size: int, **fields: Any) -> LaunchPlan:
    """A map of a workspace of so many bytes: 64 x 8 x 4 numbers of four bytes."""
    three = {"of": "workspace", "element": "f32", "dims": [64, 8, 4], "box": [64, 8, 1], "swizzle": 0}
    return hopper(
        tensor_map(**{name: value for name, value in (three | fields).items() if value is not None}), workspace={"bytes": size}
    )


# (rule, a plan that violates it, the nearest valid plan, the task of both), one row per line
BROKEN_AND_KEPT = [
    ("plan-arch", plan(arch="sm_86"), plan(arch="sm_80"), AMPERE),
    ("plan-arch", hopper(), plan(arch="sm_80"), AMPERE),
    ("plan-arch", hopper(), plan(arch="sm_89"), HOPPER.model_copy(update={"arch": Arch.SM_100A})),
    ("plan-arch", plan(arch="sm_100a"), hopper(), HOPPER),
    ("plan-accumulate", plan(accumulate="f16"), plan(accumulate="f32"), AMPERE),
    ("plan-requires", plan(requires=["K%1024==0"]), plan(requires=["K%64==0", "M>N"]), AMPERE),
    ("plan-expression", plan(requires=["K"]), plan(requires=["K>0"]), AMPERE),
    ("plan-expression", plan({"grid": ["N/3", 1, 1]}), plan({"grid": ["ceil(N/3)", 1, 1]}), AMPERE),
    ("plan-output", plan({"args": [{"tensor": "A"}]}), plan({"args": [{"tensor": "D", "access": "write"}]}), AMPERE),
    ("plan-output", hopper({"args": []}), hopper(tensor_map(of="D")), HOPPER),
    ("plan-output", plan({"args": [{"tensor": "D"}]}), plan({"args": [{"tensor": "D", "access": "write"}]}), AMPERE),
    ("plan-workspace", plan(workspace={"bytes": -1}), plan(workspace={"bytes": 0}), AMPERE),
    ("plan-workspace", plan(workspace={"bytes": MOST + 1}), plan(workspace={"bytes": MOST}), AMPERE),
    ("plan-workspace", plan(workspace={"bytes": 8, "zero_bytes": 9}), plan(workspace={"bytes": 8, "zero_bytes": 8}), AMPERE),
    ("plan-workspace", plan(workspace={"bytes": 64, "zero_bytes": -1}), plan(workspace={"bytes": 64, "zero_bytes": 0}), AMPERE),
    ("plan-workspace", plan(with_args({"workspace": 8}), **SPACE), plan(with_args({"workspace": 16}), **SPACE), AMPERE),
    ("plan-workspace", plan(with_args({"workspace": 256}), **SPACE), plan(with_args({"workspace": 240}), **SPACE), AMPERE),
    ("plan-workspace", plan(with_args({"workspace": -16}), **SPACE), plan(with_args({"workspace": 0}), **SPACE), AMPERE),
    ("plan-grid", plan({"grid": [0, 1, 1]}), plan({"grid": [1, 1, 1]}), AMPERE),
    ("plan-grid", plan({"grid": ["-M", 1, 1]}), plan({"grid": ["M", 1, 1]}), AMPERE),
    ("plan-grid", plan({"grid": [CTAS + 1, 1, 1]}), plan({"grid": [CTAS, 1, 1]}), AMPERE),
    ("plan-grid", plan({"grid": [CTAS // 8, 4, 4]}), plan({"grid": [CTAS // 8, 4, 2]}), AMPERE),
    ("plan-grid", plan({"grid": [2**31, 1, 1]}), plan({"grid": [2**20, 1, 1]}), AMPERE),
    ("plan-grid", plan({"grid": [1, 65536, 1]}), plan({"grid": [1, 65535, 1]}), AMPERE),
    ("plan-grid", plan({"grid": [1, 1, 65536]}), plan({"grid": [1, 1, 65535]}), AMPERE),
    ("plan-block", plan({"block": [1025, 1, 1]}), plan({"block": [1024, 1, 1]}), AMPERE),
    ("plan-block", plan({"block": [32, 33, 1]}), plan({"block": [32, 32, 1]}), AMPERE),
    ("plan-block", plan({"block": [0, 1, 1]}), plan({"block": [1, 1, 1]}), AMPERE),
    ("plan-block", plan({"block": [-32, -32, 1]}), plan({"block": [32, 32, 1]}), AMPERE),
    ("plan-block", plan({"block": [1, 1, 65]}), plan({"block": [1, 1, 64]}), AMPERE),
    ("plan-cluster", plan({"cluster": [2, 1, 1]}), plan({"cluster": [1, 1, 1]}), AMPERE),
    ("plan-cluster", hopper({"cluster": [4, 8, 1]}), hopper({"cluster": [4, 4, 1]}), HOPPER),
    ("plan-cluster", hopper({"cluster": [0, 1, 1]}), hopper({"cluster": [1, 1, 1]}), HOPPER),
    ("plan-cluster", hopper({"cluster": [-2, -1, 1]}), hopper({"cluster": [1, 2, 1]}), HOPPER),
    ("plan-cluster", hopper({"cluster": [3, 1, 1]}), hopper({"cluster": [8, 1, 1]}), HOPPER),
    ("plan-smem-limit", plan({"dynamic_smem": SMEM_80 + 1}), plan({"dynamic_smem": SMEM_80}), AMPERE),
    ("plan-smem-limit", plan({"dynamic_smem": -1}), plan({"dynamic_smem": 0}), AMPERE),
    ("plan-programmatic", plan({"programmatic": True}), plan({"programmatic": False}), AMPERE),
    ("plan-write-input", plan(with_args({"tensor": "A", "access": "write"})), plan(with_args({"tensor": "A"})), AMPERE),
    ("plan-write-input", plan(with_args({"tensor": "B", "access": "write"})), plan(with_args({"tensor": "B"})), AMPERE),
    ("plan-scalar", plan(typed(2**31, "i32")), plan(typed(2**31 - 1, "i32")), AMPERE),
    ("plan-scalar", plan(typed(-1, "u32")), plan(typed(2**32 - 1, "u32")), AMPERE),
    ("plan-scalar", plan(typed(2**63, "i64")), plan(typed(2**63 - 1, "i64")), AMPERE),
    ("plan-scalar", plan(typed(2**24, "f32")), plan(typed(-(2**24), "f32")), AMPERE),
    ("plan-tensor-map", plan(tensor_map()), plan(with_args({"tensor": "A"})), AMPERE),
    ("plan-tensor-map", hopper(tensor_map(box=[0, 128])), hopper(tensor_map(box=[8, 128], swizzle=0)), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(box=[64, 257])), hopper(tensor_map(box=[64, 256])), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(box=[12, 128])), hopper(tensor_map(box=[16, 128])), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(box=[72, 128])), hopper(tensor_map(box=[72, 128], swizzle=0)), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(box=[64, 8], swizzle=64)), hopper(tensor_map(box=[32, 8], swizzle=64)), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(box=[64])), hopper(tensor_map(dims=["M*K"], box=[64])), HOPPER),
    ("plan-tensor-map", hopper(view(box=[64, 128])), hopper(view()), HOPPER),
    ("plan-tensor-map", hopper(view(dims=[64, "M+1", "K//64"])), hopper(view(dims=[64, "M-1", "K//64"])), HOPPER),
    ("plan-tensor-map", hopper(view(strides=["K", 72])), hopper(view(strides=["K", 56])), HOPPER),
    ("plan-tensor-map", hopper(view(strides=["K", 68])), hopper(view(strides=["K", 64])), HOPPER),
    ("plan-tensor-map", hopper(view(strides=["K", 0])), hopper(view(strides=["K", 8])), HOPPER),
    ("plan-tensor-map", hopper(view(strides=["K", "0-64"])), hopper(view(strides=["K", "128-64"])), HOPPER),
    ("plan-tensor-map", hopper(view(strides=["K"])), hopper(view(strides=[])), HOPPER),
    ("plan-tensor-map", hopper(view(dims=[64, 0, "K//64"])), hopper(view(dims=[64, 1, "K//64"])), HOPPER),
    ("plan-tensor-map", hopper(view(offset_bytes=128)), hopper(view(dims=[64, "M", 7], offset_bytes=128)), HOPPER),
    ("plan-tensor-map", hopper(view(offset_bytes="0-16")), hopper(view(offset_bytes="16-16")), HOPPER),
    ("plan-tensor-map", hopper(view(dims=[64, 8], strides=["K"], offset_bytes=8, box=[64, 8])),
     hopper(view(dims=[64, 8], strides=["K"], offset_bytes=16, box=[64, 8])), HOPPER),
    ("plan-tensor-map", hopper(view(box=[64, 256, 8])), hopper(view(box=[64, 256, 4])), HOPPER),
    ("plan-tensor-map", hopper(view(element="f32")), hopper(view()), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(strides=["K"])), hopper(tensor_map()), HOPPER),
    ("plan-tensor-map", hopper(tensor_map(offset_bytes=16)), hopper(tensor_map()), HOPPER),
    ("plan-tensor-map", packed(4 * 64 * 8 * 4 - 1), packed(4 * 64 * 8 * 4), HOPPER),
    ("plan-tensor-map", packed(9000, element=None), packed(9000), HOPPER),
    ("plan-tensor-map", packed(9000, dims=[], box=[64, 8]), packed(9000), HOPPER),
    ("plan-tensor-map", packed(9000, offset_bytes=816), packed(9000, offset_bytes=800), HOPPER),
    ("plan-tensor-map", packed(8192, dims=[2**40, 8, 4]), packed(8192, dims=[32, 8, 4]), HOPPER),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "broken", "kept", "task"), BROKEN_AND_KEPT)
def test_a_broken_rule_is_named_and_the_nearest_sound_plan_passes(
    rule: str, broken: LaunchPlan, kept: LaunchPlan, task: GemmTask
) -> None:
    with pytest.raises(PlanError) as caught:
        resolved(broken, task)
    assert caught.value.rule == rule
    assert "\n" not in str(caught.value)
    assert resolved(kept, task).launches


@pytest.mark.parametrize(("k", "fits"), [(512, True), (520, True), (516, False), (511, False), (7, False)])
def test_a_tensor_map_needs_rows_of_sixteen_bytes(k: int, fits: bool) -> None:
    task = HOPPER.model_copy(update={"k": k})
    if fits:
        args = resolved(hopper(tensor_map(box=[8, 8], swizzle=0)), task).launches[0].args
        assert isinstance(args[1], TensorMapArg)
    else:
        with pytest.raises(PlanError, match="multiple of 16"):
            resolved(hopper(tensor_map(box=[8, 8], swizzle=0)), task)


def test_the_row_of_b_is_n_or_k_by_the_layout() -> None:
    odd_n = HOPPER.model_copy(update={"n": 1001})
    with pytest.raises(PlanError, match="row of B"):
        resolved(hopper(tensor_map(of="B")), odd_n)
    assert resolved(hopper(tensor_map(of="B")), odd_n.model_copy(update={"layout": Layout.TN})).launches
    assert operand_shape(odd_n, "B") == (512, 1001)
    assert operand_shape(odd_n, "A") == (4096, 512)
    assert operand_shape(odd_n, "D") == (4096, 1001)


def test_the_row_of_a_is_k_or_m_by_the_layout() -> None:
    odd_k = HOPPER.model_copy(update={"k": 1001})
    with pytest.raises(PlanError, match="row of A"):
        resolved(hopper(tensor_map(of="A")), odd_k)
    transposed = odd_k.model_copy(update={"layout": Layout.NT})
    assert resolved(hopper(tensor_map(of="A")), transposed).launches
    assert [operand_shape(transposed, name) for name in ("A", "B", "D")] == [(1001, 4096), (1001, 1024), (4096, 1024)]
    with pytest.raises(PlanError, match="row of A"):
        resolved(hopper(tensor_map(of="A")), transposed.model_copy(update={"m": 1001}))


def test_f16_plans_meet_f16_tasks_only() -> None:
    task = AMPERE.model_copy(update={"accumulate": AccumulatorType.F16})
    assert resolved(plan(accumulate="f16"), task).launches
    with pytest.raises(PlanError, match="accumulates in f32"):
        resolved(plan(), task)


@pytest.mark.parametrize(
    ("workspace", "expected"),
    [
        (None, (0, False, 0)),
        ({"bytes": 64}, (64, False, 0)),
        ({"bytes": 64, "zero": True}, (64, True, 64)),
        ({"bytes": "4*M", "zero": True, "zero_bytes": 32}, (16384, True, 32)),
        ({"bytes": 64, "zero": "restored", "zero_bytes": "N/64"}, (64, "restored", 16)),
        ({"bytes": 64, "zero": False, "zero_bytes": 32}, (64, False, 0)),
    ],
)
def test_what_of_the_workspace_is_zeroed(workspace: dict[str, Any] | None, expected: tuple[Any, ...]) -> None:
    found = resolved(plan(workspace=workspace) if workspace else plan())
    assert (found.workspace_bytes, found.zero, found.zero_bytes) == expected


def test_every_launch_of_a_plan_is_checked() -> None:
    second = LAUNCH | {"entry": "reduce", "block": [2048, 1, 1]}
    with pytest.raises(PlanError, match="reduce"):
        resolved(plan_from_json({"arch": "sm_80", "launches": [LAUNCH, second]}))


def test_limits_follow_the_task() -> None:
    small, large = GemmTask(m=96, n=80, k=128), GemmTask(m=16384, n=16384, k=16384)
    assert (max_workspace_bytes(small), max_workspace_bytes(large)) == (MIN_WORKSPACE_BYTES, MAX_WORKSPACE_BYTES)
    assert (max_ctas(small), max_ctas(large)) == (MIN_CTAS, MAX_CTAS)
    middle = GemmTask(m=4096, n=4096, k=4096)
    assert max_workspace_bytes(middle) >= middle.operand_bytes + 32 * 4 * middle.m * middle.n
    assert max_ctas(middle) > middle.m * middle.n


@pytest.mark.parametrize("shape", [(64, 64, 16384), (1, 4096, 4096), (128, 256, 65536), (8192, 8192, 4096)])
@pytest.mark.parametrize("splits", [2, 8, 32])
def test_split_k_of_the_largest_tiles_fits(shape: tuple[int, int, int], splits: int) -> None:
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k)
    slots = f"4*{splits}*256*ceil(M/256)*256*ceil(N/256)"
    if 4 * splits * -(-m // 256) * 256 * -(-n // 256) * 256 <= MAX_WORKSPACE_BYTES:
        assert resolved(hopper(workspace={"bytes": slots}), task).workspace_bytes > 0


def test_a_partial_tile_for_every_sm_fits_any_task() -> None:
    plan_of_a_stream = hopper(workspace={"bytes": "SMS*4*256*128"})
    assert resolve(plan_of_a_stream, HOPPER.model_copy(update={"m": 64}), LIMITS[Arch.SM_90A], sms=148).workspace_bytes


def test_a_view_becomes_numbers_and_a_plain_map_stays_as_it_is() -> None:
    spec = resolved(hopper(view()), HOPPER).launches[0].args[1]
    assert isinstance(spec, TensorMapArg)
    assert (spec.tensor_map.dims, spec.tensor_map.strides) == ((64, 4096, 8), (512, 64))
    plain = resolved(hopper(tensor_map()), HOPPER).launches[0].args[1]
    assert plain.model_dump(mode="json") == {"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128, "l2": 128}}


def test_a_map_follows_the_sizes_of_its_task() -> None:
    """A plan that is resolved for another shape is checked for that one."""
    fits, short = hopper(view(dims=[64, 4096, "K//64"])), HOPPER.model_copy(update={"m": 2048})
    assert resolved(fits, HOPPER).launches
    with pytest.raises(PlanError, match="reaches from byte 0 to"):
        resolved(fits, short)


def _views(rank: int) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a map of the workspace with so many dimensions."""
    strides = st.lists(
        st.integers(1, 20).map(lambda step: 4 * step) | st.integers(-9, 300), min_size=rank - 1, max_size=rank - 1
    )
    return st.fixed_dictionaries(
        {
            "of": st.just("workspace"),
            "element": st.just("f32"),
            "dims": st.lists(st.integers(1, 12) | st.integers(-1, 2000), min_size=rank, max_size=rank),
            "strides": strides | st.just([]),
            "box": st.just([4, 1, 1, 1, 1][:rank]),
            "offset_bytes": st.integers(-2, 60).map(lambda step: 16 * step) | st.integers(-99, 3000),
            "swizzle": st.just(0),
        }
    )


@given(st.integers(1, 5).flatmap(_views), st.sampled_from([-1, 0, 1]))
def test_a_view_that_is_accepted_leaves_its_memory_nowhere(fields: dict[str, Any], more: int) -> None:
    """Each corner of the view is looked at; the workspace ends at the last of them, a byte before it or behind."""
    sizes = fields["dims"]
    strides = [1, *(fields["strides"] or itertools.accumulate(sizes[:-1], operator.mul))]
    corners = itertools.product(*((0, size - 1) for size in sizes))
    starts = [fields["offset_bytes"] + 4 * sum(map(operator.mul, corner, strides)) for corner in corners]
    candidate = hopper(tensor_map(**fields), workspace={"bytes": max(starts) + 4 + more})
    try:
        assert resolved(candidate, HOPPER).launches
    except PlanError:
        return
    assert min(starts) >= 0
    assert more >= 0
