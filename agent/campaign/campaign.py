"""A campaign on one machine: a process per GPU and processes that prove winners, until the queue is empty or time is up."""

import time
from typing import Protocol

from agent.campaign.gpu_worker import run_gpu_worker
from agent.campaign.messages import WorkerOrder
from agent.campaign.overview import Overview, WorkerView, class_figures
from agent.campaign.processes import Place, Processes
from agent.campaign.proving import run_prover
from contract.base import Record
from contract.campaign import ShapeResult
from contract.errors import WorkerError
from contract.settings import Settings
from contract.task import Arch
from policies.trajectories.campaigns.queue import CampaignQueue

TICK_S = 0.2
LOOK_S = 1.0  # between two looks at the store
GRACE_S = 20.0  # after the deadline, to the tasks in progress
SLACK_S = 300.0  # beyond a run's time limit, until a process that reports nothing counts as stuck


class CampaignPlan(Record):
    """How a campaign is run here. `devices`: as in the settings. `hours`: None for no limit. `provers`: number of processes."""

    name: str
    settings: Settings
    arch: Arch
    devices: tuple[str, ...]
    hours: float | None = None
    provers: int = 1
    commit: str = ""


class Display(Protocol):
    """Where a campaign shows what it does."""

    def finished(self, result: ShapeResult) -> None: ...
    def show(self, overview: Overview) -> None: ...
    def note(self, message: str) -> None: ...


class Campaign:
    """Runs a plan. `run` returns when nothing is left or time is up; an interrupt ends it with everything recorded."""

    def __init__(self, plan: CampaignPlan, queue: CampaignQueue, display: Display) -> None:
        self._plan, self._queue, self._display = plan, queue, display
        self._begin_s = time.monotonic()
        self._deadline_s = time.time() + 3600 * plan.hours if plan.hours is not None else None
        self._results = [stored.result for stored in queue.results()]
        self._last_key = max((stored.key for stored in queue.results()), default=0)
        self._known = len(self._results)
        self._gpus = Processes([self._gpu(device) for device in plan.devices], queue.release, display.note)
        self._provers = Processes([self._prover(number) for number in range(plan.provers)], _nothing_held, display.note)

    def run(self) -> None:
        """Raises: WorkerError where no process could go on and tasks are left; KeyboardInterrupt."""
        try:
            self._work()
        finally:
            self._gpus.stop()
            self._provers.stop()
            self._look()
        failures = [place.reason for place in self._gpus.places if place.reason]
        if self._queue.counts().left and len(failures) == len(self._gpus.places):
            raise WorkerError(f"no worker of campaign {self._plan.name} could go on: {failures[0]}; run it again to go on")

    def _work(self) -> None:
        """First the GPUs, with the provers beside them; then the provers alone."""
        looked_s = 0.0
        while not self._is_late(GRACE_S):
            searching = self._gpus.running and (not self._is_late() or self._gpus.busy)
            if not searching and not (self._provers.running and self._queue.unproved()):
                return
            if searching:
                self._gpus.tick(TICK_S)
            self._provers.tick(0.0 if searching else TICK_S)
            if time.monotonic() - looked_s > LOOK_S:
                self._look()
                looked_s = time.monotonic()

    def _look(self) -> None:
        """Read what came to the store, whoever recorded it."""
        for stored in sorted(self._queue.results(self._last_key)):
            self._last_key = stored.key
            self._results.append(stored.result)
            self._display.finished(stored.result)
        self._display.show(self._overview())

    def _overview(self) -> Overview:
        counts, spent_s = self._queue.counts(), time.monotonic() - self._begin_s
        new = self._results[self._known :]
        left_s = spent_s / len(new) * counts.left if new else None
        if left_s is not None and self._deadline_s is not None:
            left_s = min(left_s, max(self._deadline_s - time.time(), 0.0))
        gpus = self._gpus.places
        return Overview(
            name=self._plan.name,
            done=counts.done,
            total=counts.total,
            failed=counts.failed,
            unproved=self._queue.unproved(),
            spent_s=spent_s,
            left_s=left_s,
            candidates_per_s=sum(place.candidates for place in gpus) / spent_s,
            busy=sum(one.gpu_seconds for one in new) / (spent_s * len(gpus)) if new and gpus else None,
            classes=class_figures(self._results),
            workers=[_view(place) for place in (*gpus, *self._provers.places)],
        )

    def _is_late(self, grace_s: float = 0.0) -> bool:
        return self._deadline_s is not None and time.time() >= self._deadline_s + grace_s

    def _gpu(self, device: str) -> Place:
        settings = shared(self._plan.settings, len(self._plan.devices)).model_copy(update={"device": device.partition("/")[0]})
        order = self._order(settings).model_copy(update={"lock": device if device.startswith("cuda") else ""})
        return Place(device, run_gpu_worker, order, stall_s=60 * settings.minutes + SLACK_S)

    def _prover(self, number: int) -> Place:
        settings = self._plan.settings.model_copy(update={"device": "emulator", "compile_jobs": 1})
        stall_s = 2 * settings.emulate.timeout_s + SLACK_S
        return Place(f"prover {number}", run_prover, self._order(settings), stall_s=stall_s)

    def _order(self, settings: Settings) -> WorkerOrder:
        plan = self._plan
        return WorkerOrder(
            campaign=plan.name, settings=settings, arch=plan.arch, deadline_s=self._deadline_s, commit=plan.commit
        )


def shared(settings: Settings, processes: int) -> Settings:
    """The settings of one of several processes, which share the processors."""
    return settings.model_copy(update={"compile_jobs": max(settings.compile_jobs // max(processes, 1), 1)})


def _view(place: Place) -> WorkerView:
    doing = " ".join(part for part in (place.doing.task, place.doing.stage) if part)
    if place.ended:
        doing = f"ended: {place.reason}" if place.reason else "ended"
    return WorkerView(device=place.label, doing=doing, since_s=place.since_s, candidates=place.candidates)


def _nothing_held(_: str, __: str) -> None:
    """A lost prover holds no item; its claim runs out."""
