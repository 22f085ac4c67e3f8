"""Starts a run, resumes it after a kill, and ends it."""

import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from langchain_core.runnables import RunnableConfig

from cudal2_agent.agent.observe.ranking import leading_step
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.graph import compile_graph
from cudal2_agent.agent.run.nodes import Nodes
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.run.state import initial_state, open_checkpoints
from cudal2_agent.agent.run.versions import versions
from cudal2_agent.contract.errors import Cudal2Error, StoreError, UsageError
from cudal2_agent.contract.events import Emit, Notice, RunFinished, RunStarted
from cudal2_agent.contract.file_system import require_local
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.settings.run_settings import REMOTE_DEVICES
from cudal2_agent.contract.settings.settings import Settings

SHAPE_CHARS = 80  # of a module's name in the id of a run
_NO_LIMIT = 1_000_000_000  # supersteps; the budget and the clock end a run
_OWN_PARTS = ("evaluate", "agent")  # of a step's seconds; builds overlap them, and what is shared counts once per round


def name_run(task: Task) -> str:
    """An id for a new run. Runs of one shape sort by time."""
    shape = re.sub(r"[^A-Za-z0-9._+-]+", "-", task.shape[:SHAPE_CHARS]).strip("-._+") or "module"
    return f"{shape}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def start_run(
    run_id: str,
    task: Task,
    settings: Settings,
    parts: Dependencies,
    emit: Emit,
    out: Path | None = None,
    *,
    resumable: bool = True,
) -> RunResult:
    """Run a task to the end. Raises: StoreError, and faults of the machine; recorded steps are kept and the run can be resumed.

    `out`: the output folder; by default one of the run in the home folder.
    `resumable`: without it no checkpoint is written, for a run of seconds that starts anew after a kill.
    """
    run = new_run(run_id, task, settings, parts, out)
    with _locked(run):
        parts.store.start_run(run)
        return _drive(run, parts, emit, resumable=resumable)


def new_run(run_id: str, task: Task, settings: Settings, parts: Dependencies, out: Path | None = None) -> RunRecord:
    """The record of a run that begins now."""
    return RunRecord(
        run_id=run_id,
        task=task,
        chip=parts.sandbox.chip,
        policy=settings.policy,
        seed=settings.seed,
        settings=settings.recorded(),
        versions=versions(),
        status="running",
        created_at=datetime.now(UTC),
        out=str(out or settings.runs_dir / run_id),
    )


def check_resumable(run: RunRecord) -> None:
    """Raises: UsageError where the run has finished, or came from another store."""
    if run.status == "finished":
        where = f"its results are in {run.out}" if run.out else "it came from another store; start a new run with --shape"
        raise UsageError(f"run {run.run_id} has finished; {where}")


def resume_run(run: RunRecord, settings: Settings, parts: Dependencies, emit: Emit) -> RunResult:
    """Continue a run from its last checkpoint.

    Raises: UsageError where the run has finished, another process has it, or this machine has another chip.
    """
    check_resumable(run)
    chip = parts.sandbox.chip
    if chip.name != run.chip.name:
        raise UsageError(f"run {run.run_id} was for {run.chip.name}, this machine offers {chip.name}; start a new run here")
    run = run.model_copy(update={"status": "running", "finished_at": None, "settings": settings.recorded()})
    with _locked(run):
        parts.store.update_run(run)
        return _drive(run, parts, emit)


def _drive(run: RunRecord, parts: Dependencies, emit: Emit, *, resumable: bool = True) -> RunResult:
    """Run the graph. The checkpoints are deleted only after the run's end is in the store."""
    with open_checkpoints(run.settings.checkpoint_path) if resumable else nullcontext() as checkpoints:
        config: RunnableConfig = {"configurable": {"thread_id": run.run_id}, "recursion_limit": _NO_LIMIT}
        saved = checkpoints.get_tuple(config) if checkpoints else None
        state = saved.checkpoint["channel_values"] if saved else {}
        if checkpoints and "queue" in state:  # an older version wrote it, for another graph; the run goes on from its steps
            checkpoints.delete_thread(run.run_id)
            saved = None
        steps = parts.store.steps(run.run_id)
        clock = RunClock(_spent_s(state, steps), queued_s=lambda: parts.sandbox.queued_s)
        nodes = Nodes(run, parts, clock, emit)
        emit(_started(run, parts, clock, nodes.history.next_index))
        begin = None if saved else initial_state(max((step.round for step in steps), default=0))
        status: Literal["finished", "interrupted"] = "finished"
        try:
            durability: Literal["sync"] | None = "sync" if checkpoints else None
            reason = compile_graph(nodes, checkpoints).invoke(begin, config, durability=durability)["stop"]
        except KeyboardInterrupt:
            status = reason = "interrupted"
        except (Cudal2Error, sqlite3.DatabaseError):  # open_checkpoints translates the second one
            if resumable:
                emit(Notice(message=f"the recorded steps are kept; continue with: cudal2-agent runs resume {run.run_id}"))
            with suppress(StoreError):  # such as a full disk; the first error is reported
                parts.store.update_run(run.model_copy(update={"status": "failed", "finished_at": datetime.now(UTC)}))
            raise
        finally:
            nodes.close()
        steps = nodes.history.steps
        best = leading_step(steps, run.task, run.chip)
        run = _ended(run, status, best)
        parts.store.update_run(run)
        if status == "finished" and checkpoints:
            checkpoints.delete_thread(run.run_id)
    emit(RunFinished(run_id=run.run_id, reason=reason, steps=len(steps), best_candidate_id=run.best_candidate_id))
    trajectory = parts.store.trajectory(run.run_id)
    return RunResult(
        run=run,
        steps=steps,
        best=best,
        reason=reason,
        spent_s=clock.spent_s(),
        observations=trajectory.observations,
        exchanges=trajectory.exchanges,
    )


def _spent_s(state: Mapping[str, Any], steps: Sequence[Step]) -> float:
    """Time spent before a kill: that of the last checkpoint, and that of the candidates recorded after it."""
    later = [step for step in steps if step.index >= state.get("next_index", 0)]
    return float(state.get("spent_s", 0.0)) + sum(step.seconds.get(part, 0.0) for step in later for part in _OWN_PARTS)


def _ended(run: RunRecord, status: str, best: Step | None) -> RunRecord:
    best_id = best.candidate.id if best else None
    return run.model_copy(update={"status": status, "finished_at": datetime.now(UTC), "best_candidate_id": best_id})


def _started(run: RunRecord, parts: Dependencies, clock: RunClock, next_index: int) -> RunStarted:
    sandbox = parts.sandbox
    nothing = "the emulator" if sandbox.can_execute else "none"
    device = sandbox.environment.gpu if sandbox.environment else f"{nothing} (for {run.chip.name})"
    if run.settings.device.startswith(REMOTE_DEVICES):
        device += f" of {run.settings.device}"
    return RunStarted(
        run_id=run.run_id,
        task=run.task,
        device=device,
        budget=run.settings.budget,
        minutes=max(run.settings.minutes - clock.spent_s() / 60, 0.0),
        resumed_at_step=next_index,
    )


@contextmanager
def _locked(run: RunRecord) -> Iterator[None]:
    """One process per run; the system releases the lock of a process that dies. Covers this machine's folder of locks only."""
    folder = run.settings.locks_dir
    require_local(folder, "locks")
    lock = FileLock(folder / f"{run.run_id}.lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as exc:
        raise UsageError(f"another process is working on run {run.run_id}; wait for it or stop it") from exc
    except OSError as exc:
        raise UsageError(f"{folder} is not writable ({exc.strerror}); set CUDAL2_HOME to a folder that is") from exc
    try:
        yield
    finally:
        lock.release()
