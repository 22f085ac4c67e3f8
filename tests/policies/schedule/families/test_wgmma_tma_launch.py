"""The wgmma_tma family's orders of tiles, cache policies and launches: right at every edge, and searched where they matter."""

import pytest

from contract.chip import REFERENCE_CHIPS
from contract.plan import TensorMapArg
from contract.task import Arch, GemmTask
from policies.schedule.families.wgmma_tma.family import WgmmaTma
from policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
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


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> PtxCompiler:
    pytest.importorskip("sandbox.emulator._core")
    assert request.config.cache is not None
    return PtxCompiler(request.config.cache.mkdir("emulator-ptx"))


@pytest.mark.parametrize(("schedule", "layout"), DRAWN)
def test_every_tile_is_right_in_every_order(compiler: PtxCompiler, schedule: WgmmaTmaSchedule, layout: str) -> None:
    """Odd numbers of tiles both ways, so that the last group is narrower and the last cluster hangs over."""
    from tests.sandbox.emulator.trial import Trial, schedules

    task = gemm(328, 328, 200, layout=layout)
    candidate = FAMILY.write(schedule, task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=4)
    assert [verdict for conditions in schedules(1) if (verdict := trial.verdict(conditions))] == []


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
    small, wide, large = (list(FAMILY.space(gemm(*shape), CHIP)) for shape in ((128, 128, 512), (4096, 2048, 512), (8192,) * 3))
    assert {s.raster for s in small} == {"m"}
    assert {s.raster for s in wide} == set(ORDERS)
    assert {s.programmatic for s in wide} == {True}
    assert {s.programmatic for s in large} == {True, False}
    assert {s.evict_d for s in large} == {"normal", "first"}
