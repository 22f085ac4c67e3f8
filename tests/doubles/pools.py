"""Spaces and pools of schedules for tests that open many policies on few tasks: a space takes 0.9 s to list, a pool 1.1 s."""

import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule import policy
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.resident.family import Resident
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.optimiser.pool_prior import Prior
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool

SPACES, POOLS = 12, 24  # of the last arguments that are kept; a space takes up to 20 MB


def share_spaces(patch: pytest.MonkeyPatch) -> None:
    """A family lists the schedules for a task and a chip once; it lists no more of them than somebody asks for."""
    for family, space in _LISTED_ONCE.items():
        patch.setattr(family, "space", space)


def share_pools(patch: pytest.MonkeyPatch) -> None:
    """Policies with equal arguments share a pool; `test_search.py` shows that equal ones are equal."""
    patch.setattr(policy, "SchedulePool", _shared)


class _Listed:
    """What an iterator has given so far, and the iterator for what nobody asked for yet. Schedules are frozen."""

    def __init__(self, rest: Iterator[Any]) -> None:
        self._rest, self._given, self._lock = rest, list[Any](), threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        place = 0
        while True:
            with self._lock:
                if place == len(self._given):
                    try:
                        self._given.append(next(self._rest))
                    except StopIteration:
                        return
                given = self._given[place:]
            place += len(given)
            yield from given


def _listed_once(family: type[Family[Any]]) -> Any:
    anew = family.space

    @functools.lru_cache(SPACES)
    def listed(task: GemmTask, chip: Chip) -> _Listed:
        return _Listed(anew(family(), task, chip))

    def space(_: Family[Any], task: GemmTask, chip: Chip) -> Iterator[Any]:
        return iter(listed(task, chip))

    return space


_LISTED_ONCE: dict[type[Family[Any]], Any] = {one: _listed_once(one) for one in (WgmmaTma, Latency, Resident, MmaSync)}


def _shared(families: Sequence[Any], task: GemmTask, chip: Chip, seed: int, prior: Prior) -> SchedulePool:
    return _made(tuple(type(family) for family in families), task, chip, seed, prior)


@functools.lru_cache(POOLS)
def _made(families: tuple[Any, ...], task: GemmTask, chip: Chip, seed: int, prior: Prior) -> SchedulePool:
    return SchedulePool([family() for family in families], task, chip, seed, prior)
