"""The narrow family: which tasks it serves, that its space flows and fits the chip, that its sources compile and are right."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.build import Built
from contract.chip import LIMITS, REFERENCE_CHIPS
from contract.evaluation import CompileFailed
from contract.options import CompileOptions
from contract.plan import TensorMapArg, parse_plan, resolve
from contract.roofline import memory_us
from contract.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from policies.schedule.families.kernel_family import cluster_sms
from policies.schedule.families.narrow.family import Narrow
from policies.schedule.families.narrow.schedule import NarrowSchedule
from policies.schedule.families.wgmma_tma.family import WgmmaTma
from policies.schedule.prior import predict_many_us, predict_us
from sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.trial import Trial, schedules

FAMILY = Narrow()
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
SHAPES = [
    (1, 2048, 4096),
    (2, 14336, 4096),
    (3, 1024, 1024),
    (8, 4096, 14336),
    (17, 5120, 5120),
    (32, 4096, 4096),
    (5, 264, 456),
]
HELD = NarrowSchedule(block_m=8, block_n=64, warps_k=8, stages=2, cluster_k=2)
COPIED = NarrowSchedule(block_m=8, block_n=32, warps_k=4, stages=6, ring="shared", prefetch=4, trigger="last_loads")
TASK = GemmTask(m=3, n=4096, k=4096)


def task(shape: tuple[int, int, int], **fields: Any) -> GemmTask:
    m, n, k = shape
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", [Layout.NN, Layout.TN])
def test_every_schedule_of_the_space_can_be_written_and_launched(shape: tuple[int, int, int], layout: Layout) -> None:
    wanted = task(shape, layout=layout)
    space = list(FAMILY.space(wanted, CHIP))
    assert 0 < len(space) <= 2500
    assert len(set(space)) == len(space)
    for schedule in random.Random(0).sample(space, min(40, len(space))):
        candidate = FAMILY.write(schedule.model_copy(update={"constant_shape": False}), wanted)
        launch = resolve(candidate.plan, wanted, LIMITS[Arch.SM_90A], CHIP.sms).launches[0]
        assert launch.block[0] == schedule.threads
        if schedule.cluster_k > 1:
            assert launch.grid[0] <= schedule.ctas_per_sm(wanted) * cluster_sms(CHIP, schedule.cluster_k)
        assert parse_plan(candidate.source) == candidate.plan
        assert FAMILY.parse(FAMILY.write(schedule, wanted).origin.schedule or {}) == schedule


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ((33, 4096, 4096), {}),
        ((4096, 8, 4096), {"layout": "nn"}),
        ((8, 4096, 4096), {"layout": "nt"}),
        ((8, 4100, 4096), {"layout": "tn"}),
        ((8, 4096, 4100), {"layout": "tn"}),
        ((8, 4096, 4096), {"arch": "sm_80"}),
    ],
)
def test_tasks_that_are_not_narrow_along_rows_of_16_bytes_are_refused(
    shape: tuple[int, int, int], fields: dict[str, str]
) -> None:
    wanted = task(shape, **fields)
    assert not FAMILY.supports(wanted)
    assert not list(FAMILY.space(wanted, CHIP))
    assert "\n" not in (FAMILY.violation(HELD, wanted) or "\n")


def test_column_major_b_may_be_the_narrow_operand() -> None:
    """Rows of D may then have any length."""
    wanted = task((4100, 5, 4096), layout="tn")
    assert FAMILY.supports(wanted)
    plan = FAMILY.write(HELD.model_copy(update={"constant_shape": False}), wanted).plan
    assert plan.requires == ("K%8==0",)
    assert plan.launches[0].grid[0] == "ceil(N/8)*ceil(M/64)*2"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"block_m": 12}, "multiple of 8"),
        ({"block_m": 40}, "at most 32"),
        ({"block_n": 48}, "one of 16, 32, 64, 128"),
        ({"block_n": 16}, "row-major weights need 32 features"),
        ({"cluster_k": 32}, "do not fit into one cluster"),
        ({"warps_k": 40}, "threads exceed"),
        ({"ring": "shared", "stages": 8}, "shared memory"),
        ({"stages": 8}, "registers"),
    ],
)
def test_a_schedule_that_breaks_a_limit_is_not_written(change: dict[str, object], why: str) -> None:
    assert FAMILY.violation(HELD, TASK) is None
    broken = HELD.model_copy(update=change)
    assert why in (FAMILY.violation(broken, TASK) or "")
    with pytest.raises(ValueError, match="narrow schedule for 3x4096x4096"):
        FAMILY.write(broken, TASK)


def test_values_that_are_no_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="not a narrow schedule"):
        FAMILY.parse({"family": "narrow", "block_m": 8})


def test_work_counts_ctas_parts_and_bytes() -> None:
    work = FAMILY.work(HELD, TASK, CHIP)
    assert work.ctas == 64 * 2
    assert work.loaded_bytes == work.ctas * 2048 * (64 + 3) * 2
    assert -(-TASK.k // (work.tile[2] * work.k_blocks)) == HELD.cluster_k
    assert work.stages == HELD.stages + 1
    swapped = FAMILY.work(HELD, task((4096, 3, 4096), layout="tn"), CHIP)
    assert (swapped.tile, swapped.ctas) == ((64, 8, 256), work.ctas)


def test_a_launch_overlaps_the_next_one_only_where_both_fit() -> None:
    assert FAMILY.work(COPIED, TASK, CHIP).programmatic
    assert not FAMILY.work(COPIED.model_copy(update={"stages": 16}), TASK, CHIP).programmatic


def test_shared_memory_keeps_further_ctas_from_an_sm() -> None:
    small = HELD.model_copy(update={"warps_k": 2})
    assert small.ctas_per_sm(TASK) > 4
    for limit in (1, 2, 4):
        limited = small.model_copy(update={"per_sm": limit})
        assert limited.ctas_per_sm(TASK) == limit
        assert FAMILY.write(limited, TASK).plan.launches[0].dynamic_smem == limited.smem_bytes(TASK) > small.smem_bytes(TASK)


def test_the_prior_wants_bytes_in_flight_and_warps() -> None:
    def predicted_us(**change: object) -> float:
        return predict_us(FAMILY.work(COPIED.model_copy(update=change), TASK, CHIP), TASK, CHIP)

    assert predicted_us(stages=6) < predicted_us(stages=2) < predicted_us(stages=1)
    assert predicted_us(warps_k=4, stages=4) < predicted_us(warps_k=1, stages=4)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_the_prior_ranks_the_family_first_and_above_the_time_of_the_bytes(shape: tuple[int, int, int]) -> None:
    wanted = task(shape)

    def best_us(family: Any) -> float:
        return float(predict_many_us([family.work(s, wanted, CHIP) for s in family.space(wanted, CHIP)], wanted, CHIP).min())

    assert memory_us(wanted, CHIP) < best_us(FAMILY) < best_us(WgmmaTma())


def test_a_plan_says_which_shapes_its_source_is_for() -> None:
    assert set(FAMILY.write(HELD, TASK).plan.requires) == {"M==3", "N==4096", "K==4096"}
    general = FAMILY.write(HELD.model_copy(update={"constant_shape": False}), TASK)
    assert set(general.plan.requires) == {"N%8==0", "K%8==0"}


def test_only_prefetches_need_a_tensor_map() -> None:
    def maps(schedule: NarrowSchedule) -> list[TensorMapArg]:
        return [arg for arg in FAMILY.write(schedule, TASK).plan.launches[0].args if isinstance(arg, TensorMapArg)]

    assert not maps(HELD)
    assert [(arg.tensor_map.of, arg.tensor_map.box) for arg in maps(COPIED)] == [("B", (32, 256))]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("compile")), jobs=2), CHIP)


def _drawn(seed: str, count: int) -> Iterator[tuple[GemmTask, list[NarrowSchedule]]]:
    types = (
        (ElementType.F16, AccumulatorType.F32),
        (ElementType.F16, AccumulatorType.F16),
        (ElementType.BF16, AccumulatorType.F32),
    )
    for (element, accumulate), shape in zip(types, ((3, 2048, 2048), (12, 4096, 4096), (29, 4096, 2048)), strict=True):
        for layout in (Layout.NN, Layout.TN):
            wanted = task(shape, layout=layout, element=element, accumulate=accumulate)
            yield wanted, random.Random(f"{seed}{wanted.id}").sample(list(FAMILY.space(wanted, CHIP)), count)


@pytest.mark.parametrize(("wanted", "drawn"), list(_drawn("compiled", 2)), ids=lambda value: getattr(value, "id", ""))
def test_kernels_compile_without_local_memory(builder: Builder, wanted: GemmTask, drawn: list[NarrowSchedule]) -> None:
    for position, outcome in builder.build([FAMILY.write(schedule, wanted) for schedule in drawn], wanted):
        assert isinstance(outcome, Built), outcome
        assert outcome.inspection.accumulators == (AccumulatorType.F32,)
        assert not outcome.inspection.warnings
        kernel = outcome.inspection.kernels[0]
        assert kernel.spill_store_bytes == kernel.stack_bytes == 0, drawn[position]


def test_a_constant_that_does_not_fit_is_explained_by_the_kernel(builder: Builder) -> None:
    candidate = FAMILY.write(HELD, TASK)
    broken = candidate.source.replace("constexpr int BLOCK_TOKENS = 8;", "constexpr int BLOCK_TOKENS = 12;")
    ((_, outcome),) = builder.build([candidate.model_copy(update={"source": broken})], TASK)
    assert isinstance(outcome, CompileFailed)
    assert "products have 8 tokens" in outcome.log


# Odd tokens, features and K that no block divides, more than one block of tokens, and a narrow B.
PROVED = (
    ((1, 72, 1000), {"layout": "nn"}, {"block_n": 128, "cluster_k": 3, "stages": 3, "ring": "shared"}),
    ((1, 8, 8), {"layout": "tn", "accumulate": "f16"}, {"warps_k": 3}),
    ((2, 200, 520), {"layout": "tn"}, {"ring": "shared", "stages": 5, "cluster_k": 2, "prefetch": 1}),
    ((3, 136, 256), {"layout": "nn", "element": "bf16"}, {"ring": "shared", "stages": 1, "block_n": 32}),
    ((5, 104, 1032), {"layout": "tn", "element": "bf16"}, {"block_n": 16, "warps_k": 4, "cluster_k": 8}),
    ((7, 64, 512), {"layout": "nn", "accumulate": "f16"}, {"trigger": "last_loads", "stages": 2, "warps_k": 2, "per_sm": 2}),
    ((9, 256, 264), {"layout": "tn"}, {"block_m": 16, "trigger": "last_loads", "ring": "shared", "constant_shape": False}),
    ((17, 80, 320), {"layout": "nn"}, {"block_m": 8, "evict_first": False, "cluster_k": 4}),
    ((24, 40, 648), {"layout": "nn"}, {"block_m": 24, "constant_shape": False, "ring": "shared", "cluster_k": 2}),
    ((31, 128, 96), {"layout": "tn"}, {"block_m": 32, "programmatic": False, "block_n": 128, "stages": 1}),
    ((70, 3, 328), {"layout": "tn"}, {"ring": "shared", "stages": 4, "cluster_k": 16, "warps_k": 2}),
    ((45, 11, 128), {"layout": "tn", "element": "bf16"}, {"block_m": 16, "block_n": 32, "constant_shape": False}),
)


@pytest.mark.parametrize(("shape", "fields", "change"), PROVED, ids=lambda value: "x".join(map(str, value)))
def test_kernels_are_right_on_the_emulator(
    tmp_path: Path, shape: tuple[int, int, int], fields: dict[str, str], change: dict[str, object]
) -> None:
    wanted = task(shape, **fields)
    base = NarrowSchedule(block_m=8, block_n=64, warps_k=8, stages=2)
    candidate = FAMILY.write(base.model_copy(update=change), wanted)
    trial = Trial(PtxCompiler(tmp_path).compile(candidate, wanted.arch), candidate, wanted, CHIP.sms)
    assert [verdict for conditions in schedules(2) if (verdict := trial.verdict(conditions))] == []
