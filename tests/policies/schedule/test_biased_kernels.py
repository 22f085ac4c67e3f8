"""Kernels of every family that adds a bias: right on the emulator in each way out, and the text of the others is as it was."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorArg
from cudal2_agent.contract.records.task import BIAS, Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from tests.policies.schedule.ways_out import OTHER_WAYS, WAYS, faults_of, gemm, written_first
from tests.sandbox.emulator.compiled import PtxCompiler


@pytest.mark.parametrize(("asked", "task"), WAYS.values(), ids=WAYS.keys())
def test_every_way_out_of_wgmma_tma_adds_it(compiler: PtxCompiler, asked: dict[str, object], task: GemmTask) -> None:
    candidate = written_first("wgmma_tma", asked, task)
    assert TensorArg(tensor=BIAS) in candidate.plan.kernels[-1].args
    assert faults_of(compiler, candidate, task) == []


@pytest.mark.parametrize(("name", "asked", "task"), OTHER_WAYS)
def test_other_families_add_it(compiler: PtxCompiler, name: str, asked: dict[str, object], task: GemmTask) -> None:
    candidate = written_first(name, asked, task)
    assert TensorArg(tensor=BIAS) in candidate.plan.kernels[-1].args
    assert faults_of(compiler, candidate, task) == []


def test_a_family_that_adds_none_supports_no_such_task() -> None:
    resident = {each.name: each for each in families(Arch.SM_90A)}["resident"]
    task = gemm(4096, 512, 256)
    assert resident.supports(task.model_copy(update={"bias": False}))
    assert not resident.supports(task)
    assert list(resident.space(task, REFERENCE_CHIPS[Arch.SM_90A])) == []
