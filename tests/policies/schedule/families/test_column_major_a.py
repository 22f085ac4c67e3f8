"""Layout `nt` in all families: A, stored as K x M, is right at every edge, and only its rows along M must be aligned."""

from typing import Any

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.compiled import PtxCompiler

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
FAMILIES = {family.name: family for family in families(Arch.SM_90A)}
TMA = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, group=2)
TALL = TMA.model_copy(update={"consumers": 2, "atoms": 2})  # four groups of 64 rows
SYNC = MmaSyncSchedule(block_m=64, block_n=32, block_k=32, warps_m=2, warps_n=2, stages=2, epilogue="direct")
LATENCY = LatencySchedule(block_m=64, block_n=32, block_k=64, groups=2, warps_m=2, warps_n=1)
RESIDENT = ResidentSchedule(consumers=2, block_n=64, slots=6)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, "layout": "nt", **fields})


PROVED: dict[str, tuple[Any, dict[str, object], GemmTask]] = {
    "one-group": (TMA, {}, gemm(136, 72, 77)),
    "slices-along-k": (TMA, {"cluster_n": 2, "cluster_m": 2}, gemm(136, 136, 200, element="bf16")),
    "quarters-along-k": (TMA, {"cluster_n": 4, "evict_a": "first", "block_k": 128}, gemm(72, 200, 131, accumulate="f16")),
    "slices-of-groups": (TALL, {"cluster_n": 2, "persistent": True, "stages": 2}, gemm(328, 264, 131, accumulate="f16")),
    "more-ctas-than-groups": (TALL, {"cluster_n": 8, "stages": 2}, gemm(264, 520, 90)),
    "ping-pong": (TMA, {"consumers": 2, "persistent": True, "pingpong": True, "cluster_n": 2}, gemm(328, 328, 90)),
    "splits": (TMA, {"splits": 2, "consumers": 3, "raster": "snake_n"}, gemm(200, 104, 263, element="bf16")),
    "tail-splits": (TMA, {"splits": 2, "split_tail": True, "persistent": True}, gemm(328, 200, 263)),
    "spread-sums": (TMA, {"splits": 2, "spread_sum": True, "tma_store": False, "atoms": 2}, gemm(136, 40, 263)),
    "pushed-sums": (TMA, {"cluster_k": 2, "push": True, "tma_store": False}, gemm(136, 72, 263)),
    "odd-rows": (SYNC, {}, gemm(37, 51, 45)),
    "pairs": (SYNC, {"warps_k": 2, "warps_n": 1, "reduction": "cluster", "split_k": 2}, gemm(70, 40, 170, element="bf16")),
    "older-chip": (SYNC, {"reduction": "workspace", "split_k": 2}, gemm(100, 72, 170, accumulate="f16", arch=Arch.SM_80)),
    "copies": (LATENCY, {"warps_k": 2, "groups": 1}, gemm(136, 40, 125, element="bf16")),
    "copies-again": (LATENCY, {"passes": 2, "cluster_k": 2, "block_k": 32}, gemm(72, 40, 250)),
    "boxes": (LATENCY, {"loads": "tma", "block_m": 128, "warps_m": 4, "cluster_k": 2}, gemm(136, 72, 250, accumulate="f16")),
    "narrow-boxes": (LATENCY, {"loads": "tma", "block_m": 16, "warps_m": 1, "passes": 2}, gemm(40, 40, 250)),
    "registers": (RESIDENT, {"atoms": 2, "slots": 9}, gemm(392, 328, 77, element="bf16")),
    "three-warpgroups": (RESIDENT, {"consumers": 3, "block_n": 96, "turns": "staging", "slots": 8}, gemm(584, 200, 130)),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(compiler: PtxCompiler, schedule: Any, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILIES[schedule.family].write(schedule.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=7)
    assert trial.faults() == []


@pytest.mark.parametrize(
    ("schedule", "boxes"),
    [
        (TMA, [(64, 64), (64, 64)]),
        (TALL, [(64, 64), (64, 64)]),
        (TALL.model_copy(update={"cluster_n": 8, "stages": 2}), [(64, 8), (64, 64)]),
        (TMA.model_copy(update={"block_k": 128, "cluster_n": 2}), [(64, 64), (64, 128)]),
        (LATENCY.model_copy(update={"loads": "tma"}), [(64, 64), (32, 64)]),
        (LATENCY.model_copy(update={"loads": "tma", "block_m": 32}), [(32, 64), (32, 64)]),
        (RESIDENT, [(64, 64), (64, 32)]),
    ],
)
def test_boxes_have_rows_of_k(schedule: Any, boxes: list[tuple[int, int]]) -> None:
    """(columns, rows) of the boxes of A and B, which both have M or N along their rows."""
    (launch,) = FAMILIES[schedule.family].write(schedule, gemm(1024, 1024, 100)).plan.launches
    maps = [arg.tensor_map for arg in launch.args if isinstance(arg, TensorMapArg)]
    assert [(one.of, one.box) for one in maps[:2]] == list(zip("AB", boxes, strict=True))


@pytest.mark.parametrize("schedule", [TMA, LATENCY.model_copy(update={"constant_shape": False}), RESIDENT])
def test_rows_along_m_are_aligned_and_k_is_free(schedule: Any) -> None:
    family = FAMILIES[schedule.family]
    for k in (99, 100, 101, 111):
        assert family.violation(schedule, gemm(520, 520, k)) is None
    plan = family.write(schedule, gemm(520, 520, 99)).plan
    assert resolve(plan, gemm(264, 72, 103), LIMITS[Arch.SM_90A], CHIP.sms)
    for m, n in ((260, 72), (264, 76)):
        packs = family.name == "wgmma_tma"  # for tasks of their own: a plan is for aligned rows or packs some
        assert family.supports(gemm(m, n, 99)) is packs
        assert (family.violation(schedule, gemm(m, n, 99)) is None) is packs
        with pytest.raises(PlanError):
            resolve(plan, gemm(m, n, 99), LIMITS[Arch.SM_90A], CHIP.sms)


def test_multicast_needs_slices_of_whole_swizzle_groups() -> None:
    """Three groups of rows for six CTAs: 64 of K has no six slices of 8."""
    wide = TMA.model_copy(update={"consumers": 3, "cluster_n": 6})
    family = FAMILIES["wgmma_tma"]
    assert family.violation(wide, gemm(192, 384, 128, layout="nn")) is None
    assert family.violation(wide, gemm(192, 384, 128))
    assert family.violation(wide.model_copy(update={"cluster_n": 3}), gemm(192, 384, 128)) is None


def test_a_slice_needs_a_thread_for_every_16_bytes_of_a_row() -> None:
    wide = LATENCY.model_copy(update={"block_m": 512, "block_n": 16, "block_k": 32, "warps_m": 1, "groups": 1, "cluster_k": 4})
    assert "a row of A" in (FAMILIES["latency"].violation(wide, gemm(512, 16, 128)) or "")
    assert "a row of A" not in (FAMILIES["latency"].violation(wide, gemm(512, 16, 128, layout="nn")) or "")


@pytest.mark.parametrize(
    ("m", "lines"),
    [(70, {"kVectorA = 2;", "kGuardA = true;"}), (96, {"kVectorA = 8;"}), (71, {"load_tile_odd<BLOCK_K, BLOCK_M>("})],
)
def test_copies_of_a_are_as_wide_as_m_allows(m: int, lines: set[str]) -> None:
    candidate = FAMILIES["mma_sync"].write(SYNC, gemm(m, 64, 45))
    assert all(line in candidate.source for line in lines)
    assert resolve(candidate.plan, gemm(3 * m, 128, 7 * 45), LIMITS[Arch.SM_90A], CHIP.sms)
    if m % 2 == 0:
        with pytest.raises(PlanError, match="M%"):
            resolve(candidate.plan, gemm(m + 1, 64, 45), LIMITS[Arch.SM_90A], CHIP.sms)


@pytest.mark.parametrize(("m", "rows"), [(1024, 64), (1000, 128)])
def test_rows_of_a_that_start_between_lines_cost_two(m: int, rows: int) -> None:
    """A box of A has 64 rows of K, each on one line of L2 where M is a multiple of 64."""
    work = FAMILIES["wgmma_tma"].work(TMA, gemm(m, 1024, 1000), CHIP)
    assert work.loaded_bytes == work.ctas * work.k_blocks * 2 * 64 * (rows + 64)
    assert work.lines == rows + 64


def test_the_text_of_other_layouts_has_nothing_of_a_transposed_a() -> None:
    for schedule in (TMA, SYNC, LATENCY, RESIDENT):
        texts = {
            layout: FAMILIES[schedule.family].write(schedule, gemm(256, 256, 96, layout=layout)).source
            for layout in ("nn", "nt")
        }
        assert "A row-major M x K" in texts["nn"]
        assert "A column-major (K x M in memory)" in texts["nt"]
        assert not any(
            word in texts["nn"] for word in ("GroupsA", "1, 1>::run", "ldmatrix_x4_trans(smem_a", "ldmatrix_x4_trans(row")
        )
