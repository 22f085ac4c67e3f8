"""The mma_sync family: its space holds only runnable schedules, its sources compile, and its plan states their requirements."""

import random
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.mma_sync.geometry import Geometry, copy_width
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.sandbox.building.builder import Builder

FAMILY = MmaSync()
SHAPES = [(4096, 1024, 512), (64, 64, 64), (128, 128, 16384), (1000, 1000, 1000), (1001, 999, 777), (1, 1, 1), (7, 8192, 3)]
LEFT_TO_WGMMA = [(4096, 1024, 512), (128, 128, 16384), (1000, 1000, 1000)]  # rows of whole 16 bytes and longer K
PLAIN: dict[str, Any] = {"block_m": 64, "block_n": 64, "block_k": 32, "warps_m": 2, "warps_n": 2, "stages": 3}
SPLIT = PLAIN | {"split_k": 4, "reduction": "workspace"}
CLUSTER = PLAIN | {"split_k": 4, "reduction": "cluster", "epilogue": "direct"}


def task(shape: tuple[int, int, int] = (4096, 1024, 512), **fields: object) -> GemmTask:
    m, n, k = shape
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A])
def test_every_schedule_of_the_space_can_be_written_and_launched(shape: tuple[int, int, int], arch: Arch) -> None:
    wanted = task(shape, arch=arch)
    chip = REFERENCE_CHIPS[arch]
    space = list(FAMILY.space(wanted, chip))
    assert bool(space) is not (arch is Arch.SM_90A and shape in LEFT_TO_WGMMA)
    assert len({frozenset(schedule.values().items()) for schedule in space}) == len(space)
    for schedule in random.Random(0).sample(space, min(30, len(space))):
        candidate = FAMILY.write(schedule, wanted)
        plan = resolve(candidate.plan, wanted, LIMITS[arch], chip.sms)
        geometry = Geometry(schedule, wanted)
        assert plan.workspace_bytes == geometry.workspace_bytes
        assert plan.launches[0].grid == (geometry.ctas, 1, 1)
        assert plan.launches[0].block == (geometry.threads, 1, 1)
        assert parse_plan(candidate.source) == candidate.plan
        assert FAMILY.parse(candidate.origin.schedule or {}) == schedule
        assert FAMILY.write(schedule, wanted).id == candidate.id


@pytest.mark.parametrize(
    ("arch", "shape", "fields"),
    [
        (Arch.SM_80, (512, 512, 512), {}),
        (Arch.SM_86, (130, 90, 4098), {"accumulate": AccumulatorType.F16}),
        (Arch.SM_86, (130, 90, 4098), {"layout": Layout.NT}),
        (Arch.SM_89, (257, 321, 515), {"layout": Layout.TN}),
        (Arch.SM_90A, (128, 128, 128), {"element": ElementType.BF16, "layout": Layout.TN}),
        (Arch.SM_90A, (130, 90, 4098), {"accumulate": AccumulatorType.F16}),
        (Arch.SM_100A, (64, 64, 64), {"element": ElementType.BF16}),
    ],
)
def test_what_is_written_compiles_for_every_chip(
    arch: Arch, shape: tuple[int, int, int], fields: dict[str, object], tmp_path: Path
) -> None:
    wanted, chip = task(shape, arch=arch, **fields), REFERENCE_CHIPS[arch]
    (schedule,) = random.Random(arch.number).sample(list(FAMILY.space(wanted, chip)), 1)
    built = Builder(CompileOptions(cache_dir=str(tmp_path)), chip).build_one(FAMILY.write(schedule, wanted), wanted)
    assert isinstance(built, Built), (schedule.values(), built)
    assert built.inspection.accumulators == (wanted.accumulate,)
    assert not built.inspection.warnings


@pytest.mark.parametrize(
    "axes",
    [
        PLAIN | {"block_m": 128, "block_n": 128, "stages": 4, "group_m": 8},
        PLAIN | {"block_m": 128, "block_n": 128, "warps_n": 4, "min_ctas": 2},
        PLAIN | {"block_m": 256, "block_n": 128, "warps_m": 4, "block_k": 64},
    ],
)
@pytest.mark.parametrize("layout", list(Layout))
def test_large_tiles_do_not_spill(axes: dict[str, Any], layout: Layout, tmp_path: Path) -> None:
    wanted = task((4096, 4096, 4096), layout=layout, arch=Arch.SM_80)
    builder = Builder(CompileOptions(cache_dir=str(tmp_path)), REFERENCE_CHIPS[Arch.SM_80])
    built = builder.build_one(FAMILY.write(FAMILY.parse(axes), wanted), wanted)
    assert isinstance(built, Built), built
    (kernel,) = built.inspection.kernels
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0)
    assert kernel.ctas_per_sm >= axes.get("min_ctas", 1)


@pytest.mark.parametrize(
    ("axes", "shape", "why"),
    [
        (PLAIN | {"stages": 17}, (64, 64, 512), "more stages"),
        (PLAIN | {"stages": 1}, (64, 64, 64), "one stage"),
        (PLAIN | {"block_m": 128, "block_n": 128, "block_k": 128, "stages": 4}, (128, 128, 512), "shared memory"),
        (PLAIN | {"block_m": 256, "block_n": 256}, (256, 256, 256), "spill"),
        (PLAIN | {"min_ctas": 32}, (64, 64, 128), "spill|do not fit"),
        (SPLIT | {"split_k": 5}, (64, 64, 128), "nothing to sum|more stages"),
        (CLUSTER | {"split_k": 16}, (64, 64, 4096), "cluster"),
        (PLAIN, (64, 63, 128), "wide stores"),
    ],
)
def test_a_schedule_that_breaks_a_limit_is_not_written(axes: dict[str, Any], shape: tuple[int, int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FAMILY.write(FAMILY.parse(axes), task(shape))


def test_what_only_newer_chips_have_is_not_written_for_older_ones() -> None:
    for axes, why in ((CLUSTER, "cluster"), (PLAIN | {"programmatic": True}, "programmatic")):
        FAMILY.write(FAMILY.parse(axes), task((64, 64, 4096), arch=Arch.SM_90A))
        with pytest.raises(ValueError, match=why):
            FAMILY.write(FAMILY.parse(axes), task((64, 64, 4096), arch=Arch.SM_80))


@pytest.mark.parametrize(
    "change",
    [
        {"block_m": 0},
        {"block_m": 40},
        {"warps_n": 8},
        {"warps_k": 4},
        {"block_k": 48},
        {"block_k": "32"},
        {"split_k": 2},
        {"reduction": "workspace"},
        {"reduction": "atomic"},
        {"split_k": 2, "reduction": "cluster"},
        {"stages": True},
        {"family": "wgmma_tma"},
        {"unknown": 1},
    ],
)
def test_values_that_are_no_schedule_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mma_sync schedule"):
        FAMILY.parse(PLAIN | change)


def test_the_plan_refuses_shapes_the_text_was_not_written_for() -> None:
    aligned = FAMILY.write(FAMILY.parse(PLAIN), task((128, 128, 128))).plan
    limits, other = LIMITS[Arch.SM_90A], task((256, 192, 96))
    assert resolve(aligned, other, limits, 132).launches[0].grid == (12, 1, 1)
    for shape in ((120, 128, 128), (128, 120, 128), (128, 128, 120)):
        with pytest.raises(PlanError, match="requires"):
            resolve(aligned, task(shape), limits, 132)
    baked = FAMILY.write(FAMILY.parse(PLAIN | {"constant_shape": True}), task((128, 128, 128))).plan
    with pytest.raises(PlanError, match="requires"):
        resolve(baked, other, limits, 132)
    split = FAMILY.write(FAMILY.parse(SPLIT), task((128, 128, 512))).plan
    with pytest.raises(PlanError, match="requires"):
        resolve(split, task((128, 128, 64)), limits, 132)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_a_cluster_that_stores_eight_elements_refuses_rows_that_are_no_multiple(layout: str) -> None:
    """Written for 136 columns, whose tiles reach past the edge, so that only the width of a store limits N."""
    limits = LIMITS[Arch.SM_90A]
    plan = FAMILY.write(FAMILY.parse(CLUSTER), task((128, 136, 512), layout=layout, arch=Arch.SM_90A)).plan
    assert resolve(plan, task((128, 200, 512), layout=layout, arch=Arch.SM_90A), limits, 132)
    for columns in (130, 132, 201):
        with pytest.raises(PlanError, match="requires"):
            resolve(plan, task((128, columns, 512), layout=layout, arch=Arch.SM_90A), limits, 132)


def test_a_text_for_odd_rows_suits_every_shape() -> None:
    plan = FAMILY.write(FAMILY.parse(PLAIN | {"epilogue": "direct"}), task((101, 99, 97))).plan
    for shape in ((1, 1, 1), (128, 128, 128), (65, 2, 4097)):
        tiles = -(-shape[0] // 64) * -(-shape[1] // 64)
        assert resolve(plan, task(shape), LIMITS[Arch.SM_90A], 132).launches[0].grid == (tiles, 1, 1)


def test_only_the_counters_of_a_split_must_start_zero() -> None:
    plan = resolve(FAMILY.write(FAMILY.parse(SPLIT), task((129, 64, 512))).plan, task((129, 64, 512)), LIMITS[Arch.SM_90A], 132)
    assert plan.zero == "restored"
    assert plan.zero_bytes == 16  # three tiles
    assert plan.workspace_bytes == 16 + 3 * 4 * 64 * 64 * 4


@pytest.mark.parametrize(("columns", "width"), [(64, 8), (100, 4), (102, 2), (101, 1), (1, 1), (8, 8)])
def test_copies_are_as_wide_as_rows_are_aligned(columns: int, width: int) -> None:
    assert copy_width(columns) == width


@pytest.mark.parametrize(
    ("k", "lines"),
    [
        (
            96,
            [
                "load_tile<BLOCK_M, BLOCK_K, kVectorA, kGuardA>(",
                "constexpr int kVectorA = 8;",
                "constexpr bool kGuardA = false;",
            ],
        ),
        (
            100,
            [
                "load_tile<BLOCK_M, BLOCK_K, kVectorA, kGuardA>(",
                "constexpr int kVectorA = 4;",
                "constexpr bool kGuardA = true;",
            ],
        ),
        (101, ["load_tile_odd<BLOCK_M, BLOCK_K>("]),
    ],
)
def test_the_text_copies_a_as_its_rows_allow(k: int, lines: list[str]) -> None:
    source = FAMILY.write(FAMILY.parse(PLAIN), task((64, 64, k))).source
    assert all(source.count(line) == 1 for line in lines), source
    assert ("kVectorA" in source) == (k % 2 == 0)


def test_work_counts_ctas_and_bytes() -> None:
    wanted = task((100, 128, 1000))
    work = FAMILY.work(MmaSyncSchedule(**SPLIT), wanted, REFERENCE_CHIPS[Arch.SM_90A])
    assert (work.ctas, work.k_blocks) == (2 * 2 * 4, 8)
    assert work.loaded_bytes == 16 * 8 * 2 * 32 * (64 + 64)
    assert work.reduced_bytes == 2 * 16 * 64 * 64 * 4
    assert 0 < work.mma_efficiency < 1


def test_more_arithmetic_for_each_byte_is_more_efficient() -> None:
    chip, wanted = REFERENCE_CHIPS[Arch.SM_80], task((4096, 4096, 4096), arch=Arch.SM_80)
    tiles = [(32, 32), (64, 64), (128, 128)]
    found = [
        FAMILY.work(MmaSyncSchedule(**PLAIN | {"block_m": m, "block_n": n}), wanted, chip).mma_efficiency for m, n in tiles
    ]
    assert found == sorted(found)
