"""Measures shapes as ordinary runs of the store, and reads these again: later searches and trainings use them as any run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cudal2_agent.agent.index.default_index import EmptyRetriever
from cudal2_agent.agent.learning.calibration.spread_schedules import SpreadSchedules
from cudal2_agent.agent.run.lifecycle import name_run, start_run
from cudal2_agent.agent.wiring.parts import joined
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.optimiser.pool_prior import PriorOf
from cudal2_agent.policies.training.groups import MIN_SCHEDULES, TimedRun, read_runs
from cudal2_agent.store.store import Store

POLICY = "calibrate"  # of these runs, by which they are found again
SCHEDULES = 16  # of a shape
RUN_MINUTES = 2.0  # of a shape at most


class CalibrationRun(NamedTuple):
    """`minute`: at which the calibration had this run, counting the time of the runs alone."""

    timed: TimedRun
    minute: float


def calibration_settings(settings: Settings) -> Settings:
    """One round of a few schedules, whose best is then measured in full against cuBLASLt.

    The roofline ends no run: it follows from rates that nobody has measured.
    """
    update: dict[str, Any] = {"policy": POLICY, "budget": SCHEDULES, "round_size": SCHEDULES, "minutes": RUN_MINUTES}
    update |= {"stop_near_roofline": False, "finalists": 1, "race_baselines": "cublaslt", "profile": "off"}
    return settings.model_copy(update=update)


class ShapeMeasurer:
    """Measures one task after another in an open sandbox. `settings`: as `calibration_settings` gives them."""

    def __init__(self, settings: Settings, store: Store, sandbox: Sandbox, prior_of: PriorOf, emit: Emit) -> None:
        self._settings, self._store, self._sandbox, self._emit = settings, store, sandbox, emit
        self._policy = SpreadSchedules(prior_of, settings.seed)

    def measure(self, task: GemmTask) -> RunRecord | None:
        """The finished run; None where the task's operands do not fit into the GPU's memory.

        A run that is killed is measured anew. Raises: KeyboardInterrupt; MachineError, WorkerError, StoreError.
        """
        parts = joined(self._sandbox, self._policy, EmptyRetriever(), self._store)
        try:
            ended = start_run(name_run(task), task, self._settings, parts, self._emit, resumable=False).run
        except UsageError:
            return None
        if ended.status == "interrupted":
            raise KeyboardInterrupt
        return ended


def measured_runs(store: Store, chip: str, tasks: Sequence[GemmTask]) -> list[CalibrationRun]:
    """The finished runs of calibrations of a chip, the latest of each of the tasks, in the order of their beginnings.

    A run with too few timed schedules to learn from takes time, and is not among them.
    """
    wanted = {task.id for task in tasks}
    records = [run for run in store.runs() if run.policy == POLICY and run.status == "finished" and run.chip.name == chip]
    of_task = {run.task.id: run for run in sorted(records, key=lambda run: run.created_at) if run.task.id in wanted}
    timed = {run.run_id: run for run in read_runs(store, lambda task: task.id in wanted)}
    found, minute = [], 0.0
    for record in sorted(of_task.values(), key=lambda run: run.created_at):
        minute += run_minutes(record)
        if len(timed[record.run_id].timed) >= MIN_SCHEDULES:
            found.append(CalibrationRun(timed[record.run_id], minute))
    return found


def tasks_done(store: Store, chip: str) -> dict[str, float]:
    """Minutes that the finished calibration run of each task took, by the task's id."""
    records = (run for run in store.runs() if run.policy == POLICY and run.status == "finished" and run.chip.name == chip)
    return {run.task.id: run_minutes(run) for run in records}


def run_minutes(run: RunRecord) -> float:
    return (run.finished_at - run.created_at).total_seconds() / 60 if run.finished_at else 0.0
