"""Kernels with swap_ab: the columns of D are the kernel's rows, so that a tile of D may have any multiple of 16 rows."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import ScalarArg, TensorMapArg
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.compiled import PtxCompiler

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
ONE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=48, block_k=64, stages=3, group=2, turned=True)
TALL = ONE.model_copy(update={"consumers": 2, "atoms": 2, "block_n": 112, "stages": 2})
LOOPING = ONE.model_copy(update={"consumers": 2, "block_n": 160, "persistent": True})
PUSHED = ONE.model_copy(update={"tma_store": False, "cluster_k": 3, "push": True})
ALTERNATING = LOOPING.model_copy(update={"atoms": 2, "block_n": 176, "pingpong": True, "store_boxes": 1})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[WgmmaTmaSchedule, dict[str, object], GemmTask]] = {
    "few-rows": (ONE, {}, gemm(37, 136, 200)),
    "few-rows-tn": (ONE, {"block_n": 16, "block_k": 128}, gemm(5, 264, 264, layout="tn", element="bf16")),
    "nt": (ONE, {"block_n": 64}, gemm(72, 136, 77, layout="nt")),
    "odd-groups": (TALL, {"cluster_n": 2}, gemm(200, 328, 136)),
    "multicast-rows": (TALL, {"cluster_m": 2, "evict_a": "last", "evict_d": "first"}, gemm(120, 520, 72, layout="tn")),
    "persistent": (LOOPING, {"raster": "snake_n"}, gemm(328, 392, 136, accumulate="f16")),
    "persistent-tn": (LOOPING, {"cluster_n": 2, "store_boxes": 2}, gemm(648, 264, 72, layout="tn")),
    "alternating": (ALTERNATING, {}, gemm(360, 520, 200)),
    "alternating-pairs": (ALTERNATING, {"cluster_m": 2, "cluster_n": 1, "stages": 4}, gemm(200, 1032, 72, element="bf16")),
    "split": (ONE, {"splits": 3, "block_n": 40}, gemm(37, 136, 520, layout="tn")),
    "split-three": (ONE, {"splits": 2, "consumers": 3, "block_n": 88}, gemm(85, 328, 264)),
    "split-looping": (LOOPING, {"splits": 2, "consumers": 1, "block_n": 72}, gemm(136, 200, 264)),
    "split-tail": (LOOPING, {"splits": 2, "split_tail": True, "block_n": 80}, gemm(136, 392, 264, layout="tn")),
    "split-multicast": (TALL, {"splits": 2, "cluster_m": 2, "cluster_n": 1, "block_n": 80}, gemm(76, 520, 264, element="bf16")),
    "spread": (ONE, {"splits": 3, "spread_sum": True, "tma_store": False}, gemm(93, 136, 520, layout="tn")),
    "spread-f16": (
        ONE,
        {"splits": 4, "spread_sum": True, "tma_store": False, "block_n": 24},
        gemm(24, 136, 520, accumulate="f16"),
    ),
    "pushed": (PUSHED, {"block_n": 24}, gemm(21, 200, 456, layout="tn", element="bf16")),
    "pushed-nt": (PUSHED, {"block_n": 88, "cluster_m": 2}, gemm(81, 264, 461, layout="nt")),
    "pushed-split": (PUSHED, {"splits": 2, "consumers": 2, "block_n": 40}, gemm(40, 264, 584)),
    "pushed-spread": (PUSHED, {"splits": 2, "spread_sum": True, "cluster_k": 2}, gemm(96, 72, 520, layout="tn")),
    "odd-rows-spread": (ONE, {"splits": 3, "spread_sum": True, "tma_store": False}, gemm(45, 83, 401)),
    "odd-rows-split": (ONE, {"splits": 2, "block_n": 56}, gemm(51, 139, 263, layout="tn")),
    "odd-rows-pushed": (PUSHED, {"block_n": 24}, gemm(7, 131, 463, layout="tn")),
    "alternating-nt": (ALTERNATING, {"block_n": 96}, gemm(200, 520, 77, layout="nt")),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(
    compiler: PtxCompiler, schedule: WgmmaTmaSchedule, change: dict[str, object], task: GemmTask
) -> None:
    from tests.sandbox.emulator.trial import Trial

    schedule = schedule.model_copy(update=change)
    candidate = FAMILY.write(schedule, task)
    sms = 24 if schedule.spread_sum else 4  # spread sums need all CTAs at once
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms)
    assert trial.faults() == []


def test_the_plan_gives_the_kernel_the_other_operand_and_the_other_size_first() -> None:
    plan = FAMILY.write(ALTERNATING, gemm(4096, 12288, 1024)).plan
    (launch,) = plan.launches
    maps = [arg.tensor_map for arg in launch.args if isinstance(arg, TensorMapArg)]
    assert [(each.of, each.box) for each in maps] == [("B", (64, 64)), ("A", (64, 176)), ("D", (64, 88))]
    assert [arg.scalar for arg in launch.args if isinstance(arg, ScalarArg)] == ["N", "M", "K"]


def test_tiles_and_store_rows_are_those_of_d() -> None:
    work = FAMILY.work(ALTERNATING, gemm(4096, 12288, 1024), CHIP)
    assert (work.tile, work.store_lines) == ((176, 128, 64), 352)


@pytest.mark.parametrize(("columns", "rows"), [(256, 64), (192, 96), (176, 88), (160, 80), (112, 56), (48, 48)])
def test_boxes_have_equal_numbers_of_rows(columns: int, rows: int) -> None:
    assert ONE.model_copy(update={"block_n": columns}).box_rows == rows


@pytest.mark.parametrize(
    "change",
    [
        {"tma_store": False},
        {"splits": 2, "tma_store": False},
        {"cluster_k": 2, "tma_store": False},
        {"block_n": 176, "whole_groups": True, "stages": 2},
    ],
    ids=["direct-stores", "direct-sums", "pulled-sums", "whole-groups"],
)
def test_what_a_turned_kernel_cannot_do_is_refused(change: dict[str, object]) -> None:
    task = gemm(512, 512, 512)
    assert FAMILY.violation(ONE, task) is None
    assert FAMILY.violation(ONE.model_copy(update=change), task)


def test_they_are_searched_for_few_rows_and_for_large_tiles() -> None:
    few, large = (list(FAMILY.space(gemm(*shape), CHIP)) for shape in ((16, 4096, 512), (4096, 4096, 1024)))
    assert {s.block_n for s in few if s.turned} == {16}
    assert {(s.pingpong, s.block_n) for s in large if s.turned} >= {(True, 176), (True, 160), (False, 256)}
    assert all(s.consumers == 2 for s in large if s.turned)


def test_more_rows_split_k_turned_where_that_fills_a_wave() -> None:
    """3 x 5 tiles of 128 columns and 104 rows of D in 8 parts of K are 120 CTAs for 132 SMs."""
    task, tile = gemm(520, 384, 8192), (128, 104, 8)
    assert any(s.turned and s.spread_sum and (s.block_m, s.block_n, s.splits) == tile for s in FAMILY.space(task, CHIP))
