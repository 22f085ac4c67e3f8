"""The drawn schedules: the requested number per family, all different, over every task for which it has schedules."""

from collections import Counter

from benchmarks.emulator.drawn_schedules import TASKS, drawn
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.schedule.families.registry import families


def test_every_family_has_its_share_over_its_tasks() -> None:
    each = len(TASKS)
    found = list(drawn(each))
    names = [family.name for family in families(Arch.SM_90A)]
    assert Counter(name for name, _, _ in found) == dict.fromkeys(names, each)
    assert len({candidate.id for _, _, candidate in found}) == len(found)
    for family in families(Arch.SM_90A):
        tasks = {task.id for name, task, _ in found if name == family.name}
        assert tasks == {task.id for task in TASKS if any(family.space(task, REFERENCE_CHIPS[Arch.SM_90A]))}


def test_the_same_schedules_are_drawn_again() -> None:
    assert [one.id for _, _, one in drawn(3)] == [one.id for _, _, one in drawn(3)]
