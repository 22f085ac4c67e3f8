"""The wgmma_tma family's orders of tiles, cache policies and launches: right at every edge, and searched where they matter."""

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, workspace_bytes
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = WgmmaTma()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
PLAIN = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, group=2, persistent=True)
CACHED = PLAIN.model_copy(update={"evict_a": "last", "evict_b": "first", "evict_d": "first", "promotion": 128})
ORDERS = ("m", "n", "snake_m", "snake_n")
DRAWN = (
    (PLAIN.model_copy(update={"raster": "n", "cluster_m": 2}), "tn"),
    (PLAIN.model_copy(update={"raster": "snake_m", "cluster_n": 2}), "nn"),
    (PLAIN.model_copy(update={"raster": "snake_n", "consumers": 2, "pingpong": True}), "nn"),
    (PLAIN.model_copy(update={"raster": "snake_m", "persistent": False, "tma_store": False, "splits": 2}), "tn"),
    (CACHED, "nn"),
    (CACHED.model_copy(update={"cluster_m": 2, "cluster_n": 2, "raster": "n", "programmatic": False}), "tn"),
)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


@pytest.mark.parametrize(("schedule", "layout"), DRAWN)
def test_every_tile_is_right_in_every_order(compiler: PtxCompiler, schedule: WgmmaTmaSchedule, layout: str) -> None:
    """Odd numbers of tiles both ways, so that the last group is narrower and the last cluster hangs over."""
    from tests.sandbox.emulator.trial import Trial

    task = gemm(328, 328, 200, layout=layout)
    candidate = FAMILY.write(schedule, task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=4)
    assert trial.faults() == []


@pytest.mark.parametrize(
    ("change", "sms"),
    [
        ({}, 5),
        ({"cluster_m": 2, "splits": 3}, 8),
        ({"tma_store": False, "raster": "snake_n"}, 7),
        ({"consumers": 2, "stages": 4}, 4),
    ],
    ids=["one-left", "clusters", "direct", "none-left"],
)
def test_the_tiles_of_the_last_turn_are_split(compiler: PtxCompiler, change: dict[str, object], sms: int) -> None:
    """36 tiles of 64x64, 18 pairs of them, or 18 tiles of 128x64."""
    from tests.sandbox.emulator.trial import Trial

    task = gemm(328, 328, 200, layout="tn")
    schedule = PLAIN.model_copy(update={"splits": 2, "split_tail": True, **change})
    candidate = FAMILY.write(schedule, task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms)
    assert trial.faults() == []


def test_only_the_tail_is_written_as_partial_sums() -> None:
    """300 tiles are 150 pairs for 66 clusters, of which 18 are left after two turns."""
    tail = PLAIN.model_copy(update={"consumers": 2, "block_n": 128, "cluster_m": 2, "splits": 3, "split_tail": True})
    task = gemm(12800, 384, 4096)
    plan = resolve(FAMILY.write(tail, task).plan, task, LIMITS[task.arch], CHIP.sms)
    assert plan.launches[0].grid == (132, 1, 1)
    assert plan.workspace_bytes == workspace_bytes(tail, task) == 768 + 132 * 3 * 128 * 128 * 4
    assert FAMILY.work(tail, task, CHIP).reduced_bytes == 2 * 18 * 2 * 3 * 128 * 128 * 4
    assert FAMILY.violation(tail.model_copy(update={"persistent": False}), task)
    assert FAMILY.violation(tail.model_copy(update={"splits": 1}), task)


def test_a_tail_is_split_where_that_fills_its_turn() -> None:
    """192 tiles of 128x256 are 96 pairs for 66 clusters: of the 30 that are left, two halves each fit a turn."""
    tails = [s for s in FAMILY.space(gemm(12288, 512, 4096), CHIP) if s.split_tail and (s.block_m, s.block_n) == (128, 256)]
    assert {(s.cluster, s.splits) for s in tails} == {(1, 2), (2, 2)}


def test_what_is_not_asked_for_leaves_the_text_as_it_was() -> None:
    task = gemm(512, 512, 512)
    plain, cached = FAMILY.write(PLAIN, task).source, FAMILY.write(CACHED, task).source
    assert not any(word in plain for word in ("l2_policy", "ordered_raster", "kEviction", "kSnake"))
    assert [cached.count(f"<kEviction{name}>(") for name in "ABD"] == [1, 2, 1]


def test_the_plan_promotes_loads_of_both_operands() -> None:
    (launch,) = FAMILY.write(CACHED, gemm(512, 512, 512)).plan.launches
    assert [arg.tensor_map.l2 for arg in launch.args if isinstance(arg, TensorMapArg)] == [128, 128, 128]


def test_an_eviction_of_stores_needs_tma() -> None:
    direct = CACHED.model_copy(update={"tma_store": False})
    assert FAMILY.violation(direct, gemm(512, 512, 512))
    assert not FAMILY.violation(direct.model_copy(update={"evict_d": "normal"}), gemm(512, 512, 512))


def test_orders_are_searched_for_several_waves_and_launches_for_large_tasks() -> None:
    small, wide, large = (
        list(FAMILY.space(gemm(*shape), CHIP)) for shape in ((128, 128, 512), (4096, 2048, 1024), (8192,) * 3)
    )
    assert {s.raster for s in small} == {"m"}
    assert {s.raster for s in wide} == set(ORDERS)
    assert {s.programmatic for s in wide} == {True}
    assert {s.programmatic for s in large} == {True, False}
    assert {s.evict_d for s in large} == {"normal", "first"}
