"""A built candidate carries its resolved launch plan; records without one are filled in."""

import json

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import resolve
from cudal2_agent.contract.records import build
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.doubles import INSPECTION, TASK, candidate
from tests.sandbox.building.build_kernels import host

SMS = 132
ONE = candidate(1)
PLAN = resolve(ONE.plan, TASK, LIMITS[TASK.arch], SMS)
BUILT = Built(candidate=ONE, inspection=INSPECTION, artifact_path="k.cubin", cached=True, seconds=0.5, task=TASK, plan=PLAN)


def test_the_plan_of_the_build_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "resolve", None)
    again = Built.model_validate_json(BUILT.model_dump_json())
    assert again == BUILT
    assert again.plan_for(TASK, SMS) == PLAN


def test_a_record_of_an_older_version_is_filled_in() -> None:
    fields = json.loads(BUILT.model_dump_json())
    del fields["task"], fields["plan"]
    old = Built.model_validate(fields)
    assert old.plan is None
    assert old.plan_for(TASK, SMS) == PLAN


@pytest.mark.parametrize(
    ("task", "sms"),
    [(TASK, SMS - 1), (TASK.model_copy(update={"m": TASK.m * 2}), SMS), (GemmTask(m=8, n=8, k=8, arch=Arch.SM_90A), SMS)],
)
def test_another_task_or_chip_gets_a_plan_of_its_own(task: GemmTask, sms: int) -> None:
    assert BUILT.plan_for(task, sms) == resolve(ONE.plan, task, LIMITS[task.arch], sms)


def test_a_host_candidate_has_no_plan() -> None:
    built = Built(candidate=host("int launch();"), inspection=INSPECTION, artifact_path="", cached=True, seconds=0.0, task=TASK)
    assert built.plan_for(TASK, SMS) is None
