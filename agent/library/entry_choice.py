"""From measured kernels to the entries of a library, and why others are left out. Pure.

An entry's text is the one that was measured: a candidate's id is a hash of its source, flags and plan, so a schedule whose
family writes another text today is left out, and so is a kernel that cannot be written at all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cudal2_agent.agent.library.entry_source import from_text, source_sha256
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel, Origins
from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.library import EntryEvaluation, LibraryEntry
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.policies.schedule.families.registry import written

NOT_FASTER = "does not beat AutoTuning"
OTHER_TEXT = "its family writes another source today"
NO_FAMILY = "no family writes its schedule today"
NO_SOURCE = "it has no schedule, and its source is not in this store"
OWN_FLAGS = "it was compiled with flags of its own"
BY_NVCC = "its plan names nvcc, and libraries are built by NVRTC"
EXCLUDED = "named by --without"

Product = tuple[str, Layout, ElementType]  # shape as M x N x K
Products = frozenset[Product]


@dataclass(frozen=True)
class LeftOut:
    """A task without an entry. `reason`: of its best kernel; `detail`: why the family refused it."""

    task: GemmTask
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class EntryChoice:
    """One entry per task, by id, and the tasks that have none."""

    entries: tuple[LibraryEntry, ...]
    left_out: tuple[LeftOut, ...]


def product_of(task: GemmTask) -> Product:
    return task.shape, task.layout, task.element


def choose_entries(
    kernels: Sequence[MeasuredKernel],
    origins: Callable[[MeasuredKernel], Origins],
    *,
    winning_only: bool = True,
    without: Products = frozenset(),
) -> EntryChoice:
    """Of each task the kernel with the highest lower bound of those that can be written as they were measured.

    `winning_only`: kernels whose interval does not lie above 1 are left out. `without`: products that get no entry.
    """
    entries, left_out = list[LibraryEntry](), list[LeftOut]()
    for task, same in groupby(sorted(kernels, key=_place), key=lambda one: one.task):
        if product_of(task) in without:
            left_out.append(LeftOut(task, EXCLUDED))
            continue
        chosen = _chosen(task, list(same), origins, winning_only=winning_only)
        (entries if isinstance(chosen, LibraryEntry) else left_out).append(chosen)  # type: ignore[arg-type]
    return EntryChoice(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(left_out))


def _chosen(
    task: GemmTask, kernels: Sequence[MeasuredKernel], origins: Callable[[MeasuredKernel], Origins], *, winning_only: bool
) -> LibraryEntry | LeftOut:
    """The entry of a task, or why its best kernel gives none."""
    best = sorted(kernels, key=_rank)
    wanted = [one for one in best if one.winner.speedup.low > 1.0] if winning_only else best
    if not wanted:
        return LeftOut(task, NOT_FASTER)
    outcomes: Iterator[LibraryEntry | LeftOut] = (_entry(one, origins) for one in wanted)
    first = next(outcomes)
    return next((one for one in (first, *outcomes) if isinstance(one, LibraryEntry)), first)


def _entry(kernel: MeasuredKernel, origins: Callable[[MeasuredKernel], Origins]) -> LibraryEntry | LeftOut:
    winner, row = kernel.winner, kernel.row
    try:
        candidate = None if winner.schedule is None else written(winner.schedule, kernel.task)
    except ValueError as exc:
        return LeftOut(kernel.task, NO_FAMILY, str(exc))
    if candidate is not None and candidate.id != winner.candidate_id:
        return LeftOut(kernel.task, OTHER_TEXT)
    found = origins(kernel)
    if candidate is None:
        stored = _from_source(found.source, winner.candidate_id)
        if isinstance(stored, str):
            return LeftOut(kernel.task, stored)
        candidate = stored
    return LibraryEntry(
        task=kernel.task,
        chip=kernel.chip,
        schedule=winner.schedule,
        source=None if winner.schedule is not None else candidate.source,
        source_sha256=source_sha256(candidate),
        programmatic=winner.programmatic,
        autotuned=found.autotuned,
        evaluation=EntryEvaluation(
            time_us=winner.time_us,
            speedup=winner.speedup,
            baselines_us=row.baselines_us,
            worst_error=winner.worst_error,
            environment=row.environment or "",
            run_id=row.run_id or "",
            commit=row.commit,
            measured=row.finished_at.date(),
        ),
    )


def _from_source(source: str | None, candidate_id: str) -> Candidate | str:
    """The candidate of a text without a schedule, or why there is none."""
    if source is None:
        return NO_SOURCE
    try:
        candidate = from_text(source)
    except PlanError:
        return OWN_FLAGS
    if candidate.compiler != "nvrtc":
        return BY_NVCC
    return candidate if candidate.id == candidate_id else OWN_FLAGS


def _place(kernel: MeasuredKernel) -> tuple[object, ...]:
    task = kernel.task
    return task.m, task.n, task.k, task.layout.value, task.element.value, task.accumulate.value, task.arch.value


def _rank(kernel: MeasuredKernel) -> tuple[object, ...]:
    """Best first; equal bounds in an order that does not depend on how they were read."""
    row = kernel.row
    return -kernel.winner.speedup.low, row.finished_at, row.run_id or "", kernel.winner.candidate_id
