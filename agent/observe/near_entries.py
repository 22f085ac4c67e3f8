"""The entries of the shipped library that are nearest to a task."""

from functools import lru_cache

from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.precedents import REACH, doublings


@lru_cache(maxsize=8)
def near_entries(task: GemmTask, chip: str, count: int) -> tuple[LibraryEntry, ...]:
    """At most `count` entries of the same layout, element and accumulator, the nearest first; none for a chip without library.

    Raises: LibraryError where the library is damaged.
    """
    from cudal2.library.kernel_library import key_of, shipped_library  # loads torch

    library = shipped_library(chip)
    if library is None:
        return ()
    own, sizes = tuple(key_of(task))[3:], (task.m, task.n, task.k)
    alike = [key for key in library.keys() if tuple(key)[3:] == own]  # noqa: SIM118 (a library is no dict)
    near = sorted((distance, key) for key in alike if (distance := doublings((key.m, key.n, key.k), sizes)) <= REACH)
    found = (library.find(key) for _, key in near[:count])
    return tuple(entry for entry in found if entry is not None)
