"""Warpgroups that hand registers over: a CTA never asks for more than its threads had at launch, for it would wait for ever."""

from itertools import product

import pytest

from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule

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
