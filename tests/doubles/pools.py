"""Pools of schedules for tests that open many policies on few tasks: a pool of 8,000 schedules takes 0.7 s to enumerate."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule import policy
from cudal2_agent.policies.schedule.optimiser.pool_prior import Prior
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool


def share_pools(patch: pytest.MonkeyPatch) -> None:
    """Policies with equal arguments share a pool; `test_search.py` shows that equal ones are equal."""
    patch.setattr(policy, "SchedulePool", _shared)


def _shared(families: Sequence[Any], task: GemmTask, chip: Chip, seed: int, prior: Prior) -> SchedulePool:
    return _made(tuple(type(family) for family in families), task, chip, seed, prior)


@functools.cache
def _made(families: tuple[Any, ...], task: GemmTask, chip: Chip, seed: int, prior: Prior) -> SchedulePool:
    return SchedulePool([family() for family in families], task, chip, seed, prior)
