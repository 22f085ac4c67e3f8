"""Rows that TMA cannot address: operands are packed by a launch before the kernel, D leaves in words."""

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg, WorkspaceArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, unaligned_operands
from tests.sandbox.emulator.compiled import PtxCompiler

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
ONE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, group=2)
WIDE = ONE.model_copy(update={"consumers": 2, "block_n": 96, "stages": 4})
LOOPING = ONE.model_copy(update={"consumers": 2, "block_n": 160, "persistent": True, "tma_store": True})
TURNED = ONE.model_copy(update={"block_n": 48, "turned": True})
DIRECT = ONE.model_copy(update={"tma_store": False, "block_n": 32})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[WgmmaTmaSchedule, dict[str, object], GemmTask]] = {
    "both": (ONE, {}, gemm(65, 131, 197)),
    "both-tn": (WIDE, {"cluster_m": 2}, gemm(259, 195, 201, layout="tn", element="bf16")),
    "a-alone": (ONE, {"block_n": 16}, gemm(33, 72, 131)),
    "b-alone": (WIDE, {"cluster_n": 2}, gemm(129, 333, 136)),
    "d-alone": (ONE, {"block_n": 128, "stages": 2}, gemm(77, 203, 72, layout="tn")),
    "a-alone-nt": (ONE, {}, gemm(67, 136, 77, layout="nt")),
    "both-nt": (WIDE, {"block_n": 224, "whole_groups": True, "stages": 2}, gemm(131, 261, 71, layout="nt")),
    "half-words": (ONE, {"block_n": 80}, gemm(64, 204, 68)),
    "persistent": (LOOPING, {"raster": "snake_n"}, gemm(328, 393, 135, accumulate="f16")),
    "alternating": (LOOPING, {"pingpong": True, "atoms": 2, "block_n": 128, "stages": 4}, gemm(260, 519, 199)),
    "turned": (TURNED, {}, gemm(37, 135, 199)),
    "turned-alternating": (
        TURNED,
        {"consumers": 2, "atoms": 2, "block_n": 112, "persistent": True, "pingpong": True, "stages": 4, "store_boxes": 1},
        gemm(241, 517, 75, layout="tn"),
    ),
    "turned-nt": (TURNED, {"block_n": 64}, gemm(73, 139, 77, layout="nt")),
    "turned-split": (TURNED, {"splits": 2, "spread_sum": True, "tma_store": False}, gemm(37, 135, 401)),
    "turned-pushed": (TURNED, {"cluster_k": 2, "push": True, "tma_store": False}, gemm(45, 133, 401, layout="tn")),
    "odd-width": (ONE, {"block_n": 104}, gemm(65, 203, 197)),
    "odd-width-nt": (ONE, {"block_n": 40}, gemm(67, 79, 71, layout="nt")),
    "direct": (DIRECT, {}, gemm(67, 97, 131)),
    "split": (ONE, {"splits": 2}, gemm(67, 131, 323)),
    "split-spread": (ONE, {"splits": 3, "spread_sum": True, "tma_store": False}, gemm(65, 67, 401)),
    "split-tail": (ONE, {"splits": 2, "split_tail": True, "persistent": True}, gemm(193, 131, 259)),
    "cluster-sum": (DIRECT, {"cluster_k": 2, "stages": 4}, gemm(67, 97, 323)),
    "pushed": (DIRECT, {"cluster_k": 2, "push": True}, gemm(67, 97, 323)),
    "pushed-split": (DIRECT, {"cluster_k": 2, "push": True, "splits": 2}, gemm(67, 97, 453)),
    "one-row": (ONE, {"block_n": 16}, gemm(1, 1, 1)),
    "long-rows": (ONE, {}, gemm(3, 5, 1027, layout="tn")),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(
    compiler: PtxCompiler, schedule: WgmmaTmaSchedule, change: dict[str, object], task: GemmTask
) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(schedule.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=16)
    assert trial.faults() == []


@pytest.mark.parametrize(
    ("task", "packed", "maps"),
    [
        (gemm(64, 65, 64), ("B",), ["A", "workspace"]),
        (gemm(64, 64, 63), ("A",), ["workspace", "B", "D"]),
        (gemm(64, 12, 64, layout="tn"), (), ["A", "B"]),
        (gemm(65, 64, 64, layout="nt"), ("A",), ["workspace", "B", "D"]),
        (gemm(65, 63, 61, layout="nt"), ("A", "B"), ["workspace", "workspace"]),
        (gemm(64, 64, 64), (), ["A", "B", "D"]),
    ],
)
def test_what_tma_can_address_is_used_where_it_is(task: GemmTask, packed: tuple[str, ...], maps: list[str]) -> None:
    plan = FAMILY.write(ONE.model_copy(update={"stages": 3}), task).plan
    assert unaligned_operands(task) == packed
    assert len(plan.kernels) == (2 if packed else 1)
    assert [arg.tensor_map.of for arg in plan.kernels[-1].args if isinstance(arg, TensorMapArg)] == maps


def test_packed_operands_lie_behind_the_sums_and_apart() -> None:
    task = gemm(1001, 999, 4099)
    schedule = ONE.model_copy(update={"splits": 2})
    plan = resolve(FAMILY.write(schedule, task).plan, task, LIMITS[task.arch], CHIP.sms)
    pack, _ = plan.launches
    places = [arg.workspace for arg in pack.args if isinstance(arg, WorkspaceArg)]
    assert all(place % 128 == 0 for place in places)
    assert places[1] - places[0] == 2 * 1001 * 4160
    assert plan.workspace_bytes - places[1] == 2 * 4099 * 1024
    assert plan.zero_bytes <= places[0]


def test_hints_of_stores_need_rows_that_tma_writes() -> None:
    hinted = ONE.model_copy(update={"evict_d": "first"})
    assert FAMILY.violation(hinted, gemm(64, 64, 64)) is None
    assert "evict_d" in str(FAMILY.violation(hinted, gemm(64, 65, 64)))


def test_the_space_of_an_unaligned_product_can_be_written() -> None:
    task = gemm(517, 259, 1031)
    found = [schedule for number, schedule in enumerate(FAMILY.space(task, CHIP)) if number % 97 == 0]
    assert len(found) > 20
    for schedule in found:
        assert FAMILY.work(schedule, task, CHIP).launches == 2
        resolve(FAMILY.write(schedule, task).plan, task, LIMITS[task.arch], CHIP.sms)
