"""The best kernels that are known for a task and near ones: entries of the shipped library, and measured steps of the store."""

from collections.abc import Iterator
from dataclasses import dataclass

from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.observe.near_entries import near_entries
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.store.precedents import best_steps_near
from cudal2_agent.store.store import Store

COUNT = 4  # of the library, and of the store


@dataclass(frozen=True)
class KnownWinner:
    """A source, and where it comes from with its time and speedup, in words."""

    source: str
    said: str


def winners(task: Task, chip: Chip, store: Store) -> list[KnownWinner]:
    """The nearest first. A library's kernel was measured on the chip of that name, in races of its campaign."""
    shipped = list(_of_library(task, chip)) if isinstance(task, GemmTask) else []
    stored = [
        KnownWinner(
            one.step.candidate.source,
            f"{one.task.shape}, of run {one.step.run_id} ({one.policy}): {_figures(one.time_us, one.speedup)}",
        )
        for one in best_steps_near(store, task, chip, COUNT)
    ]
    return [*shipped, *stored]


def _of_library(task: GemmTask, chip: Chip) -> Iterator[KnownWinner]:
    """Of the same layout, element and accumulator. Stale entries are left out."""
    for entry in near_entries(task, chip.name, COUNT):
        try:
            source = candidate_of(entry).source
        except LibraryError:
            continue
        figures = _figures(entry.evaluation.time_us, entry.evaluation.speedup.ratio)
        yield KnownWinner(
            source, f"{entry.task.shape} {entry.task.layout}{entry.task.epilogue}, of the library for {entry.chip}: {figures}"
        )


def _figures(time_us: float, speedup: float) -> str:
    return f"{time_us:.2f} us measured, {speedup:.3f} times as fast as the baseline"
