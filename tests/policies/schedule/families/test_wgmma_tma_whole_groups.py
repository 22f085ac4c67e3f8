"""Whole groups: a row-major B is loaded in groups of 64 columns, also where no 64 divides the width of the tile."""

import pytest

from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
ONE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=80, block_k=64, stages=3, whole_groups=True)
ALTERNATING = ONE.model_copy(
    update={"consumers": 2, "atoms": 2, "block_n": 176, "persistent": True, "pingpong": True, "stages": 4}
)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[WgmmaTmaSchedule, dict[str, object], GemmTask]] = {
    "one-tile": (ONE, {}, gemm(72, 136, 200)),
    "slices-of-groups": (ONE, {"block_n": 112, "cluster_m": 2}, gemm(200, 264, 136, element="bf16")),
    "slices-along-k": (ONE, {"block_n": 176, "cluster_m": 2, "stages": 2}, gemm(200, 360, 72)),
    "nt": (ONE, {"block_n": 96}, gemm(136, 200, 77, layout="nt", accumulate="f16")),
    "alternating": (ALTERNATING, {}, gemm(392, 552, 72)),
    "alternating-pairs": (ALTERNATING, {"block_n": 144, "cluster_n": 2}, gemm(264, 600, 72)),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(
    compiler: PtxCompiler, schedule: WgmmaTmaSchedule, change: dict[str, object], task: GemmTask
) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(schedule.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=4)
    assert trial.faults() == []


@pytest.mark.parametrize(
    ("change", "layout"), [({"block_n": 128}, "nn"), ({"block_n": 48}, "nn"), ({}, "tn")], ids=["whole", "one-group", "tn"]
)
def test_where_there_is_no_group_to_complete_they_are_refused(change: dict[str, object], layout: str) -> None:
    assert FAMILY.violation(ONE, gemm(512, 512, 512)) is None
    assert FAMILY.violation(ONE.model_copy(update=change), gemm(512, 512, 512, layout=layout))


def test_a_stage_holds_the_columns_beside_the_tile_too() -> None:
    assert ALTERNATING.stage_bytes == 2 * 64 * (128 + 192)
    assert ALTERNATING.model_copy(update={"whole_groups": False}).stage_bytes == 2 * 64 * (128 + 176)
