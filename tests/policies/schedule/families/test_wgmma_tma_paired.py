"""Rows of 8 bytes more than a multiple of 16: TMA reads pairs of them where they are, and no launch packs them."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.proving import TIERS, builder, failure, passed, prove

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
ONE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, group=2, paired_rows=True)
WIDE = ONE.model_copy(update={"consumers": 2, "block_n": 96, "stages": 4})
LOOPING = ONE.model_copy(update={"consumers": 2, "block_n": 160, "persistent": True})
TURNED = ONE.model_copy(update={"block_n": 48, "turned": True})
DIRECT = ONE.model_copy(update={"tma_store": False, "block_n": 32})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[WgmmaTmaSchedule, dict[str, object], GemmTask]] = {
    "both": (ONE, {}, gemm(66, 132, 196)),
    "both-panels": (ONE, {"block_k": 128, "stages": 2}, gemm(70, 68, 260, element="bf16")),
    "both-tn": (WIDE, {"cluster_m": 2}, gemm(258, 194, 204, layout="tn", element="bf16")),
    "both-tn-padded": (WIDE, {"block_n": 56, "cluster_m": 2}, gemm(134, 122, 140, layout="tn")),
    "both-nt": (WIDE, {"block_n": 224, "whole_groups": True, "stages": 2}, gemm(132, 260, 70, layout="nt")),
    "a-alone": (ONE, {"block_n": 16}, gemm(34, 72, 132)),
    "a-alone-nt": (ONE, {"block_k": 128, "stages": 2}, gemm(68, 136, 78, layout="nt")),
    "b-alone": (WIDE, {"cluster_n": 2}, gemm(129, 332, 136)),
    "b-alone-nt": (WIDE, {"cluster_m": 2}, gemm(128, 204, 130, layout="nt", accumulate="f16")),
    "shares-of-k": (WIDE, {"block_n": 80, "cluster_m": 2, "cluster_n": 2}, gemm(260, 164, 132)),
    "shares-of-k-nt": (ONE, {"cluster_n": 2, "cluster_m": 2}, gemm(132, 132, 132, layout="nt")),
    "narrow-groups": (ONE, {"block_n": 80}, gemm(64, 204, 68)),
    "narrow-panels": (ONE, {"block_n": 96, "block_k": 128, "stages": 2}, gemm(65, 100, 136)),
    "persistent": (LOOPING, {"raster": "snake_n"}, gemm(328, 396, 132, accumulate="f16")),
    "alternating": (LOOPING, {"pingpong": True, "atoms": 2, "block_n": 128, "stages": 4}, gemm(260, 516, 196)),
    "ahead": (LOOPING, {"stages": 4}, gemm(386, 324, 68)),
    "two-on-an-sm": (ONE, {"ctas_per_sm": 2}, gemm(130, 132, 68, layout="tn")),
    "turned": (TURNED, {}, gemm(38, 132, 196)),
    "turned-tn": (TURNED, {"consumers": 2, "cluster_m": 2}, gemm(38, 258, 196, layout="tn")),
    "turned-nt": (TURNED, {"block_n": 64}, gemm(76, 140, 78, layout="nt")),
    "turned-alternating": (
        TURNED,
        {"consumers": 2, "atoms": 2, "block_n": 112, "persistent": True, "pingpong": True, "stages": 4, "store_boxes": 1},
        gemm(242, 518, 76, layout="tn"),
    ),
    "turned-spread": (TURNED, {"splits": 2, "spread_sum": True, "tma_store": False}, gemm(38, 132, 404)),
    "turned-pushed": (TURNED, {"cluster_k": 2, "push": True, "tma_store": False}, gemm(46, 134, 404, layout="tn")),
    "odd-width": (ONE, {"block_n": 104}, gemm(66, 204, 196)),
    "odd-width-nt": (ONE, {"block_n": 40}, gemm(68, 76, 70, layout="nt")),
    "direct": (DIRECT, {}, gemm(66, 100, 132)),
    "direct-words": (DIRECT, {}, gemm(66, 102, 132, layout="tn")),
    "split": (ONE, {"splits": 2}, gemm(66, 132, 324)),
    "split-spread": (ONE, {"splits": 3, "spread_sum": True, "tma_store": False}, gemm(66, 68, 404)),
    "split-spread-words": (ONE, {"splits": 2, "spread_sum": True, "tma_store": False}, gemm(66, 70, 204, layout="tn")),
    "split-tail": (ONE, {"splits": 2, "split_tail": True, "persistent": True}, gemm(194, 132, 260)),
    "cluster-sum": (DIRECT, {"cluster_k": 2, "stages": 4}, gemm(66, 100, 324)),
    "cluster-sum-words": (DIRECT, {"cluster_k": 2, "stages": 4}, gemm(66, 98, 324, layout="tn")),
    "pushed": (DIRECT, {"cluster_k": 2, "push": True, "stages": 5}, gemm(66, 100, 324)),
    "pushed-split": (DIRECT, {"cluster_k": 2, "push": True, "splits": 2}, gemm(66, 100, 452)),
    "constants": (ONE, {"constant_shape": True}, gemm(66, 132, 196)),
    "few": (ONE, {"block_n": 8}, gemm(2, 2, 12, layout="tn")),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(
    compiler: PtxCompiler, schedule: WgmmaTmaSchedule, change: dict[str, object], task: GemmTask
) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(schedule.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=16)
    assert trial.faults() == []


@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
def test_it_is_proved_in_full(layout: str, tmp_path: Path) -> None:
    task = gemm(132, 68, 140, layout=layout)
    candidate = FAMILY.write(WIDE.model_copy(update={"block_n": 32}), task)
    tiers, _ = passed(prove(builder(tmp_path)(candidate.source, candidate.plan, task), task))
    assert tiers == TIERS | {"programmatic"}


def test_what_rows_of_even_number_have_behind_k_is_cleared(tmp_path: Path) -> None:
    """It is the beginning of the next row: an infinity there times the other operand's zero is no number."""
    task = gemm(132, 68, 140, layout="tn")
    candidate = FAMILY.write(WIDE.model_copy(update={"block_n": 32}), task)
    clearing = "        if (ends) clear_behind<BLOCK_M, BLOCK_M * 128>(stage, k - block * BLOCK_K);\n"
    assert clearing in candidate.source
    answer = prove(builder(tmp_path)(candidate.source.replace(clearing, ""), candidate.plan, task), task)
    assert failure(answer).name in {"nonfinite", "zero-times"}


@pytest.mark.parametrize(
    ("task", "maps"),
    [
        (gemm(64, 64, 68), [("A", (72, 2, 32), (64, 136), 0), ("B", (), (), 0), ("A", (72, 32), (136,), 128)]),
        (gemm(64, 68, 64), [("A", (), (), 0), ("B", (72, 2, 32), (64, 136), 0), ("B", (72, 32), (136,), 128)]),
    ],
    ids=["a", "b"],
)
def test_one_map_holds_both_rows_of_a_pair_and_one_those_of_odd_number(
    task: GemmTask, maps: list[tuple[str, tuple[int, ...], tuple[int, ...], int]]
) -> None:
    plan = resolve(FAMILY.write(ONE, task).plan, task, LIMITS[task.arch], CHIP.sms)
    (launch,) = plan.launches
    found = [arg.tensor_map for arg in launch.args if isinstance(arg, TensorMapArg) and arg.tensor_map.of != "D"]
    assert [(spec.of, spec.dims, spec.strides, spec.offset_bytes) for spec in found] == maps
    assert plan.workspace_bytes == 0


@pytest.mark.parametrize(
    ("task", "change"),
    [
        (gemm(64, 64, 64), {}),  # nothing to pack
        (gemm(64, 64, 66), {}),
        (gemm(64, 66, 68), {}),  # A alone could be read so
        (gemm(65, 64, 68), {}),  # the last row has no partner
        (gemm(64, 64, 4), {}),  # from a row to 8 bytes before the next is nothing
        (gemm(66, 68, 63, layout="nt"), {}),
        (gemm(64, 64, 68), {"evict_a": "first"}),
        (gemm(64, 64, 68), {"evict_b": "last"}),
        (gemm(64, 64, 68), {"self_fed": True}),
    ],
)
def test_what_it_is_not_for_is_refused(task: GemmTask, change: dict[str, object]) -> None:
    assert any("paired_rows" in reason for reason in FAMILY.violations(ONE.model_copy(update=change), task))


def test_the_space_has_both_ways_and_the_prior_tells_them_apart() -> None:
    task = gemm(588, 556, 468, layout="tn")
    space = list(FAMILY.space(task, CHIP))[::29]
    works = {paired: [FAMILY.work(s, task, CHIP) for s in space if s.paired_rows is paired] for paired in (False, True)}
    assert {work.launches for work in works[False]} == {2}
    assert {work.launches for work in works[True]} == {1}
    pair, alone = ONE, ONE.model_copy(update={"paired_rows": False})
    assert FAMILY.work(pair, task, CHIP).loaded_bytes > FAMILY.work(alone, task, CHIP).loaded_bytes
    assert FAMILY.work(pair, task, CHIP).smem_read_bytes == FAMILY.work(alone, task, CHIP).smem_read_bytes + 3 * 64 * 64 * 2
    assert FAMILY.unmeasured(pair, task)
    for schedule in [s for s in space if s.paired_rows][::20]:
        resolve(FAMILY.write(schedule, task).plan, task, LIMITS[task.arch], CHIP.sms)


def test_products_whose_rows_cannot_be_paired_have_the_space_of_before() -> None:
    for task in (gemm(200, 136, 264), gemm(201, 135, 263), gemm(65, 64, 68)):
        assert not any(schedule.paired_rows for schedule in FAMILY.space(task, CHIP))
