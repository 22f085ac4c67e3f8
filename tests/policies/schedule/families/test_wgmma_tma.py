"""The wgmma_tma family: its space obeys the limits of kernel, chip and task, and its sources compile."""

import random
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, is_valid, workspace_bytes
from cudal2_agent.sandbox.building.builder import Builder

FAMILY = WgmmaTma()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
SHAPES = [(4096, 1024, 512), (64, 64, 64), (128, 128, 16384), (1000, 1000, 1000), (64, 16384, 64), (8, 8, 8)]
WIDE = WgmmaTmaSchedule(consumers=2, atoms=1, block_n=256, block_k=64, stages=4, cluster_m=2, persistent=True)
SPLIT = WgmmaTmaSchedule(
    consumers=1, atoms=1, block_n=32, block_k=128, stages=6, cluster_k=4, splits=3, tma_store=False, cluster_n=2
)
TALL = WgmmaTmaSchedule(consumers=2, atoms=2, block_n=128, block_k=64, stages=4, splits=2)


def task(shape: tuple[int, int, int] = (4096, 1024, 512), **fields: object) -> GemmTask:
    m, n, k = shape
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("accumulate", "layout"), [("f32", "nn"), ("f16", "nn"), ("f32", "nt")])
def test_every_schedule_of_the_space_can_be_written_and_launched(
    shape: tuple[int, int, int], accumulate: str, layout: str
) -> None:
    wanted = task(shape, accumulate=accumulate, layout=layout)
    space = list(FAMILY.space(wanted, CHIP))
    assert space
    assert len(set(space)) == len(space)
    for schedule in random.Random(0).sample(space, min(40, len(space))):
        candidate = FAMILY.write(schedule, wanted)
        plan = resolve(candidate.plan, wanted, LIMITS[Arch.SM_90A], CHIP.sms)
        assert plan.workspace_bytes == workspace_bytes(schedule, wanted)
        assert plan.launches[0].block[0] == schedule.threads
        assert parse_plan(candidate.source) == candidate.plan
        assert FAMILY.parse(candidate.origin.schedule or {}) == schedule


def test_one_stage_is_for_one_k_block() -> None:
    """The consumers wait for a second K block before they release the first, and the producer for its release."""
    single = WIDE.model_copy(update={"stages": 1})
    plan = FAMILY.write(single, task((256, 16384, 64))).plan
    with pytest.raises(PlanError, match="requires K<=64"):
        resolve(plan, task((256, 16384, 128)), LIMITS[Arch.SM_90A], CHIP.sms)


def test_work_counts_ctas_and_bytes() -> None:
    work = FAMILY.work(WIDE.model_copy(update={"persistent": False}), task(), CHIP)
    assert work.ctas == 32 * 4
    assert work.k_blocks == 8
    # Each CTA loads its own 128 rows of A and, with its peer, 256 columns of B once.
    assert work.loaded_bytes == 128 * 512 * 2 * (128 + 256 // 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stages": 5}, "shared memory"),
        ({"atoms": 2}, "accumulator registers"),
        ({"block_n": 204}, "block_n must be a multiple of 8 to 256"),
        ({"cluster_m": 16, "cluster_n": 2}, "cluster_m, cluster_n and cluster_k make 32 CTAs"),
        ({"splits": 9}, "make 9 parts of the 8 blocks of K"),
        ({"stages": 1}, "several blocks of K need two stages"),
        ({"cluster_k": 2, "tma_store": False}, "cluster_k needs persistent=false"),
    ],
)
def test_a_schedule_that_breaks_a_limit_is_not_valid(change: dict[str, int], why: str) -> None:
    assert is_valid(WIDE, task())
    broken = WIDE.model_copy(update=change)
    assert not is_valid(broken, task())
    assert why in "; ".join(FAMILY.violations(broken, task()))
    with pytest.raises(ValueError, match="wgmma_tma schedule for 4096x1024x512: "):
        FAMILY.write(broken, task())


def test_other_chips_are_left_to_other_families() -> None:
    assert not FAMILY.supports(task(arch=Arch.SM_80))


def test_values_that_are_no_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="not a wgmma_tma schedule"):
        FAMILY.parse({"family": "wgmma_tma", "consumers": 2})


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    cache: Path = tmp_path_factory.mktemp("compile")
    return Builder(CompileOptions(cache_dir=str(cache), jobs=2), CHIP)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(
    ("element", "accumulate"),
    [
        (ElementType.F16, AccumulatorType.F32),
        pytest.param(ElementType.F16, AccumulatorType.F16, marks=pytest.mark.slow),
        pytest.param(ElementType.BF16, AccumulatorType.F32, marks=pytest.mark.slow),
    ],
)
def test_kernels_compile_to_the_instruction_the_schedule_names(
    builder: Builder, layout: Layout, element: ElementType, accumulate: AccumulatorType
) -> None:
    wanted = task((512, 512, 2048), layout=layout, element=element, accumulate=accumulate)
    schedules = [WIDE, SPLIT, TALL]
    for position, outcome in builder.build([FAMILY.write(schedule, wanted) for schedule in schedules], wanted):
        schedule = schedules[position]
        assert isinstance(outcome, Built), outcome
        name = f"m64n{schedule.block_n}k16.{accumulate}.{element}.{element}"
        assert any(name in mma for mma in outcome.inspection.mma), (name, outcome.inspection.mma)
        assert outcome.inspection.accumulators == (accumulate,)
        assert not outcome.inspection.warnings
        # Only the reduction of splits, once per tile, may spill registers.
        assert outcome.inspection.kernels[0].spill_store_bytes <= (256 if schedule.splits > 1 else 0)
        assert outcome.inspection.kernels[0].ctas_per_sm == 1


def test_a_constant_that_does_not_fit_is_explained_by_the_kernel(builder: Builder) -> None:
    candidate = FAMILY.write(WIDE, task())
    broken = candidate.model_copy(
        update={"source": candidate.source.replace("constexpr int kClusterM = 2;", "constexpr int kClusterM = 64;")}
    )
    ((_, outcome),) = builder.build([broken], task())
    assert isinstance(outcome, CompileFailed)
    assert "multicast slices are whole 8-row swizzle groups" in outcome.log
