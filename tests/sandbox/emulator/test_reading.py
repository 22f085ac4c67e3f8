"""The garbage collector rests while PTX is read, and no longer: also where the PTX is damaged."""

import gc

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import resolve
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.emulator import kernel
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.emulator.ptx.module import PtxError


def test_the_collector_rests_until_damaged_ptx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task, parse, enabled = GemmTask(m=64, n=64, k=64), kernel.parse, list[bool]()

    def observed(ptx: str) -> object:
        enabled.append(gc.isenabled())
        return parse(ptx)

    monkeypatch.setattr(kernel, "parse", observed)
    family = next(one for one in families(task.arch) if one.supports(task))
    candidate = family.write(next(iter(family.space(task, REFERENCE_CHIPS[task.arch]))), task)
    assert candidate.plan is not None
    plan = resolve(candidate.plan, task, LIMITS[task.arch], REFERENCE_CHIPS[task.arch].sms)
    with pytest.raises(PtxError):
        EmulatedKernel(candidate.id, ".visible .entry broken(", plan, task)
    assert enabled == [False]
    assert gc.isenabled()
