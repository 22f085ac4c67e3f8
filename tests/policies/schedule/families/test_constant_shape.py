"""Sizes compiled in: the kernel is right and runs at no other size. At a smaller size its schedule is written for that size."""

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families, rewrite
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.sandbox.emulator.large.coverage import needs_rewriting, reduced_task
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
ONE = WgmmaTmaSchedule(consumers=2, atoms=1, block_n=64, block_k=64, stages=3, constant_shape=True)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[dict[str, object], GemmTask]] = {
    "tiles-at-the-edge": ({}, gemm(200, 136, 200)),
    "persistent-pairs": ({"persistent": True, "cluster_m": 2}, gemm(520, 264, 136, element="bf16")),
    "parts-of-k": ({"splits": 3}, gemm(136, 72, 520, layout="tn")),
    "turned": ({"turned": True, "block_n": 48}, gemm(40, 392, 264, layout="nt")),
    "packed": ({}, gemm(131, 67, 101)),
}


@pytest.mark.parametrize(("change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(compiler: PtxCompiler, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(ONE.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=4)
    assert trial.faults() == []


@pytest.mark.parametrize("other", [gemm(2048, 1024, 520), gemm(2048, 1032, 512), gemm(2056, 1024, 512)], ids=["k", "n", "m"])
def test_its_plan_refuses_another_size(other: GemmTask) -> None:
    candidate = FAMILY.write(ONE, gemm(2048, 1024, 512))
    with pytest.raises(PlanError, match="=="):
        resolve(candidate.plan, other, LIMITS[Arch.SM_90A], 132)


@pytest.mark.parametrize("turned", [False, True])
def test_at_a_smaller_size_the_schedule_is_written_for_that_size(turned: bool) -> None:
    task = gemm(4096, 2048, 1024)
    candidate = FAMILY.write(ONE.model_copy(update={"turned": turned}), task)
    smaller = reduced_task(task, candidate.plan)
    assert smaller is not None
    assert needs_rewriting(candidate, task, smaller)
    rewritten = rewrite(candidate, smaller)
    assert rewritten is not None
    rows, columns = (smaller.n, smaller.m) if turned else (smaller.m, smaller.n)
    for line in (f"kSizeM = {rows};", f"kSizeN = {columns};", f"kSizeK = {smaller.k};"):
        assert line in rewritten.source
    assert f"M=={smaller.m}" in rewritten.plan.requires


def test_without_it_no_size_stands_in_the_source() -> None:
    candidate = FAMILY.write(ONE.model_copy(update={"constant_shape": False}), gemm(4096, 2048, 1024))
    assert "kSize" not in candidate.source
    assert "4096" not in candidate.source
