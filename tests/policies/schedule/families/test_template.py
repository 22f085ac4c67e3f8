"""A family's source is its `.cu`: constants are filled in, unused sections and constants are dropped."""

import random
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import AccumulatorType, Activation, Arch, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.registry import families, rewrite
from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule
from cudal2_agent.policies.schedule.families.template import KernelConstant, SourceTemplate, template_of
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.store.steps import ExportedStep
from tests.doubles import INSPECTION
from tests.sandbox.emulator.kernels.families import CHIP, TASKS

TEXT = """\
head
//@constants
//@section one both
kOne and what both need
//@section two both
two
//@end
tail kAlways
"""
CONSTANTS = [KernelConstant("kOne", 1), KernelConstant("kAlways", True, "why")]
# Where order and caching are searched, and where a tile is left for four SMs; the same with rows of D that TMA cannot write;
# rows of one operand that are read in pairs.
LARGER = (
    *(
        GemmTask(m=m, n=n, k=k, layout=layout, arch=Arch.SM_90A)
        for (m, n, k), layout in product(((4096, 4096, 512), (640, 128, 2048), (128, 128, 16384)), (Layout.NN, Layout.NT))
    ),
    *(GemmTask(m=m, n=127, k=k, arch=Arch.SM_90A) for m, k in ((640, 2048), (128, 16384), (40, 16384))),
    GemmTask(m=128, n=128, k=132, arch=Arch.SM_90A),
    GemmTask(m=132, n=128, k=132, layout=Layout.NT, arch=Arch.SM_90A),
    GemmTask(m=128, n=132, k=128, arch=Arch.SM_90A),
)
FAMILIES = [(family, arch) for arch in Arch for family in families(arch)]


def body(used: Collection[str]) -> list[str]:
    """The lines behind those of the task's types."""
    lines = SourceTemplate(TEXT).fill(GemmTask(m=1, n=1, k=1), CONSTANTS, used).splitlines()
    assert [line.partition(" = ")[0] for line in lines[2:4]] == ["using Element", "using Register"]
    return [lines[0], *lines[4:]]


def test_a_section_is_kept_where_one_of_its_names_is_used() -> None:
    always = "constexpr bool kAlways = true;  // why"
    assert body([]) == ["head", always, "tail kAlways"]
    assert body(["two"]) == ["head", always, "two", "tail kAlways"]
    assert body(["one"]) == ["head", "constexpr int kOne = 1;", always, "kOne and what both need", "tail kAlways"]
    assert body(["both"])[-3:] == ["kOne and what both need", "two", "tail kAlways"]


def test_a_section_that_the_text_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no section three"):
        SourceTemplate(TEXT).fill(GemmTask(m=1, n=1, k=1), CONSTANTS, ["one", "three"])


@pytest.mark.parametrize(("family", "arch"), FAMILIES, ids=lambda value: getattr(value, "name", str(value)))
def test_what_a_family_writes_has_no_marker_left(family: Family[Any], arch: Arch) -> None:
    tasks = [GemmTask(m=m, n=n, k=k, arch=arch) for m, n, k in ((1000, 1000, 1000), (8192, 8192, 64), (64, 512, 512))]
    task, space = next((task, space) for task in tasks if (space := list(family.space(task, REFERENCE_CHIPS[arch]))))
    for schedule in random.Random(0).sample(space, 10):
        assert "//@" not in family.write(schedule, task).source


def test_every_section_is_used_by_some_schedule() -> None:
    for family in families(Arch.SM_90A):
        floats = [task for task in TASKS if task.accumulate is AccumulatorType.F32]
        updates: tuple[dict[str, object], ...] = (
            {"bias": True},
            {"activation": Activation.GELU},
            {"activation": Activation.SILU, "gated": True},
        )
        epilogues = [task.model_copy(update=update) for task in floats for update in updates]
        supported = [task for task in (*TASKS, *LARGER, *epilogues) if family.supports(task)]
        used = {
            name for task in supported for s in list(family.space(task, CHIP))[::7] for name in family.parts(s, task).sections
        }
        used |= {"any-shape"} & template_of(family.name).sections  # the spaces compile small shapes in
        assert used == template_of(family.name).sections


# What an earlier version wrote still loads, its schedules can be written again, and a resumed run does not repeat them.
LINES = (Path(__file__).parent / "written_b1f38a8.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", LINES, ids=["mma_sync", "wgmma_tma"])
def test_a_schedule_of_an_earlier_version_is_written_again(line: str) -> None:
    step = ExportedStep.model_validate_json(line)
    assert isinstance(step.candidate, Candidate)
    assert step.candidate.id == step.candidate_id
    again = rewrite(step.candidate, step.task)
    assert again is not None
    stored = step.candidate.origin.schedule
    assert again.plan == step.candidate.plan
    assert stored is not None
    assert again.origin.schedule == {**(again.origin.schedule or {}), **stored}
    assert predict(step.candidate, step.task, INSPECTION) == predict(again, step.task, INSPECTION)


@pytest.mark.parametrize("line", LINES, ids=["mma_sync", "wgmma_tma"])
def test_a_resumed_run_does_not_repeat_a_schedule_whose_source_has_changed(line: str) -> None:
    step = ExportedStep.model_validate_json(line)
    schedule = step.candidate.origin.schedule
    attempt = Attempt(candidate_id=step.candidate_id, policy="schedule", status="measured", schedule=schedule, time_us=1.0)
    observation = step.observation.model_copy(update={"attempts": (attempt,), "round": 1})
    proposed = SchedulePolicy(families(step.task.arch)).propose(observation, 16)
    assert proposed
    assert all(one.origin.schedule != schedule for one in proposed)


# Warpgroups that hand registers over: a CTA never asks for more than its threads had at launch, for it would wait for ever.
TMA = [
    WgmmaTmaSchedule(consumers=consumers, atoms=1, block_n=64, block_k=64, stages=2, ctas_per_sm=ctas, push=push)
    for consumers, ctas, push in product((1, 2, 3), (1, 2, 3), (False, True))
]
RESIDENT = [ResidentSchedule(consumers=consumers, block_n=64, slots=4) for consumers in (1, 2, 3, 4)]


@pytest.mark.parametrize("schedule", [one for one in TMA if one.hands_over])
def test_wgmma_tma_takes_no_more_than_it_gave(schedule: WgmmaTmaSchedule) -> None:
    asked = 128 * (schedule.producer_registers + schedule.consumers * schedule.consumer_registers)
    assert asked <= schedule.threads * schedule.launch_registers


@pytest.mark.parametrize("schedule", [one for one in RESIDENT if one.hands_over])
def test_resident_takes_no_more_than_it_gave(schedule: ResidentSchedule) -> None:
    assert 128 * (40 + schedule.consumers * schedule.consumer_registers) <= schedule.threads * schedule.launch_registers
