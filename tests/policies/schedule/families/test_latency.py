"""The latency family: its space holds only schedules that run at once, its sources compile, and its plan says what it needs."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule
from cudal2_agent.sandbox.building.builder import Builder

FAMILY = Latency()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
SHAPES = [(64, 128, 2048), (64, 64, 64), (256, 512, 1024), (72, 136, 200), (64, 4096, 64), (8, 8, 8), (256, 256, 4096)]
PUSHED = LatencySchedule(block_m=32, block_n=32, block_k=64, groups=2, warps_m=2, warps_n=2, cluster_k=16)
SLICED = LatencySchedule(block_m=32, block_n=32, block_k=64, groups=2, warps_m=1, warps_n=1, warps_k=8, cluster_k=2)
BOXED = LatencySchedule(
    block_m=64, block_n=64, block_k=64, groups=8, warps_m=2, warps_n=2, cluster_k=4, loads="tma", constant_shape=False
)
AGAIN = LatencySchedule(block_m=64, block_n=64, block_k=64, groups=4, passes=2, warps_m=2, warps_n=2, cluster_k=4)
TASK = GemmTask(m=64, n=128, k=2048)


def task(shape: tuple[int, int, int], **fields: Any) -> GemmTask:
    m, n, k = shape
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("accumulate", list(AccumulatorType))
@pytest.mark.parametrize("layout", list(Layout))
def test_every_schedule_of_the_space_can_be_written_and_launched(
    shape: tuple[int, int, int], accumulate: AccumulatorType, layout: Layout
) -> None:
    wanted = task(shape, accumulate=accumulate, layout=layout)
    space = list(FAMILY.space(wanted, CHIP))
    assert 0 < len(space) <= 1500
    assert len(set(space)) == len(space)
    for schedule in random.Random(0).sample(space, min(40, len(space))):
        schedule = schedule.model_copy(update={"constant_shape": False})
        candidate = FAMILY.write(schedule, wanted)
        launch = resolve(candidate.plan, wanted, LIMITS[Arch.SM_90A], CHIP.sms).launches[0]
        assert launch.block[0] == schedule.threads
        assert launch.grid[0] <= 4 * cluster_sms(CHIP, schedule.cluster_k)
        assert parse_plan(candidate.source) == candidate.plan
        assert FAMILY.parse(candidate.origin.schedule or {}) == schedule


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (64, 65, 64), (64, 64, 63), (2048, 2048, 2048)])
def test_large_tasks_and_rows_that_16_bytes_do_not_divide_are_left_to_other_families(shape: tuple[int, int, int]) -> None:
    assert not list(FAMILY.space(task(shape), CHIP))


def test_other_chips_are_left_to_other_families() -> None:
    assert not FAMILY.supports(task((64, 64, 64), arch=Arch.SM_100A))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"warps_n": 4}, "multiple of 16 x 16"),
        ({"block_k": 16}, "powers of two"),
        ({"cluster_k": 3}, "powers of two"),
        ({"cluster_k": 32, "groups": 1}, "do not fit into one cluster"),
        ({"block_m": 16, "block_n": 16, "warps_m": 1, "warps_n": 1}, "whole rows of 16 bytes"),
        ({"block_k": 512, "groups": 1, "warps_m": 1, "warps_n": 1}, "a thread for every 16 bytes"),
        ({"cluster_k": 8}, "load at most 1024 of K"),
        ({"block_k": 512, "loads": "tma"}, "at most 256 rows"),
        ({"groups": 32}, "shared memory"),
        ({"block_m": 128, "block_n": 128, "warps_m": 1, "warps_n": 1}, "registers"),
    ],
)
def test_a_schedule_that_breaks_a_limit_is_not_written(change: dict[str, object], why: str) -> None:
    assert FAMILY.violation(PUSHED, TASK) is None
    broken = PUSHED.model_copy(update=change)
    assert why in (FAMILY.violation(broken, TASK) or "")
    with pytest.raises(ValueError, match="latency schedule for 64x128x2048"):
        FAMILY.write(broken, TASK)


def test_values_that_are_no_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="not a latency schedule"):
        FAMILY.parse({"family": "latency", "block_m": 64})


def test_work_counts_ctas_parts_and_bytes() -> None:
    work = FAMILY.work(SLICED, TASK, CHIP)
    assert work.ctas == 2 * 4 * 2
    assert work.loaded_bytes == work.ctas * 1024 * (32 + 32) * 2
    assert -(-TASK.k // (work.tile[2] * work.k_blocks)) == SLICED.cluster_k
    assert work.stages > work.k_blocks
    assert work.lines == 0
    assert FAMILY.work(SLICED.model_copy(update={"loads": "tma"}), TASK, CHIP).lines == 8 * (32 + 64)


def test_passes_reuse_slots_and_add_steps_of_k() -> None:
    once = AGAIN.model_copy(update={"groups": 8, "passes": 1})
    assert (AGAIN.capacity_k, AGAIN.operand_bytes) == (once.capacity_k, once.operand_bytes) == (2048, 128 * 1024)
    assert once.needed_smem_bytes - AGAIN.needed_smem_bytes == 64 * 1024
    work = FAMILY.work(AGAIN, TASK, CHIP)
    assert work.k_blocks == 8 > work.stages


@pytest.mark.parametrize("shape", [(128, 128, 16384), (256, 256, 4096), (64, 1024, 4096), (512, 512, 1024)])
def test_long_k_has_schedules_with_passes_that_run_at_once(shape: tuple[int, int, int]) -> None:
    wanted = task(shape)
    again = [schedule for schedule in FAMILY.space(wanted, CHIP) if schedule.passes > 1]
    assert again
    for schedule in again:
        ctas = FAMILY.work(schedule, wanted, CHIP).ctas
        assert ctas <= schedule.ctas_per_sm(wanted) * cluster_sms(CHIP, schedule.cluster_k)
        assert schedule.capacity_k >= wanted.k


def test_values_without_passes_are_the_schedule_of_one_pass() -> None:
    values = {axis: value for axis, value in PUSHED.values().items() if axis != "passes"}
    assert FAMILY.parse(values) == PUSHED
    assert "pass" not in FAMILY.write(PUSHED, TASK).source


def test_a_plan_says_which_shapes_its_source_is_for() -> None:
    general = PUSHED.model_copy(update={"constant_shape": False})
    assert set(FAMILY.write(PUSHED, TASK).plan.requires) == {"M==64", "N==128", "K==2048"}
    assert set(FAMILY.write(general, TASK).plan.requires) == {"M%32==0", "N%32==0", "K%8==0", "K==2048"}
    ragged = FAMILY.write(general, task((45, 56, 2000))).plan.requires
    assert set(ragged) == {"N%8==0", "K%8==0", "K<=2048"}


def test_an_exclusive_cta_leaves_no_room_for_a_second_one() -> None:
    assert PUSHED.ctas_per_sm(TASK) > 1
    assert PUSHED.model_copy(update={"exclusive": True}).ctas_per_sm(TASK) == 1


def test_sums_in_f16_take_half_of_the_registers() -> None:
    wide, narrow = (BOXED.registers(TASK.model_copy(update={"accumulate": one})) for one in AccumulatorType)
    assert tuple(AccumulatorType) == (AccumulatorType.F32, AccumulatorType.F16)
    sums = BOXED.block_m * BOXED.block_n // (BOXED.warps_m * BOXED.warps_n * 32)
    assert wide - narrow == sums // 2


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    cache: Path = tmp_path_factory.mktemp("compile")
    return Builder(CompileOptions(cache_dir=str(cache), jobs=2), CHIP)


def _drawn() -> Iterator[Any]:
    """Seven schedules for each layout and type; types other than the default are in the slow tests."""
    types = (
        (ElementType.F16, AccumulatorType.F32),
        (ElementType.F16, AccumulatorType.F16),
        (ElementType.BF16, AccumulatorType.F32),
    )
    for layout in Layout:
        for element, accumulate in types:
            wanted = task((64, 128, 2048), layout=layout, element=element, accumulate=accumulate)
            drawn = random.Random(f"{wanted.id}").sample(list(FAMILY.space(wanted, CHIP)), 2)
            schedules = [PUSHED, SLICED, BOXED, AGAIN, AGAIN.model_copy(update={"loads": "tma"}), *drawn]
            yield pytest.param(wanted, schedules, marks=[] if (element, accumulate) == types[0] else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("wanted", "schedules"), list(_drawn()), ids=lambda value: value.id if isinstance(value, GemmTask) else ""
)
def test_kernels_compile_without_local_memory(builder: Builder, wanted: GemmTask, schedules: list[LatencySchedule]) -> None:
    for position, outcome in builder.build([FAMILY.write(schedule, wanted) for schedule in schedules], wanted):
        assert isinstance(outcome, Built), outcome
        assert outcome.inspection.accumulators == (wanted.accumulate,)
        assert not outcome.inspection.warnings
        kernel = outcome.inspection.kernels[0]
        assert kernel.spill_store_bytes == kernel.stack_bytes == 0, schedules[position]


def test_a_constant_that_does_not_fit_is_explained_by_the_kernel(builder: Builder) -> None:
    candidate = FAMILY.write(PUSHED, TASK)
    broken = candidate.source.replace("constexpr int kGroups = 2;", "constexpr int kGroups = 1;")
    ((_, outcome),) = builder.build([candidate.model_copy(update={"source": broken})], TASK)
    assert isinstance(outcome, CompileFailed)
    assert "the CTAs of a tile cover K" in outcome.log
