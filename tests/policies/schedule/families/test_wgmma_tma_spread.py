"""Split-K of the wgmma_tma family where every CTA adds a share of its tile: right at every edge, only where all CTAs run."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms, cluster_sms_expression
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, workspace_bytes
from cudal2_agent.sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = WgmmaTma()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
SMALL = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, splits=2, tma_store=False, spread_sum=True)
WIDE = SMALL.model_copy(update={"consumers": 2, "block_n": 128, "stages": 6, "splits": 8})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


@pytest.mark.parametrize(
    ("change", "task"),
    [
        ({}, gemm(136, 72, 328, layout="tn")),
        ({"splits": 3, "consumers": 2, "block_n": 48}, gemm(200, 104, 456)),
        ({"splits": 5, "cluster_m": 2, "block_n": 96, "atoms": 2}, gemm(200, 104, 712, layout="tn", element="bf16")),
        ({"splits": 8, "cluster_n": 2, "block_n": 128, "consumers": 2}, gemm(136, 264, 520, accumulate="f16")),
        ({"splits": 12, "block_n": 32, "ctas_per_sm": 2}, gemm(64, 32, 776)),
        ({"block_n": 256, "consumers": 2}, gemm(72, 264, 200, layout="tn")),
        ({"splits": 3, "push": True, "cluster_k": 2}, gemm(72, 136, 456)),
        ({"splits": 4, "push": True, "cluster_k": 3, "cluster_m": 2, "block_n": 32}, gemm(136, 40, 840, layout="tn")),
    ],
    ids=["halves", "uneven", "multicast-b", "multicast-a", "more-than-units", "read-back", "pushed", "pushed-multicast"],
)
def test_shares_of_every_tile_are_right(compiler: PtxCompiler, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(SMALL.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=132)
    assert trial.faults() == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"splits": 1}, "no sum"),
        ({"splits": 16}, "256 CTAs on 132 SMs"),
        ({"persistent": True}, "CTAs that have several tiles"),
        ({"tma_store": True}, "shares are stored straight from registers"),
        ({"cluster_k": 2, "splits": 4}, "sums are pulled"),
        ({"cluster_k": 4, "splits": 2, "push": True}, "clusters of 4 fit on 120 SMs"),
    ],
)
def test_sums_that_cannot_be_spread_are_refused(change: dict[str, object], why: str) -> None:
    task = gemm(512, 512, 16384)
    assert FAMILY.violation(WIDE, task) is None
    assert FAMILY.violation(WIDE.model_copy(update=change), task), why


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_plan_requires_that_all_ctas_run_together(cluster: int) -> None:
    task = gemm(512, 512, 16384)
    schedule = WIDE.model_copy(update={"cluster_m": cluster})
    plan = FAMILY.write(schedule, task).plan
    resolved = resolve(plan, task, LIMITS[task.arch], sms=128)
    assert resolved.launches[0].grid == (128, 1, 1)
    assert resolved.workspace_bytes == workspace_bytes(schedule, task) == 16 * 128 + 128 * 128 * 128 * 4
    with pytest.raises(PlanError, match="plan requires"):
        resolve(plan, task, LIMITS[task.arch], sms=127)
    with pytest.raises(PlanError, match="plan requires"):
        resolve(plan, gemm(520, 512, 16384), LIMITS[task.arch], sms=132)


@pytest.mark.parametrize("cluster", range(1, 17))
@pytest.mark.parametrize("sms", [132, 114, 78])
def test_the_expression_counts_the_sms_of_clusters(cluster: int, sms: int) -> None:
    from cudal2_agent.contract.plan.expression import evaluate

    chip = CHIP.model_copy(update={"sms": sms})
    assert evaluate(cluster_sms_expression(cluster), {"SMS": sms}) == cluster_sms(chip, cluster)


def test_both_ways_to_sum_are_searched_where_one_turn_suffices() -> None:
    task = gemm(512, 512, 16384)
    space = set(FAMILY.space(task, CHIP))
    spread = [s for s in space if s.spread_sum]
    assert {s.push for s in spread} == {False, True}
    assert {s.cluster_m for s in spread} >= {1, 2}
    for s in spread:
        alone = s.model_copy(update={"spread_sum": False, "tma_store": not s.push})
        assert alone in space
        assert FAMILY.work(s, task, CHIP) == FAMILY.work(alone, task, CHIP).model_copy(
            update={"spread_sums": True, "staged_bytes": 0, "store_lines": 0}
        )


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_shares_do_not_spill(layout: str, tmp_path: Path) -> None:
    task = gemm(256, 512, 16384, layout=layout)
    changes = [{"block_n": 256, "stages": 4, "splits": 2}, {"cluster_m": 2, "splits": 3}]
    builder = Builder(CompileOptions(cache_dir=str(tmp_path)), CHIP)
    for _, built in builder.build([FAMILY.write(WIDE.model_copy(update=change), task) for change in changes], task):
        assert isinstance(built, Built), built
        assert not built.inspection.warnings
        (kernel,) = built.inspection.kernels
        assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0)
