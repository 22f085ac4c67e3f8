"""The resident family: its space obeys the limits of kernel, chip and task, and its sources compile without spills."""

import random
from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.resident.family import Resident, smem_bytes_per_cycle
from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule, is_valid
from cudal2_agent.sandbox.building.builder import Builder

FAMILY = Resident()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
LARGE = [(16384, 16384, 512), (8192, 8192, 256), (16384, 4096, 256), (16384, 16384, 64), (12288, 8192, 512), (4104, 8200, 8)]
PAIR = ResidentSchedule(consumers=2, block_n=128, slots=12)
THREE = ResidentSchedule(consumers=3, block_n=96, slots=11, cluster=1, turns="staging")
TALL = ResidentSchedule(consumers=2, atoms=2, block_n=64, slots=16, turns="none", keep_b=True, stream_d=True)


def task(shape: tuple[int, int, int] = (16384, 16384, 512), **fields: object) -> GemmTask:
    m, n, k = shape
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("accumulate", list(AccumulatorType))
def test_every_schedule_of_the_space_can_be_written_and_launched(
    shape: tuple[int, int, int], accumulate: AccumulatorType
) -> None:
    wanted = task(shape, accumulate=accumulate)
    space = list(FAMILY.space(wanted, CHIP))
    assert space
    assert len(set(space)) == len(space)
    for schedule in random.Random(0).sample(space, 20):
        candidate = FAMILY.write(schedule, wanted)
        launch = resolve(candidate.plan, wanted, LIMITS[Arch.SM_90A], CHIP.sms).launches[0]
        assert launch.grid == (132, 1, 1)
        assert launch.block[0] == schedule.threads
        assert parse_plan(candidate.source) == candidate.plan
        assert FAMILY.parse(candidate.origin.schedule or {}) == schedule


def test_work_counts_ctas_and_bytes() -> None:
    work = FAMILY.work(PAIR, task(), CHIP)
    assert work.ctas == 132
    assert work.k_blocks == 8
    # Clusters of two load 128 columns of B for 256 rows; each of 66 runs begins within one panel of A and ends in another.
    b = 64 * 128 * 128 * 512 * 2
    a = (64 + 66) * 256 * 512 * 2
    assert work.loaded_bytes == a + b


def test_shared_memory_carries_what_the_note_says() -> None:
    assert smem_bytes_per_cycle(PAIR, task()) == 64 + 32 + 16
    assert FAMILY.work(PAIR, task(), CHIP).mma_efficiency == 1.0
    assert FAMILY.work(PAIR, task((16384, 16384, 64)), CHIP).mma_efficiency == pytest.approx(128 / (64 + 32 + 128))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"slots": 13}, "shared memory"),
        ({"block_n": 160}, "they would spill"),
        ({"block_n": 72}, "block_n must be one of 64, 96"),
        ({"slots": 2}, "slots must be at least"),
        ({"consumers": 1}, "turns need more than one of the consumers"),
        ({"late_store": False}, "need late_store"),
    ],
)
def test_a_schedule_that_breaks_a_limit_is_not_valid(change: dict[str, int], why: str) -> None:
    assert is_valid(PAIR, task())
    broken = PAIR.model_copy(update=change)
    assert not is_valid(broken, task())
    assert why in "; ".join(FAMILY.violations(broken, task()))
    with pytest.raises(ValueError, match="resident schedule for 16384x16384x512: "):
        FAMILY.write(broken, task())


@pytest.mark.parametrize("shape", [(8192, 8196, 64), (8192, 8192, 60), (8192, 8192, 520)])
def test_other_tasks_are_left_to_other_families(shape: tuple[int, int, int]) -> None:
    assert not FAMILY.supports(task(shape))
    assert not list(FAMILY.space(task(shape), CHIP))


@pytest.mark.parametrize("shape", [(1024, 1024, 512), (64, 8192, 64), (16384, 64, 256)])
def test_small_outputs_have_no_schedules(shape: tuple[int, int, int]) -> None:
    assert FAMILY.supports(task(shape))
    assert not list(FAMILY.space(task(shape), CHIP))


def test_wide_tiles_are_tried_where_they_make_two_to_four_waves() -> None:
    """512 tiles of 128 x 128 on 132 SMs; such a kernel was the best known of this shape."""
    assert 128 in {schedule.block_n for schedule in FAMILY.space(task((512, 16384, 512)), CHIP)}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    cache: Path = tmp_path_factory.mktemp("compile")
    return Builder(CompileOptions(cache_dir=str(cache), jobs=2), CHIP)


@pytest.mark.parametrize(
    ("schedule", "k"), [(PAIR, 512), (THREE, 256), (TALL, 256)], ids=["pair", "three-warpgroups", "two-atoms"]
)
@pytest.mark.parametrize(
    ("layout", "element", "accumulate"),
    [
        (Layout.NN, ElementType.F16, AccumulatorType.F32),
        (Layout.TN, ElementType.F16, AccumulatorType.F16),
        (Layout.TN, ElementType.BF16, AccumulatorType.F32),
        (Layout.NT, ElementType.F16, AccumulatorType.F32),
    ],
)
def test_kernels_multiply_from_registers_and_spill_nothing(
    builder: Builder, schedule: ResidentSchedule, k: int, layout: Layout, element: ElementType, accumulate: AccumulatorType
) -> None:
    wanted = task((8192, 8192, k), layout=layout, element=element, accumulate=accumulate)
    ((_, outcome),) = builder.build([FAMILY.write(schedule, wanted)], wanted)
    assert isinstance(outcome, Built), outcome
    name = f"m64n{schedule.block_n}k16.{accumulate}.{element}.{element}"
    assert any(name in mma for mma in outcome.inspection.mma), (name, outcome.inspection.mma)
    assert outcome.inspection.accumulators == (accumulate,)
    assert not outcome.inspection.warnings
    assert outcome.inspection.kernels[0].spill_store_bytes == 0
    assert outcome.inspection.kernels[0].ctas_per_sm == 1
