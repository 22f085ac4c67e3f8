"""What was measured of kernels, by task: a library, or the rows of a campaign that one could be built from."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from agent.campaign_report.newest_rows import counting
from contract.campaign import ShapeResult
from contract.evaluation import AUTOTUNED
from contract.errors import UsageError
from contract.library import EntryEvaluation
from contract.task import Arch, GemmTask, TimingMode

# The evaluation of the kernel for a task; None where there is none.
Lookup = Callable[[GemmTask], EntryEvaluation | None]


class KnownKernels(NamedTuple):
    """`source`: what they were read from, in words. `chip`: the one that all were measured on. `count`: of kernels."""

    source: str
    chip: str
    arch: Arch
    count: int
    find: Lookup


def kernels_of_rows(rows: Iterable[ShapeResult], source: str) -> KnownKernels:
    """The kernels of rows in mode offline, as plain launches, of the environment that was measured last.

    A library takes the same ones: an eager program's kernels trigger nothing early. Raises: UsageError for rows without one.
    """
    offline = [row for row in rows if row.task.mode is TimingMode.OFFLINE and row.environment and row.best_without]
    if not offline:
        raise UsageError(f"{source} holds no kernel of mode offline; `cudal2-agent campaign run` finds some")
    newest = max(offline, key=lambda row: row.finished_at)
    chosen = counting(offline, newest.environment)
    found = {row.task: evaluation for row in chosen if (evaluation := _evaluation(row)) is not None}
    chip = (newest.environment or "").partition(" driver-")[0]
    return KnownKernels(source, chip, newest.task.arch, len(found), found.get)


def measured_autotuning(rows: Iterable[ShapeResult], chip: str) -> dict[GemmTask, float]:
    """cuBLASLt-AutoTuning's median time by task, of the newest row on a chip. Unit: microseconds."""
    ours = [row for row in rows if (row.environment or "").partition(" driver-")[0] == chip and AUTOTUNED in row.baselines_us]
    return {row.task: row.baselines_us[AUTOTUNED] for row in sorted(ours, key=lambda row: row.finished_at)}


def _evaluation(row: ShapeResult) -> EntryEvaluation | None:
    won = row.best_without
    if won is None or row.run_id is None or row.environment is None:
        return None
    return EntryEvaluation(
        time_us=won.time_us,
        speedup=won.speedup,
        baselines_us=row.baselines_us,
        worst_error=won.worst_error,
        environment=row.environment,
        run_id=row.run_id,
        commit=row.commit,
        measured=row.finished_at.date(),
    )
