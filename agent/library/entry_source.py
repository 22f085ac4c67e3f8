"""The source of a library's entry: the text that was measured, written again by its family, or refused."""

import hashlib
from collections.abc import Callable

from cudal2_agent.contract.errors import LibraryError, PlanError
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.registry import written, written_for_any_size

AUTHOR = "library"


def candidate_of(entry: LibraryEntry) -> Candidate:
    """The candidate of an entry. Raises: LibraryError where its text today is not the one that was measured."""
    what = f"entry {entry.id} ({entry.task.shape})"
    try:
        candidate = written(entry.schedule, entry.task) if entry.schedule is not None else from_text(entry.source or "")
    except (ValueError, PlanError) as exc:
        raise LibraryError(f"{what} cannot be written: {exc}; build the library again") from exc
    if source_sha256(candidate) != entry.source_sha256:
        raise LibraryError(f"{what} is stale: its source today is not the one that was measured; build the library again")
    return candidate


def padded_candidate(entry: LibraryEntry, task: GemmTask) -> Candidate:
    """An entry's schedule, written anew for another task. Raises: LibraryError for a stale entry, or where it does not fit."""
    return _rewritten(entry, task, written)


def candidate_for_any_m(entry: LibraryEntry, task: GemmTask) -> Candidate:
    """An entry's schedule, written for another task with its sizes as arguments. Raises: as `padded_candidate`."""
    return _rewritten(entry, task, written_for_any_size)


def _rewritten(
    entry: LibraryEntry, task: GemmTask, write: Callable[[dict[str, ScheduleValue], GemmTask], Candidate]
) -> Candidate:
    candidate_of(entry)
    try:
        if entry.schedule is None:
            raise ValueError("it is a source, whose sizes may be constants")
        return write(entry.schedule, task)
    except (ValueError, PlanError) as exc:
        raise LibraryError(f"entry {entry.id} ({entry.task.shape}) cannot be written for {task.shape}: {exc}") from exc


def from_text(source: str) -> Candidate:
    """Raises: PlanError."""
    return Candidate.from_source(source, Origin(policy=AUTHOR))


def source_sha256(candidate: Candidate) -> str:
    return hashlib.sha256(candidate.source.encode()).hexdigest()
