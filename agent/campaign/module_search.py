"""One module of a campaign: traced, checked for soundness, searched; and its row."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cudal2_agent.agent.campaign.winners import decides, environment_of, gpu_seconds_of
from cudal2_agent.agent.report.keeping import keeps_pytorch
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.tasks.task_check import Check, CheckHow, TaskRow, checked
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_campaign import AskedModule, ModuleResult, ModuleStatus, ModuleWinner
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup, yardstick_of
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer

Run = Callable[[ModuleTask], RunResult]


def search_module(
    asked: AskedModule, tracer: Tracer, soundness: Check, seed: int, run: Run, commit: str
) -> ModuleResult | None:
    """The row of a module; None where the run was interrupted. Raises: MachineError, WorkerError, StoreError."""
    began_s = time.monotonic()
    if asked.unreadable:
        return _none(asked, asked.unreadable, began_s, commit)
    how = CheckHow(asked.arithmetic, asked.training, seed, soundness, asked.arch, asked.mode)
    row, task = checked(asked.name, asked.problem, tracer, how, "", began_s)
    if task is None:
        return _none(asked, row.reason, began_s, commit)
    if asked.small and row.dims:
        task = tracer.trace(asked.problem, asked.name, row.dims, asked.arithmetic, asked.training, asked.arch, asked.mode)
    task = task.model_copy(update={"soundness": Soundness(status=row.status, reason=row.reason, accepted=row.accepted)})
    try:
        found = run(task)
    except UsageError as exc:  # such as a module that does not fit in memory
        return _none(asked, str(exc), began_s, commit, status="no-plan", **_of(task, row))
    return None if found.run.status == "interrupted" else module_result(asked, task, row, found, began_s, commit)


def module_result(
    asked: AskedModule, task: ModuleTask, row: TaskRow, run: RunResult, began_s: float, commit: str
) -> ModuleResult:
    """The row of a run that ended."""
    best = _deciding(run)
    measured = best.evaluation if best is not None and isinstance(best.evaluation, Measured) else None
    yardstick = yardstick_of(measured) if measured is not None else None
    return ModuleResult(
        task=asked,
        status=_status(task, best),
        run_id=run.run.run_id,
        environment=environment_of(run.steps),
        best=None if best is None else _winner(best),
        baselines_us={timing.name: median_us(timing) for timing in measured.baselines} if measured is not None else {},
        fastest=yardstick.name if yardstick is not None else "",
        floor_us=roofline_us(task, run.run.chip),
        candidates=len({step.candidate.id for step in run.steps}),
        gpu_seconds=sum(map(gpu_seconds_of, run.steps)),
        seconds=time.monotonic() - began_s,
        reason=run.reason if best is not None or not run.steps else run.steps[-1].evaluation.headline,
        commit=commit,
        finished_at=datetime.now(UTC),
        **_of(task, row),
    )


def _deciding(run: RunResult) -> Step | None:
    """The step that decides: the best one, if it was executed and found right."""
    best = run.best
    if best is None or not best.evaluation.passed:
        return None
    measured = [step for step in run.steps if decides(step) and step.candidate.id == best.candidate.id]
    return measured[-1] if measured else best


def _status(task: ModuleTask, best: Step | None) -> ModuleStatus:
    if best is None:
        return "no-plan"
    if not isinstance(best.evaluation, Measured):
        return "proved"
    return "keep-pytorch" if keeps_pytorch(task, best) else "faster"


def _winner(step: Step) -> ModuleWinner:
    evaluation, candidate = step.evaluation, step.candidate
    measured = evaluation if isinstance(evaluation, Measured) else None
    return ModuleWinner(
        candidate_id=candidate.id,
        step_index=step.index,
        schedule=candidate.origin.schedule,
        kernels=len(candidate.plan.kernels) if isinstance(candidate, Candidate) else 0,
        library_calls=len(candidate.plan.library_calls) if isinstance(candidate, Candidate) else 0,
        time_us=median_us(measured.timing) if measured is not None else None,
        speedups=tuple(paired_speedup(measured.timing, each) for each in measured.baselines) if measured is not None else (),
        found_right=evaluation.headline if measured is None else "verified by a GPU",
        worst_error=max((test.worst for test in evaluation.tests), default=None),
    )


def _of(task: ModuleTask, row: TaskRow) -> dict[str, Any]:
    return {
        "soundness": row.status,
        "soundness_reason": row.reason,
        "dims": task.dims,
        "operations": len(task.graph.nodes),
        "flops": task.flops,
        "bytes": task.operand_bytes,
    }


def _none(
    asked: AskedModule, reason: str, began_s: float, commit: str, status: ModuleStatus = "no-task", **more: Any
) -> ModuleResult:
    seconds, now = time.monotonic() - began_s, datetime.now(UTC)
    return ModuleResult(task=asked, status=status, reason=reason, seconds=seconds, commit=commit, finished_at=now, **more)
