"""The emulator proves what the kernels of the batch-invariant mode state: equal bits for equal rows, whatever M is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.resident.family import Resident
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.policies.schedule.invariant_kernels import invariant_sources
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.emulator.executor import EmulatorExecutor, Interleavings
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.verification.elements import decode, encode
from cudal2_agent.sandbox.verification.inputs import Inputs

Bits = np.ndarray[Any, Any]

MOST = 144  # rows of A
SIZES = {(8, 8): (136, 200), (1, 8): (133, 200), (1, 1): (133, 203)}  # N and K by steps
OF_TILES = {16: (1, 16), 32: (1, 48), 64: (8, 33), 128: (1, 72), 256: (1, 72, 136)}  # M by the rows of a tile
SMALL = GemmTask(m=128, n=128, k=4096, arch=Arch.SM_90A)
LARGE = GemmTask(m=4096, n=4096, k=512, arch=Arch.SM_90A)
GROUPS = [(Arch.SM_90A, element, steps) for element in ElementType for steps in SIZES] + [(Arch.SM_80, ElementType.F16, (8, 8))]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("invariant")


def built(candidate: Candidate, task: GemmTask, cache_dir: Path) -> str:
    """The PTX of a kernel."""
    outcome = Builder(CompileOptions(cache_dir=str(cache_dir)), REFERENCE_CHIPS[task.arch]).build_one(candidate, task)
    assert isinstance(outcome, Built), outcome
    return Path(outcome.artifact_path).with_name("kernel.ptx").read_text(encoding="utf-8")


@cache
def operands(n: int, k: int, element: ElementType) -> Inputs:
    """All but the last products of a sum cancel, so that the bits of D are those of rounded partial sums."""
    source, half = np.random.default_rng(5), (k - 4) // 2

    def drawn(*sizes: int) -> Bits:
        return source.normal(size=sizes) * np.exp2(source.integers(-3, 4, size=sizes))

    left, right = drawn(MOST, half), drawn(half, n)
    a = np.concatenate((left, -left, drawn(MOST, k - 2 * half) * 2.0**-12), axis=1)
    b = np.concatenate((right, right, drawn(k - 2 * half, n)))
    return Inputs(encode(np, a.astype(np.float32), element), encode(np, b.astype(np.float32), element))


def product(ptx: str, candidate: Candidate, task: GemmTask, first: int = 0, sms: int = 132) -> Bits:
    """D as bits, of rows of A from `first` on; without a race, a stray access or an unwritten element."""
    kernel = EmulatedKernel("invariant", ptx, resolve(candidate.plan, task, LIMITS[task.arch], sms), task)
    every = operands(task.n, task.k, task.element)
    inputs = Inputs(every.a[first : first + task.m], every.b)
    run = EmulatorExecutor(kernel, Interleavings(task, 3, time.monotonic() + 120)).run(inputs)
    assert run.violations == ()
    _is_right(run.output, inputs, task)
    return np.array(run.output)


def _is_right(output: Bits, inputs: Inputs, task: GemmTask) -> None:
    a, b, d = (np.asarray(decode(np, one, task.element), np.float64) for one in (inputs.a, inputs.b, output))
    rounded = 2.0**-10 if task.element is ElementType.F16 else 2.0**-7
    assert (np.abs(d - a @ b) <= task.k * 2.0**-23 * (np.abs(a) @ np.abs(b)) + rounded * np.abs(d) + 2.0**-24).all()


@pytest.mark.parametrize(("arch", "element", "steps"), GROUPS, ids=str)
def test_kernels_of_one_weight_give_a_row_equal_bits(
    arch: Arch, element: ElementType, steps: tuple[int, int], cache_dir: Path
) -> None:
    sources = [one for one in invariant_sources(arch) if (one.task.element, one.n_step, one.k_step) == (element, *steps)]
    assert len({one.summation for one in sources}) == 1
    n, k = SIZES[steps]
    reference: Bits | None = None
    runs = 0
    for one in reversed(sources):
        ptx = built(one.candidate, one.task, cache_dir)
        for m in OF_TILES[one.tile[0]]:
            if one.task.layout is Layout.NT and m % 8:
                continue
            task = one.task.model_copy(update={"m": m, "n": n, "k": k})
            if reference is None:
                reference = product(ptx, one.candidate, task.model_copy(update={"m": MOST}))
            for first in (0, MOST - m):
                found = product(ptx, one.candidate, task, first, sms=1)  # a persistent CTA then computes all tiles
                assert (found == reference[first : first + m]).all(), (one.task.layout, one.tile, m, first)
                runs += 1
    assert runs >= 2 * len(sources)


def test_kernels_for_few_rows_give_equal_bits_where_stages_are_filled_again(cache_dir: Path) -> None:
    every = [one for one in invariant_sources(Arch.SM_90A) if one.task.element is ElementType.BF16 and one.n_step == 8]
    sources = [one for one in every if one.task.layout is Layout.TN and one.tile[0] <= 64]
    task = sources[0].task.model_copy(update={"m": 24, "n": 72, "k": 1352})  # 22 blocks of 64, of at most 16 stages
    found = [product(built(one.candidate, one.task, cache_dir), one.candidate, task) for one in sources]
    assert [one.tile for one in sources] == [(16, 64), (16, 64), (32, 64), (64, 64), (64, 128)]
    assert all((one == found[0]).all() for one in found)


PLANTED: list[tuple[Family[Any], Schedule]] = [
    (
        MmaSync(),
        MmaSyncSchedule(block_m=64, block_n=64, block_k=32, warps_m=2, warps_n=2, stages=2, split_k=3, reduction="workspace"),
    ),
    (MmaSync(), MmaSyncSchedule(block_m=64, block_n=64, block_k=32, warps_m=2, warps_n=2, warps_k=2, stages=2)),
    (
        WgmmaTma(),
        WgmmaTmaSchedule(
            consumers=1, atoms=1, block_n=128, block_k=64, stages=2, splits=2, tma_store=False, programmatic=False
        ),
    ),
]


@pytest.mark.parametrize(("family", "schedule"), PLANTED, ids=["mma_sync splits", "mma_sync slices", "wgmma_tma splits"])
def test_a_kernel_that_splits_k_is_seen_and_states_nothing(family: Family[Any], schedule: Schedule, cache_dir: Path) -> None:
    """As a planted kernel for small M: its rows are right, and have other bits than those of the set."""
    n, k = SIZES[8, 8]
    task = GemmTask(m=16, n=n, k=k, arch=Arch.SM_90A)
    sources = invariant_sources(Arch.SM_90A if isinstance(family, WgmmaTma) else Arch.SM_80)
    one = next(one for one in sources if one.task.layout is Layout.NN)
    target = one.task.model_copy(update={"m": 16, "n": n, "k": k})
    wanted = product(built(one.candidate, one.task, cache_dir), one.candidate, target)
    planted = family.write(schedule, task)
    assert (product(built(planted, task, cache_dir), planted, task) != wanted).any()
    assert family.summation(schedule, task) is None


def test_only_schedules_that_add_all_of_k_in_one_place_state_their_order() -> None:
    for family, split in ((MmaSync(), ("split_k", "warps_k")), (WgmmaTma(), ("splits", "cluster_k"))):
        found = {True: 0, False: 0}
        for schedule in _schedules(family):
            whole = all(schedule.values()[axis] == 1 for axis in split)
            assert (family.summation(schedule, SMALL) is not None) == whole
            found[whole] += 1
        assert min(found.values()) > 0
    for family in (Latency(), Resident()):
        assert {family.summation(one, SMALL) for one in _schedules(family)} == {None}


def _schedules(family: Family[Any]) -> Iterator[Schedule]:
    arch = Arch.SM_80 if isinstance(family, MmaSync) else Arch.SM_90A
    for task in (one.model_copy(update={"arch": arch}) for one in (SMALL, LARGE)):
        yield from family.space(task, REFERENCE_CHIPS[arch]) if family.supports(task) else ()


def test_accumulators_are_told_apart_and_tiles_are_not() -> None:
    task = GemmTask(m=64, n=64, k=64, arch=Arch.SM_90A)
    halves = task.model_copy(update={"accumulate": AccumulatorType.F16})
    base = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=128, block_k=64, stages=2)
    changes = ({"block_n": 64}, {"turned": True}, {"consumers": 2, "stages": 4, "block_k": 32})
    others = [base.model_copy(update=change) for change in changes]
    assert {WgmmaTma().summation(one, task) for one in (base, *others)} == {"wgmma.m64k16 f32 in order of K"}
    assert WgmmaTma().summation(base, halves) == "wgmma.m64k16 f16 in order of K"
