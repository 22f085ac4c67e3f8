"""What campaigns and runs measured with plain launches, in offline mode: of a store, or of rows in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.agent.campaign.winners import algorithm_beside, baselines_beside, best_launches, deciding_steps
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.store.store import Store


class MeasuredKernel(NamedTuple):
    """A winner of one task on one chip, and the row it comes from."""

    chip: str
    winner: Winner
    row: ShapeResult

    @property
    def task(self) -> GemmTask:
        return self.row.task


class Origins(NamedTuple):
    """What rows and steps hold beside a winner's times: its text where no schedule is behind it, and AutoTuning's choice.

    `autotuned`: in words; `opaque`: cuBLASLt's record of it as hexadecimal digits.
    """

    source: str | None = None
    autotuned: str | None = None
    opaque: str | None = None


def kernels_of_rows(paths: Sequence[Path]) -> list[MeasuredKernel]:
    """Raises: UsageError, with the line number."""
    return _measured(read_results(paths))


def kernels_of_store(store: Store) -> list[MeasuredKernel]:
    """Winners of the campaigns' rows, and of finished runs that belong to no campaign. Raises: StoreError."""
    rows = store.results()
    known = {row.run_id for row in rows}
    single = [
        run
        for run in store.runs()
        if run.run_id not in known and run.status == "finished" and isinstance(run.task, GemmTask) and _offline(run.task)
    ]
    return _measured([*rows, *(_row(run, store.steps(run.run_id)) for run in single)])


def chip_of(kernels: Sequence[MeasuredKernel], chip: str | None) -> str:
    """The chip that a library is built for. Raises: UsageError where it was not measured, or is not the only one."""
    found = sorted({one.chip for one in kernels})
    if not found:
        raise UsageError("no kernel was measured with plain launches yet; `cudal2-agent campaign run` finds some, on a GPU")
    if chip is None and len(found) > 1:
        raise UsageError(f"kernels of several chips were measured: {', '.join(found)}; choose one with --chip")
    if chip is not None and chip not in found:
        raise UsageError(f"no kernel was measured on {chip!r}; there are {', '.join(found)}")
    return chip or found[0]


def origins_in_row(kernel: MeasuredKernel) -> Origins:
    """What a row alone holds."""
    return Origins(autotuned=kernel.row.autotuned)


def origins_in(store: Store, kernel: MeasuredKernel) -> Origins:
    """What the row and the store's steps hold of a winner; nothing where the store lacks them.

    The tuned baseline that the store keeps may be of a later tuning than the race, so its record counts for equal words only.
    """
    row = kernel.row
    steps = store.steps(row.run_id) if row.run_id else []
    step = next((one for one in reversed(steps) if one.candidate.id == kernel.winner.candidate_id), None)
    source = step.candidate.source if step and isinstance(step.candidate, Candidate) else None
    book = store.tuned(kernel.task, row.environment or "")
    kept = book.detail.partition(";")[0] if book else None
    words = row.autotuned or algorithm_beside(steps, row.best) or kept
    return Origins(source, words, book.algorithm if book and kept == words else None)


def _measured(rows: Sequence[ShapeResult]) -> list[MeasuredKernel]:
    return [
        MeasuredKernel(chip, row.best_without, row)
        for row in rows
        if row.best_without is not None and _offline(row.task) and (chip := _chip_of(row.environment))
    ]


def _row(run: RunRecord, steps: Sequence[Step]) -> ShapeResult:
    """A run as the row of a campaign."""
    deciding = deciding_steps(steps, gemm(run.task, "a library"), run.chip)
    best, best_without = best_launches(deciding)
    environments = (step.evaluation.environment.key for step in deciding if isinstance(step.evaluation, Measured))
    return ShapeResult(
        task=run.task,
        run_id=run.run_id,
        environment=next(environments, None),
        best=best,
        best_without=best_without,
        baselines_us=baselines_beside(deciding, best),
        autotuned=algorithm_beside(deciding, best),
        floor_us=roofline_us(run.task, run.chip),
        finished_at=max((step.created_at for step in steps), default=run.created_at),
    )


def _chip_of(environment: str | None) -> str:
    """The chip in an `Environment.key`; empty where there is none."""
    return (environment or "").partition(" driver-")[0]


def _offline(task: GemmTask) -> bool:
    return task.mode is TimingMode.OFFLINE
