"""Kernels of gated tasks: right on the emulator in each way out of `wgmma_tma`; faulty twins are refused."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorMapArg
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import UP, Activation, Arch, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.policies.schedule.named_schedules import Unwritable, schedules_for
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.policies.schedule.prior import Columns, predict_us, rates_us
from tests.policies.schedule.gated_trial import WRONG, faults_of
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.proving import Build

H200 = REFERENCE_CHIPS[Arch.SM_90A]
FAMILY = WgmmaTma()


def gated(m: int, n: int, k: int, **fields: object) -> GemmTask:
    made = {"m": m, "n": n, "k": k, "arch": Arch.SM_90A, "layout": "tn", "gated": True, "activation": "silu", **fields}
    return GemmTask.model_validate(made)


def written(task: GemmTask, axes: dict[str, object]) -> Candidate:
    return FAMILY.write(WgmmaTmaSchedule.model_validate({"constant_shape": True, **axes}), task)


def upright(**axes: object) -> dict[str, object]:
    return {"consumers": 2, "atoms": 1, "block_n": 64, "block_k": 64, "stages": 3, **axes}


def turned(**axes: object) -> dict[str, object]:
    return {"consumers": 1, "atoms": 2, "block_n": 16, "block_k": 64, "stages": 4, "turned": True, **axes}


# Edges of M, N and K in most of them: tiles of 64 rows and more, or of columns that do not divide the task's.
WAYS: dict[str, tuple[dict[str, object], GemmTask]] = {
    "one tile each": (upright(), gated(136, 72, 136)),
    "wide": (upright(atoms=2, block_n=128), gated(264, 136, 72)),
    "whole tiles of 256": (upright(block_n=256), gated(128, 128, 128)),
    "narrow": (upright(consumers=1, block_n=32), gated(40, 40, 136)),
    "a width of 48": (upright(block_n=96), gated(136, 104, 72, element="bf16")),
    "an odd width": (upright(block_n=176, stages=4), gated(136, 104, 72)),
    "the least width": (upright(block_n=16), gated(136, 24, 72)),
    "an odd width, persistent": (upright(block_n=112, persistent=True, cluster_n=2), gated(264, 136, 136, element="bf16")),
    "an odd width, ping-pong": (
        upright(atoms=2, block_n=176, pingpong=True, persistent=True, store_boxes=1),
        gated(392, 184, 72),
    ),
    "an odd width, from registers": (upright(block_n=48, tma_store=False), gated(72, 72, 72)),
    "three warpgroups": (upright(consumers=3, block_n=128), gated(200, 136, 72)),
    "persistent": (upright(persistent=True, atoms=2, stages=4), gated(520, 72, 264)),
    "persistent, of 256 columns": (upright(persistent=True, block_n=256, cluster_m=2), gated(520, 200, 136)),
    "multicast along M": (upright(cluster_m=2), gated(136, 136, 136)),
    "multicast along N": (upright(cluster_n=2, block_k=128), gated(136, 72, 136)),
    "multicast along both": (upright(cluster_m=2, cluster_n=2, persistent=True), gated(264, 136, 136)),
    "four share": (upright(cluster_m=4, consumers=1), gated(264, 40, 72)),
    "ping-pong": (upright(pingpong=True, persistent=True), gated(392, 136, 136)),
    "two CTAs of an SM": (upright(consumers=1, ctas_per_sm=2, persistent=True, group=4), gated(200, 200, 136)),
    "straight from registers": (upright(tma_store=False), gated(136, 72, 136)),
    "hints, snaking": (
        upright(persistent=True, raster="snake_n", evict_a="last", evict_b="first", evict_d="first", stages=2),
        gated(264, 136, 136, element="bf16"),
    ),
    "sizes as arguments": (upright(constant_shape=False, persistent=True), gated(136, 72, 136)),
    "turned": (turned(), gated(13, 136, 264)),
    "turned, of 8 rows": (turned(block_n=8, consumers=2), gated(5, 264, 136, element="bf16")),
    "turned, of 24 rows": (turned(block_n=24, block_k=128), gated(20, 72, 136)),
    "turned, of 64 rows": (turned(block_n=64, consumers=2, persistent=True), gated(100, 328, 136)),
    "turned, multicast of tokens": (turned(cluster_m=2, block_n=24), gated(20, 200, 136)),
    "turned, multicast of weights": (turned(cluster_n=2, block_n=32), gated(50, 72, 136)),
    "turned, ping-pong": (turned(pingpong=True, persistent=True, consumers=2, block_n=40, store_boxes=1), gated(33, 456, 136)),
    "turned, hints": (turned(evict_a="first", programmatic=False, stages=2), gated(9, 72, 136)),
    **{f"with {each}": (upright(), gated(136, 72, 72, activation=each)) for each in Activation},
    **{f"turned with {each}": (turned(), gated(13, 72, 72, activation=each)) for each in Activation},
}


@pytest.mark.parametrize(("axes", "task"), WAYS.values(), ids=WAYS.keys())
def test_every_way_out_is_gated(compiler: PtxCompiler, axes: dict[str, object], task: GemmTask) -> None:
    candidate = written(task, axes)
    maps = [arg.tensor_map for arg in candidate.plan.kernels[-1].args if isinstance(arg, TensorMapArg)]
    weights, up = maps[0 if axes.get("turned") else 1], maps[2]
    assert (weights.of, up) == ("B", weights.model_copy(update={"of": UP}))
    assert faults_of(compiler, candidate, task) == []


# What is replaced in the text of a kernel: upright, and with swap_ab.
UPRIGHT_LOADS = "load_b(stage, map_b, full, unit.column,", "map_up, full, unit.column,"
TURNED_LOADS = "load_a(stage, map_a, full, unit.row,", "map_up, full, unit.row,"
UPRIGHT_PAIR = "Activation::of(d[at]) * d[up]"
TURNED_PAIR = "Activation::of(d.gate[at]) * d.up[at]"
TWINS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "halves swapped": (
        upright(),
        {UPRIGHT_LOADS[1]: "map_b, full, unit.column,", UPRIGHT_LOADS[0]: "load_b(stage, map_up, full, unit.column,"},
    ),
    "halves swapped, turned": (
        turned(),
        {TURNED_LOADS[1]: "map_a, full, unit.row,", TURNED_LOADS[0]: "load_a(stage, map_up, full, unit.row,"},
    ),
    "B twice": (upright(), {UPRIGHT_LOADS[1]: "map_b, full, unit.column,"}),
    "B twice, turned": (turned(), {TURNED_LOADS[1]: "map_a, full, unit.row,"}),
    "up of other rows": (upright(), {UPRIGHT_LOADS[1]: "map_up, full, unit.column + 8,"}),
    "up of other rows, turned": (turned(), {TURNED_LOADS[1]: "map_up, full, unit.row ^ 8,"}),
    "up of one tile for all": (upright(), {UPRIGHT_LOADS[1]: "map_up, full, 0,"}),
    "the other factor activated": (upright(), {UPRIGHT_PAIR: "d[at] * Activation::of(d[up])"}),
    "the other factor activated, turned": (turned(), {TURNED_PAIR: "d.gate[at] * Activation::of(d.up[at])"}),
    "the activation left out": (upright(), {UPRIGHT_PAIR: "d[at] * d[up]"}),
    "both activated": (turned(), {TURNED_PAIR: "Activation::of(d.gate[at]) * Activation::of(d.up[at])"}),
    "activation of the product": (upright(), {UPRIGHT_PAIR: "Activation::of(d[at] * d[up])"}),
    "up of the neighbour": (upright(), {UPRIGHT_PAIR: "Activation::of(d[at]) * d[up ^ 1]"}),
    "a gate that is rounded": (upright(), {UPRIGHT_PAIR: "static_cast<float>(Element(Activation::of(d[at]))) * d[up]"}),
    "an up that is rounded": (turned(), {TURNED_PAIR: "Activation::of(d.gate[at]) * static_cast<float>(Element(d.up[at]))"}),
    "both atoms of one half": (turned(), {"atom * kRowsOfD": "0 * atom"}),
    "sums of the tile behind": (upright(block_n=128), {"up = at + BLOCK_N / 4": "up = at + BLOCK_N / 8"}),
}


@pytest.mark.parametrize(("axes", "replaced"), TWINS.values(), ids=TWINS.keys())
def test_a_twin_that_has_it_wrong_is_refused(compiler: PtxCompiler, axes: dict[str, object], replaced: dict[str, str]) -> None:
    task = gated(72, 72, 136)
    candidate = written(task, axes)
    source = candidate.source
    for old, new in replaced.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    twin = candidate.model_copy(update={"source": source})
    assert WRONG in faults_of(compiler, twin, task)[0]


def test_a_plan_whose_maps_are_swapped_is_refused(compiler: PtxCompiler) -> None:
    task = gated(72, 72, 136)
    candidate = written(task, upright())
    (launch,) = candidate.plan.kernels
    first, weights, up, *others = launch.args
    swapped = launch.model_copy(update={"args": (first, up, weights, *others)})
    twin = candidate.model_copy(update={"plan": candidate.plan.model_copy(update={"launches": (swapped,)})})
    assert WRONG in faults_of(compiler, twin, task)[0]


@pytest.mark.parametrize(
    ("axes", "task"),
    [
        (upright(cluster_m=2, persistent=True, block_n=128), gated(264, 136, 136, element="bf16", activation="gelu")),
        (turned(consumers=2, evict_a="first"), gated(13, 264, 200)),
        (upright(cluster_m=2, persistent=True, block_n=256, stages=4), gated(2048, 1024, 1024, element="bf16")),
    ],
    ids=["upright", "turned", "of full size"],
)
def test_a_kernel_of_it_is_built_and_proved_in_all_tiers(build: Build, axes: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.proving import TIERS, passed, prove

    candidate = written(task, axes)
    tiers, _ = passed(prove(build(candidate.source, candidate.plan, task), task, timeout_s=300))
    assert tiers == TIERS | {"programmatic"}


REFUSED: tuple[tuple[dict[str, object], str], ...] = (
    (upright(splits=2), "splits=1"),
    (upright(cluster_k=2, tma_store=False, push=True), "cluster_k=1"),
    (upright(consumers=3, block_n=256, stages=4, self_fed=True), "self_fed=false"),
    (upright(block_n=40), "half of block_n"),
    (upright(block_n=32, cluster_m=4), "cluster_m"),
    (turned(atoms=1), "atoms=2"),
    (turned(cluster_n=16), "cluster_n"),
)


@pytest.mark.parametrize(("axes", "reason"), REFUSED)
def test_a_schedule_that_cannot_keep_both_sums_in_a_thread_is_refused(axes: dict[str, object], reason: str) -> None:
    schedule = WgmmaTmaSchedule.model_validate({"constant_shape": True, **axes})
    assert any(reason in said for said in FAMILY.violations(schedule, gated(136, 136, 512)))


def test_only_one_family_computes_gated_tasks_and_only_with_weights_along_k() -> None:
    task = gated(136, 136, 128)
    assert [family.name for family in families(Arch.SM_90A) if family.supports(task)] == ["wgmma_tma"]
    others = [task.model_copy(update={"layout": layout}) for layout in (Layout.NN, Layout.NT)]
    for other in (*others, gated(136, 132, 128), gated(136, 136, 132), gated(136, 136, 128, arch="sm_80")):
        assert not any(family.supports(other) or list(family.space(other, H200)) for family in families(other.arch))


OTHERS = {"latency": gated(48, 72, 128), "resident": gated(4096, 4096, 128), "mma_sync": gated(48, 72, 128)}


@pytest.mark.parametrize(("name", "task"), OTHERS.items(), ids=OTHERS.keys())
def test_other_families_write_none(name: str, task: GemmTask) -> None:
    family = {each.name: each for each in families(Arch.SM_90A)}[name]
    schedule = next(iter(family.space(task.model_copy(update={"gated": False}), H200)))
    with pytest.raises(ValueError, match="gate"):
        family.write(schedule, task)


FEW = {"turned": True, "atoms": 2, "block_n": 16}
MANY = {"consumers": 2, "block_n": 256, "cluster_m": 2, "persistent": True}


@pytest.mark.parametrize(("task", "wanted"), [(gated(16, 14336, 4096), FEW), (gated(2048, 4096, 512), MANY)])
def test_its_space_is_valid_and_has_the_best_schedules(task: GemmTask, wanted: dict[str, object]) -> None:
    space = list(FAMILY.space(task, H200))
    assert all(FAMILY.violation(one, task) is None for one in space[::7])
    assert any(wanted.items() <= one.values().items() for one in space)


def test_its_work_is_that_of_both_products_and_one_output() -> None:
    task = gated(2048, 2048, 1024)
    both = task.model_copy(update={"gated": False, "n": 2 * task.n})
    schedule = WgmmaTmaSchedule(consumers=2, atoms=1, block_n=256, block_k=64, stages=4, cluster_m=2, persistent=True)
    own, wide = FAMILY.work(schedule, task, H200), FAMILY.work(schedule, both, H200)
    assert own == wide.model_copy(update={"staged_bytes": wide.staged_bytes // 2, "store_lines": wide.store_lines // 2})
    columns, of_both = Columns([own], task, H200), Columns([wide], both, H200)
    assert (columns.tiles, columns.stored) == (of_both.tiles, of_both.stored / 2)
    rates, rates_of_both = rates_us(columns, task, H200), rates_us(of_both, both, H200)
    assert (rates["math"], rates["l2"]) == (rates_of_both["math"], rates_of_both["l2"])
    relu = task.model_copy(update={"activation": Activation.RELU})
    assert predict_us(own, relu, H200) < predict_us(own, task, H200)


def test_of_few_rows_both_weights_leave_l2_first() -> None:
    task = gated(16, 14336, 4096)
    schedule = WgmmaTmaSchedule.model_validate(turned(block_n=16))
    assert FAMILY.improved(schedule, task, H200).evict_a == "first"
    assert FAMILY.write(FAMILY.improved(schedule, task, H200), task).source.count("load<kEvictionA>") == 1


def test_the_policy_proposes_schedules_of_it() -> None:
    task = gated(64, 1024, 512)
    policy = SchedulePolicy(families(Arch.SM_90A))
    proposed = policy.propose(Observation(task=task, chip=H200, round=0, seed=0), 4)
    assert [f'of": "{UP}"' in one.source for one in proposed] == [True] * 4
    other = task.model_copy(update={"layout": Layout.NN})
    assert policy.propose(Observation(task=other, chip=H200, round=0, seed=0), 4) == []


def test_a_schedule_that_is_named_is_written_or_refused_with_a_reason() -> None:
    few = schedules_for(gated(64, 1024, 512), H200)
    assert isinstance(few.expand({"family": "wgmma_tma", "turned": True, "block_n": 64}), Candidate)
    assert isinstance(few.expand({"family": "wgmma_tma", "splits": 2}), Unwritable)
    none = schedules_for(gated(64, 1024, 512, layout="nn"), H200).expand({"family": "wgmma_tma"})
    assert isinstance(none, Unwritable)
    assert "none" in none.reasons[0]
    schedule = WgmmaTmaSchedule.model_validate(upright())
    with pytest.raises(ValueError, match="a gated task layout tn"):
        FAMILY.write(schedule, gated(64, 1024, 512, layout="nn"))
