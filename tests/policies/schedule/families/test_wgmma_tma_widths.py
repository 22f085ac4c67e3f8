"""Tiles of any multiple of 8 columns: right in every layout, with multicast, split, persistent, turned and at odd sizes."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
ONE = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=40, block_k=64, stages=3, group=2)
LOOPING = ONE.model_copy(update={"persistent": True})
WIDE = ONE.model_copy(update={"consumers": 2, "block_n": 200})
DIRECT = ONE.model_copy(update={"tma_store": False})
TURNED = ONE.model_copy(update={"turned": True})
ALTERNATING = LOOPING.model_copy(update={"consumers": 2, "atoms": 2, "pingpong": True, "store_boxes": 1, "stages": 4})


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[WgmmaTmaSchedule, dict[str, object], GemmTask]] = {
    "8": (ONE, {"block_n": 8}, gemm(72, 40, 136)),
    "8-tn": (ONE, {"block_n": 8, "cluster_n": 2}, gemm(136, 24, 72, layout="tn", element="bf16")),
    "24": (LOOPING, {"block_n": 24}, gemm(200, 136, 72, layout="tn")),
    "24-split": (ONE, {"block_n": 24, "splits": 2}, gemm(72, 40, 264)),
    "40": (ONE, {"cluster_m": 2}, gemm(200, 104, 136)),
    "40-slices": (ONE, {"cluster_m": 2, "block_k": 128}, gemm(200, 104, 264, layout="tn")),
    "56": (DIRECT, {"block_n": 56, "cluster_k": 2, "push": True}, gemm(72, 136, 264)),
    "56-nt": (LOOPING, {"block_n": 56}, gemm(200, 136, 77, layout="nt")),
    "72": (LOOPING, {"block_n": 72, "splits": 2, "split_tail": True}, gemm(200, 136, 264, layout="tn")),
    "104-slices-along-k": (ONE, {"block_n": 104, "cluster_m": 4}, gemm(264, 120, 72)),
    "88": (DIRECT, {"block_n": 88, "splits": 3, "spread_sum": True}, gemm(72, 200, 392)),
    "88-f16": (ONE, {"block_n": 88}, gemm(72, 200, 136, accumulate="f16", layout="tn")),
    "104": (LOOPING, {"block_n": 104, "cluster_n": 2}, gemm(264, 328, 72)),
    "104-slices": (WIDE, {"block_n": 104, "cluster_m": 2}, gemm(264, 216, 136, layout="tn")),
    "120-whole": (ONE, {"block_n": 120, "whole_groups": True}, gemm(72, 248, 136)),
    "120-slices-of-groups": (ONE, {"block_n": 120, "cluster_m": 2}, gemm(136, 248, 72)),
    "136": (LOOPING, {"block_n": 136, "raster": "snake_n", "store_boxes": 1}, gemm(264, 280, 72, layout="tn")),
    "136-whole": (LOOPING, {"block_n": 136, "whole_groups": True, "cluster_m": 2}, gemm(264, 280, 72)),
    "152": (WIDE, {"block_n": 152, "evict_d": "first", "evict_b": "last"}, gemm(200, 312, 136)),
    "168": (WIDE, {"block_n": 168, "cluster_n": 2}, gemm(200, 344, 72, layout="nt", element="bf16")),
    "184": (ONE, {"block_n": 184, "splits": 2}, gemm(72, 200, 264, layout="tn")),
    "200": (WIDE, {"cluster_m": 2}, gemm(264, 408, 72, layout="tn")),
    "200-whole": (WIDE, {"whole_groups": True}, gemm(136, 408, 72)),
    "208": (WIDE, {"block_n": 208}, gemm(136, 424, 72)),
    "216-f16": (WIDE, {"block_n": 216}, gemm(136, 440, 72, accumulate="f16")),
    "232": (WIDE, {"block_n": 232}, gemm(136, 240, 72, layout="tn")),
    "240": (WIDE, {"block_n": 240, "cluster_m": 4}, gemm(520, 248, 72, layout="tn")),
    "248": (WIDE, {"block_n": 248}, gemm(136, 256, 72)),
    "alternating": (ALTERNATING, {"block_n": 120}, gemm(392, 368, 72, layout="tn")),
    "alternating-nn": (ALTERNATING, {"block_n": 152, "whole_groups": True}, gemm(264, 320, 72)),
    "odd-rows": (ONE, {}, gemm(65, 91, 131)),
    "odd-rows-wide": (WIDE, {"block_n": 104}, gemm(131, 219, 71, layout="tn")),
    "odd-rows-looping": (LOOPING, {"block_n": 136}, gemm(135, 283, 75, layout="nt")),
    "turned-24": (TURNED, {"block_n": 24, "cluster_m": 2}, gemm(23, 264, 136, layout="tn")),
    "turned-40": (TURNED, {"persistent": True, "cluster_n": 2}, gemm(120, 200, 72)),
    "turned-88": (TURNED, {"block_n": 88, "consumers": 3}, gemm(85, 392, 136, layout="tn")),
    "turned-104-slices": (TURNED, {"block_n": 104, "consumers": 2, "cluster_m": 2}, gemm(208, 520, 72)),
    "turned-200": (TURNED, {"block_n": 200, "consumers": 2}, gemm(392, 264, 72)),
    "turned-136-nt": (
        TURNED,
        {"block_n": 136, "consumers": 2, "persistent": True, "store_boxes": 1},
        gemm(272, 264, 77, layout="nt"),
    ),
    "turned-168-alternating": (ALTERNATING, {"block_n": 168, "turned": True}, gemm(330, 520, 72)),
    "turned-odd-rows": (TURNED, {"block_n": 72}, gemm(71, 135, 77)),
}


@pytest.mark.parametrize(("schedule", "change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(
    compiler: PtxCompiler, schedule: WgmmaTmaSchedule, change: dict[str, object], task: GemmTask
) -> None:
    from tests.sandbox.emulator.trial import Trial

    schedule = schedule.model_copy(update=change)
    candidate = FAMILY.write(schedule, task)
    sms = 18 if schedule.spread_sum else 4  # spread sums need all CTAs at once
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms)
    assert trial.faults() == []


def test_every_width_is_proved() -> None:
    proved = {schedule.model_copy(update=change).block_n for schedule, change, _ in PROVED.values()}
    assert {width for width in range(8, 257, 8) if width % 16} | {208, 240} <= proved


@pytest.mark.parametrize(
    ("change", "layout", "boxes"),
    [
        ({}, "nn", [((64, 128), 128), ((16, 64), 32), ((200, 16), 0)]),
        ({"persistent": True, "stages": 3}, "nn", [((64, 128), 128), ((16, 64), 32), ((40, 16), 0)]),
        ({"whole_groups": True}, "nn", [((64, 128), 128), ((64, 64), 128), ((200, 16), 0)]),
        ({"cluster_m": 2}, "tn", [((64, 128), 128), ((64, 104), 128), ((200, 16), 0)]),
        ({"turned": True}, "nn", [((64, 64), 128), ((64, 200), 128), ((64, 40), 128)]),
        ({"block_n": 104}, "tn", [((64, 128), 128), ((64, 104), 128), ((104, 16), 0)]),
        ({"block_n": 176, "cluster_m": 4}, "tn", [((64, 128), 128), ((64, 48), 128), ((16, 16), 32)]),
    ],
)
def test_boxes_of_a_tile(change: dict[str, object], layout: str, boxes: list[tuple[tuple[int, int], int]]) -> None:
    """B in groups of columns or in equal slices; D in boxes that divide the tile, without a swizzle where 16 do not."""
    (launch,) = FAMILY.write(WIDE.model_copy(update=change), gemm(4096, 4096, 1024, layout=layout)).plan.launches
    maps = [arg.tensor_map for arg in launch.args if isinstance(arg, TensorMapArg)]
    assert [(each.box, each.swizzle) for each in maps] == boxes


def test_a_slice_of_a_multicast_is_not_empty() -> None:
    assert FAMILY.violation(WIDE.model_copy(update={"cluster_m": 4}), gemm(4096, 4096, 1024)) is None
    assert FAMILY.violation(ONE.model_copy(update={"block_n": 72, "cluster_m": 4}), gemm(4096, 4096, 1024))


def test_loads_count_what_a_slice_holds_beside_the_tile() -> None:
    """Two CTAs load 104 rows of B each for a tile of 200 columns; alone, one loads 200."""
    task = gemm(1280, 2000, 1024, layout="tn")
    alone, pair = (FAMILY.work(WIDE.model_copy(update={"cluster_m": size}), task, CHIP) for size in (1, 2))
    assert alone.loaded_bytes == 10 * 10 * 1024 * 2 * (128 + 200)
    assert pair.loaded_bytes == 10 * 10 * 1024 * 2 * (128 + 104)


def test_a_width_is_searched_where_it_fills_a_turn_or_wastes_fewer_columns() -> None:
    """1928x1664: 13 x 10 tiles of 128x200 turned occupy 130 of 132 SMs once; 192 takes two turns, and 224 has 117 tiles."""
    filled, wasted, even = (
        list(FAMILY.space(gemm(*shape), CHIP)) for shape in ((1928, 1664, 5376), (4096, 1000, 512), (8192,) * 3)
    )
    assert {s.block_m for s in filled if s.turned and s.block_n == 200} >= {128}
    assert {s.block_n for s in wasted if not s.turned} >= {168, 200}
    assert not {s.block_n for s in even if s.block_n % 16}


@pytest.mark.parametrize(("rows", "widths"), [(5, {8}), (24, {24}), (80, {40, 80}), (96, {96})])
def test_few_rows_are_tiles_of_as_many_rows(rows: int, widths: set[int]) -> None:
    space = [s for s in FAMILY.space(gemm(rows, 4096, 4096, layout="tn"), CHIP) if s.turned]
    assert {s.block_n for s in space} >= widths
    assert {s.consumers for s in space} == {1, 2, 3}
    assert {(s.splits > 1, s.spread_sum, s.push) for s in space} >= {
        (True, False, False),
        (True, True, False),
        (False, False, True),
    }
