"""The modules of a campaign: problem files of a folder or a collection, by level and name."""

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from cudal2_agent.agent.tasks.problem_sources import Problem, level_of, problems_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_campaign import AskedModule
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.task import Arch, TimingMode

_NAME_CHARS = 200


class AskedHow(NamedTuple):
    """What every module of a call is asked with."""

    arithmetic: Arithmetic = Arithmetic.F32
    training: bool = False
    small: bool = False
    arch: Arch = Arch.SM_90A
    mode: TimingMode = TimingMode.OFFLINE


def asked_modules(
    source: str, levels: Collection[int], names: Sequence[str], home: Path, read: Callable[[Path], str], how: AskedHow
) -> list[AskedModule]:
    """The problem files of a source. A file that cannot be read is asked too, and gets a row that says why.

    `names`: patterns such as `*gelu*` or `1/19`; none for all. Raises: UsageError where nothing is left.
    """
    found = problems_of(source, home)
    chosen = [each for each in found if (not levels or level_of(each.path) in levels) and _is_named(each, names)]
    if not chosen:
        left = " and ".join([*(["--levels"] if levels else []), *(["--names"] if names else [])])
        raise UsageError(f"{left} leave none of the {len(found):,} problems of {source}; see `tasks list {source}`")
    return [_asked(each, read, how) for each in chosen]


def _asked(problem: Problem, read: Callable[[Path], str], how: AskedHow) -> AskedModule:
    try:
        text, unreadable = read(problem.path), ""
    except UsageError as exc:
        text, unreadable = "", str(exc)
    name, level = problem.name[-_NAME_CHARS:], level_of(problem.path)
    return AskedModule(name=name, level=level, problem=text, unreadable=unreadable, **how._asdict())


def _is_named(problem: Problem, patterns: Sequence[str]) -> bool:
    """By the name of the task, what stands behind its collection or folder, or the name of its file."""
    told = (problem.name, problem.name.rpartition(":")[2], problem.path.stem)
    return not patterns or any(fnmatchcase(each, pattern) for each in told for pattern in patterns)
