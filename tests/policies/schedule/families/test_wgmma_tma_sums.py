"""Sums over a cluster along K that CTAs of the wgmma_tma family push to their owner: every tile, edge and division of units."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, workspace_bytes
from cudal2_agent.sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = WgmmaTma()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
PUSHED = WgmmaTmaSchedule(
    consumers=2, atoms=1, block_n=128, block_k=64, stages=3, cluster_k=2, tma_store=False, push=True, exclusive=True
)
WIDE = PUSHED.model_copy(update={"block_n": 256, "stages": 4})
SMALL = PUSHED.model_copy(update={"consumers": 1, "block_n": 64, "stages": 2})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


@pytest.mark.parametrize(
    ("schedule", "task"),
    [
        (PUSHED, gemm(136, 136, 328, layout="tn")),
        (SMALL.model_copy(update={"cluster_k": 3}), gemm(72, 72, 456)),
        (SMALL.model_copy(update={"cluster_k": 5, "splits": 2}), gemm(40, 48, 712, layout="tn", element="bf16")),
        (SMALL.model_copy(update={"cluster_k": 8}), gemm(64, 64, 584, accumulate="f16")),
        (PUSHED.model_copy(update={"cluster_m": 2, "splits": 3, "block_n": 64}), gemm(200, 72, 520, layout="tn")),
        (SMALL.model_copy(update={"atoms": 2, "cluster_n": 2, "block_n": 96}), gemm(128, 136, 264)),
        (WIDE, gemm(72, 264, 584, layout="tn")),
    ],
    ids=["wide-rows", "uneven", "uneven-splits", "one-unit", "multicast-splits", "tall", "in-place"],
)
def test_pushed_sums_are_right(compiler: PtxCompiler, schedule: WgmmaTmaSchedule, task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(schedule, task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=132)
    assert trial.faults() == []


def test_sums_have_memory_of_their_own_where_it_suffices() -> None:
    """227 KiB hold three stages of 32 KiB and 64 KiB of sums, or four of 48 KiB and not 128 KiB of sums."""
    assert PUSHED.receives_apart
    assert not WIDE.receives_apart
    assert PUSHED.needed_smem_bytes == PUSHED.model_copy(update={"push": False}).needed_smem_bytes + 128 * 128 * 4
    assert WIDE.needed_smem_bytes == WIDE.model_copy(update={"push": False}).needed_smem_bytes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cluster_k": 1}, "nothing to push"),
        ({"block_n": 16, "cluster_k": 4}, "fewer units than CTAs along K"),
        ({"persistent": True}, "several tiles"),
        ({"tma_store": True}, "sums are stored by their owner"),
        ({"block_n": 256, "stages": 2, "consumers": 3}, "no room for the sums"),
    ],
)
def test_sums_that_cannot_be_pushed_are_refused(change: dict[str, int], why: str) -> None:
    assert not FAMILY.violation(PUSHED, gemm(256, 256, 4096))
    assert FAMILY.violation(PUSHED.model_copy(update=change), gemm(256, 256, 4096)), why


@pytest.mark.parametrize("cluster_k", [2, 3, 5])
def test_the_workspace_holds_the_largest_share_of_every_split(cluster_k: int) -> None:
    task = gemm(512, 512, 16384)
    schedule = PUSHED.model_copy(update={"cluster_k": cluster_k, "splits": 4})
    plan = resolve(FAMILY.write(schedule, task).plan, task, LIMITS[task.arch], CHIP.sms)
    assert plan.workspace_bytes == workspace_bytes(schedule, task)
    units, ctas = -(-16 // cluster_k), 16 * cluster_k
    assert workspace_bytes(schedule, task) == -(-4 * ctas // 256) * 256 + ctas * 4 * (8 * units * 512)


def test_wide_tiles_are_searched_with_sums_over_a_cluster() -> None:
    space = [s for s in FAMILY.space(gemm(512, 512, 16384), CHIP) if s.cluster_k > 1]
    tiles = {(s.block_m, s.block_n) for s in space}
    assert {(128, 128), (128, 256), (64, 256), (256, 128)} <= tiles
    assert {s.cluster_m * s.cluster_n for s in space if s.block_n >= 128} >= {1, 2}
    assert all(s.push for s in space if s.block_n > 64)


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_wide_sums_do_not_spill(layout: str, accumulate: str, tmp_path: Path) -> None:
    task = gemm(512, 512, 16384, layout=layout, accumulate=accumulate)
    schedules = [WIDE.model_copy(update={"splits": 4}), PUSHED.model_copy(update={"cluster_m": 2, "cluster_k": 5, "atoms": 2})]
    builder = Builder(CompileOptions(cache_dir=str(tmp_path)), CHIP)
    for _, built in builder.build([FAMILY.write(schedule, task) for schedule in schedules], task):
        assert isinstance(built, Built), built
        assert not built.inspection.warnings
        (kernel,) = built.inspection.kernels
        assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0)
