"""Split-K of the mma_sync family where every CTA adds a share of its tile: right at every edge, only where all CTAs run."""

from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.mma_sync.geometry import Geometry
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = MmaSync()
CHIP = REFERENCE_CHIPS[Arch.SM_80]
SPREAD = MmaSyncSchedule(
    block_m=32,
    block_n=64,
    block_k=32,
    warps_m=1,
    warps_n=2,
    stages=2,
    split_k=4,
    reduction="workspace",
    epilogue="direct",
    spread_sum=True,
)
ALONE = SPREAD.model_copy(update={"spread_sum": False})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_80, **fields})


PROVED: dict[str, tuple[dict[str, object], GemmTask]] = {
    "whole": ({}, gemm(64, 128, 256)),
    "ragged": ({"constant_shape": True}, gemm(45, 70, 300, layout="tn", arch=Arch.SM_86)),
    "slices": ({"warps_k": 2}, gemm(40, 72, 301, layout="nt", element="bf16", arch=Arch.SM_89)),
    "more-ctas-than-units": ({"split_k": 12, "block_n": 16, "warps_n": 1}, gemm(20, 24, 760)),
    "odd-rows": ({"split_k": 5, "constant_shape": True}, gemm(37, 51, 311, accumulate="f16")),
    "many-units": ({"block_m": 64, "block_n": 128, "warps_m": 2}, gemm(72, 136, 296, layout="tn")),
    "programmatic": ({"programmatic": True}, gemm(45, 70, 300, arch=Arch.SM_90A)),
}


@pytest.mark.parametrize(("change", "task"), PROVED.values(), ids=PROVED.keys())
def test_shares_of_every_tile_are_right(compiler: PtxCompiler, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(SPREAD.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=84)
    assert trial.faults() == []


@pytest.mark.parametrize("change", [{}, {"warps_k": 2, "split_k": 6}], ids=["four", "six-of-slices"])
def test_shares_are_added_in_one_order(compiler: PtxCompiler, change: dict[str, object]) -> None:
    """Bit for bit as by one CTA, whoever comes first."""
    from tests.sandbox.emulator.trial import Trial, interleavings

    task, found = gemm(40, 72, 488), []
    for schedule in (SPREAD, ALONE):
        candidate = FAMILY.write(schedule.model_copy(update=change), task)
        trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=84)
        found += [trial.output(conditions).view(np.uint16) for conditions in interleavings(3)]
    assert all(np.array_equal(found[0], one) for one in found[1:])


@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_86, Arch.SM_89])
@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
def test_shares_do_not_spill(arch: Arch, layout: str, tmp_path: Path) -> None:
    task = gemm(64, 512, 2048, arch=arch, layout=layout)
    wide = SPREAD.model_copy(update={"block_m": 64, "block_n": 128, "warps_m": 2, "split_k": 16})
    built = Builder(CompileOptions(cache_dir=str(tmp_path)), REFERENCE_CHIPS[arch]).build_one(FAMILY.write(wide, task), task)
    assert isinstance(built, Built), built
    assert not built.inspection.warnings
    (kernel,) = built.inspection.kernels
    assert kernel.spill_store_bytes == kernel.stack_bytes == 0


def test_the_plan_requires_that_all_ctas_run_together() -> None:
    task, limits = gemm(64, 128, 4096), LIMITS[Arch.SM_80]
    schedule = SPREAD.model_copy(update={"split_k": 32, "min_ctas": 2})
    plan = FAMILY.write(schedule, task).plan
    resolved = resolve(plan, task, limits, sms=64)
    assert resolved.launches[0].grid == (128, 1, 1)
    assert (resolved.zero, resolved.zero_bytes) == ("restored", 4 * 128)
    assert resolved.workspace_bytes == Geometry(schedule, task).workspace_bytes == 4 * 128 + 128 * 32 * 64 * 4
    with pytest.raises(PlanError, match="plan requires"):
        resolve(plan, task, limits, sms=63)
    assert "all CTAs at once" in (FAMILY.violation(schedule.model_copy(update={"min_ctas": 1}), task) or "")


@pytest.mark.parametrize("change", [{"epilogue": "staged"}, {"reduction": "cluster"}, {"split_k": 1, "reduction": "none"}])
def test_shares_need_a_workspace_and_direct_stores(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="spread_sum"):
        FAMILY.parse(SPREAD.values() | change)


def test_both_ways_to_sum_are_searched_where_there_are_no_clusters() -> None:
    task = gemm(128, 128, 4096)
    spread = [s for s in FAMILY.space(task, CHIP) if s.spread_sum]
    assert {s.min_ctas for s in spread} == {1, 2}
    assert all(Geometry(s, task).ctas <= CHIP.sms * s.min_ctas for s in spread)
    for s in spread[:50]:
        alone = FAMILY.work(s.model_copy(update={"spread_sum": False}), task, CHIP)
        assert FAMILY.work(s, task, CHIP) == alone.model_copy(update={"spread_sums": True})
    newer = gemm(100, 70, 4097, arch=Arch.SM_90A)
    assert not any(s.spread_sum for s in FAMILY.space(newer, REFERENCE_CHIPS[Arch.SM_90A]))


def test_values_of_before_are_the_schedule_without_shares() -> None:
    values = {axis: value for axis, value in ALONE.values().items() if axis != "spread_sum"}
    task = gemm(64, 128, 256)
    assert FAMILY.parse(values) == ALONE
    assert "meet_resident" not in FAMILY.write(ALONE, task).source
    assert "meet_resident" in FAMILY.write(SPREAD, task).source
    assert (FAMILY.unmeasured(SPREAD, task), FAMILY.unmeasured(ALONE, task)) == (True, False)
