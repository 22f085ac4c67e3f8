"""The emulator's test kernels compile to the opcodes that they test, and are verified."""

import functools
import re
from collections import Counter

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, cluster_tiles
from cudal2_agent.sandbox.building.check import Checked, check
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.kernels.families import CHIP, TASKS, TRAITS, FamilyKernel, sampled
from tests.sandbox.emulator.kernels.written import WRITTEN, WrittenKernel
from tests.sandbox.emulator.trial import Trial, interleavings

FEW, MANY = 4, 50  # random interleavings


@functools.cache
def _one_of_each_trait() -> dict[tuple[str, str], FamilyKernel]:
    """Kernels of all traits, over all tasks in turn."""
    of_trait: dict[tuple[str, str], list[FamilyKernel]] = {}
    for kernel in sampled():
        of_trait.setdefault((kernel.family, kernel.trait), []).append(kernel)
    return {trait: kernels[index % len(kernels)] for index, (trait, kernels) in enumerate(of_trait.items())}


def _wrong(compiler: PtxCompiler, kernel: FamilyKernel, random: int) -> list[str]:
    trial = Trial(compiler.compile(kernel.candidate, kernel.task.arch), kernel.candidate, kernel.task, CHIP.sms)
    return [f"{kernel.id}: {verdict}" for conditions in interleavings(random) if (verdict := trial.verdict(conditions))]


def _name(part: object) -> str:
    return part.shape if isinstance(part, GemmTask) else part.name if isinstance(part, WrittenKernel) else str(part)


@pytest.mark.parametrize("kernel", WRITTEN, ids=_name)
def test_a_written_kernel_compiles_to_what_it_is_there_for(compiler: PtxCompiler, kernel: WrittenKernel) -> None:
    if reason := kernel.missing():
        pytest.skip(reason)
    candidate = kernel.candidate()
    for task in kernel.tasks:
        assert isinstance(check(candidate, task, LIMITS[task.arch], CHIP.sms), Checked)
        assert resolve(candidate.plan, task, LIMITS[task.arch], CHIP.sms).launches
    ptx = compiler.compile(candidate, kernel.tasks[0].arch)
    absent = [opcode for opcode in kernel.opcodes if not re.search(rf"^[^/\n]*\b{re.escape(opcode)}", ptx, re.MULTILINE)]
    assert not absent


@pytest.mark.parametrize("random", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("kernel", "task"),
    [(kernel, task) for kernel in WRITTEN for task in kernel.tasks],
    ids=_name,
)
def test_a_written_kernel_is_right(compiler: PtxCompiler, kernel: WrittenKernel, task: GemmTask, random: int) -> None:
    if reason := kernel.missing():
        pytest.skip(reason)
    candidate = kernel.candidate()
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, CHIP.sms)
    assert [verdict for conditions in interleavings(random) if (verdict := trial.verdict(conditions))] == []


@pytest.mark.parametrize(("family", "trait"), [(family, trait) for family, traits in TRAITS.items() for trait in traits])
def test_a_family_kernel_is_right(compiler: PtxCompiler, family: str, trait: str) -> None:
    assert _wrong(compiler, _one_of_each_trait()[family, trait], FEW) == []


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_all_family_kernels_of_a_task_are_right(compiler: PtxCompiler, task: GemmTask) -> None:
    assert [wrong for kernel in sampled() if kernel.task == task for wrong in _wrong(compiler, kernel, MANY)] == []


def test_the_sample_has_every_trait_of_all_families() -> None:
    drawn = Counter((kernel.family, kernel.trait) for kernel in sampled())
    assert set(drawn) == {(family, trait) for family, traits in TRAITS.items() for trait in traits}
    assert len({kernel.candidate.id for kernel in sampled()}) > 0.9 * len(sampled())
    programmatic = Counter(kernel.candidate.plan.launches[0].programmatic for kernel in sampled())
    assert min(programmatic[True], programmatic[False]) > 10


def test_the_sample_has_every_kind_of_task() -> None:
    for family in TRAITS:
        tasks = {kernel.task for kernel in sampled() if kernel.family == family}
        assert {task.element for task in tasks} == set(ElementType)
        assert {(task.layout, task.accumulate) for task in tasks} == {(x, y) for x in Layout for y in AccumulatorType}
    odd = [task for task in TASKS if task.m % 2 and task.n % 2 and task.k % 2]
    assert {kernel.family for kernel in sampled() if kernel.task in odd} == {"mma_sync", "wgmma_tma"}


def test_persistent_ctas_of_the_sample_take_several_tiles() -> None:
    several = 0
    for kernel in sampled():
        schedule = kernel.schedule
        if isinstance(schedule, WgmmaTmaSchedule) and schedule.persistent:
            grid = resolve(kernel.candidate.plan, kernel.task, LIMITS[kernel.task.arch], CHIP.sms).launches[0].grid[0]
            several += cluster_tiles(schedule, kernel.task) * schedule.cluster >= 2 * grid
    assert several >= 5
