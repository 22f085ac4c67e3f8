"""The best kernels that are known for a task and near ones: entries of the shipped library, and measured steps of the store."""

from collections.abc import Iterator
from dataclasses import dataclass

from cudal2.library.kernel_library import KernelLibrary, key_of, shipped_library
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.store.precedents import REACH, best_steps_near, doublings
from cudal2_agent.store.store import Store

COUNT = 4  # of the library, and of the store


@dataclass(frozen=True)
class KnownWinner:
    """A source, and where it comes from with its time and speedup, in words."""

    source: str
    said: str


def winners(task: Task, chip: Chip, store: Store) -> list[KnownWinner]:
    """The nearest first. A library's kernel was measured on the chip of that name, in races of its campaign."""
    library = shipped_library(chip.name) if isinstance(task, GemmTask) else None
    shipped = list(_of_library(library, task)) if library and isinstance(task, GemmTask) else []
    stored = [
        KnownWinner(
            one.step.candidate.source,
            f"{one.task.shape}, of run {one.step.run_id} ({one.policy}): {_figures(one.time_us, one.speedup)}",
        )
        for one in best_steps_near(store, task, chip, COUNT)
    ]
    return [*shipped, *stored]


def _of_library(library: KernelLibrary, task: GemmTask) -> Iterator[KnownWinner]:
    """Of the same layout, element and accumulator. Stale entries are left out."""
    own = tuple(key_of(task))[3:]
    keys = library.keys()
    alike = [key for key in keys if tuple(key)[3:] == own]
    sizes = (task.m, task.n, task.k)
    near = sorted((distance, key) for key in alike if (distance := doublings((key.m, key.n, key.k), sizes)) <= REACH)
    for _, key in near[:COUNT]:
        entry = library.find(key)
        assert entry is not None
        try:
            source = candidate_of(entry).source
        except LibraryError:
            continue
        figures = _figures(entry.evaluation.time_us, entry.evaluation.speedup.ratio)
        yield KnownWinner(source, f"{entry.task.shape} {Layout(key.layout)}, of library {library.manifest.name}: {figures}")


def _figures(time_us: float, speedup: float) -> str:
    return f"{time_us:.2f} us measured, {speedup:.3f} times as fast as the baseline"
