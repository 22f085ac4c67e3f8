"""A campaign on one machine: a process per GPU and processes that prove winners, until the queue is empty or time is up."""

from cudal2_agent.agent.campaign.campaign_process import WorkerOrder
from cudal2_agent.agent.campaign.gpu_worker import run_gpu_worker
from cudal2_agent.agent.campaign.process_slots import Entry, Slot, Slots
from cudal2_agent.agent.campaign.proving import run_prover
from cudal2_agent.agent.campaign.watching import GRACE_S, CampaignWatch, Display, WorkerView
from cudal2_agent.agent.wiring.remote import is_remote
from cudal2_agent.agent.wiring.sandbox import share_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.workers.turns import device_id
from cudal2_agent.store.campaign_queue import CampaignQueue

TICK_S = 0.2
SEARCHES_PER_GPU = 10  # a round of a search takes seconds to propose and build, and tenths of a second to measure
SEARCHES_PER_COMMAND = 2  # each has a worker of its own, and a login or a job
SLACK_S = 300.0  # beyond a run's time limit, until a process that reports nothing counts as stuck


class CampaignPlan(Record):
    """How a campaign is run here. `devices`: as in the settings; `emulator/N` is the Nth process over the emulator.

    `hours`: None for no limit. `provers`: number of processes that prove winners.
    """

    name: str
    settings: Settings
    arch: Arch
    devices: tuple[str, ...]
    hours: float | None = None
    provers: int = 1
    commit: str = ""
    searches_per_gpu: int = SEARCHES_PER_GPU


class Campaign:
    """Runs a plan. `run` returns when nothing is left or time is up; an interrupt ends it with everything recorded."""

    def __init__(
        self,
        plan: CampaignPlan,
        queue: CampaignQueue,
        display: Display,
        *,
        gpu_entry: Entry = run_gpu_worker,
        prover_entry: Entry = run_prover,
    ) -> None:
        self._plan, self._queue, self._display = plan, queue, display
        self._prover_entry, self._searched = prover_entry, False
        self._watch = CampaignWatch(queue, display, plan.hours)
        gpus = [self._gpu(device, gpu_entry, search) for device in plan.devices for search in range(self._searches(device))]
        provers = [self._prover(number, prover_entry) for number in range(plan.provers)]
        self._gpus = Slots(gpus, queue.release, display.note)
        self._provers = Slots(provers, _nothing_held, display.note)

    def run(self) -> None:
        """Raises: WorkerError where no process could go on and tasks are left; KeyboardInterrupt."""
        try:
            self._work()
        finally:
            self._gpus.stop()
            self._provers.stop()
            self._look(at_once=True)
        failures = [slot.reason for slot in self._gpus.slots if slot.reason]
        if self._queue.counts().left and len(failures) == len(self._gpus.slots):
            raise WorkerError(f"no worker of campaign {self._plan.name} could go on: {failures[0]}; run it again to go on")

    def _work(self) -> None:
        """First the GPUs, with the provers beside them; then provers alone, on the processors that the searches had."""
        while not self._watch.is_late(GRACE_S):
            if self._gpus.running and (not self._watch.is_late() or self._gpus.busy):
                self._gpus.tick(TICK_S)
                self._provers.tick(0.0)
            elif self._provers.running and (left := self._queue.unproved()):
                if not self._searched and not self._watch.is_late():
                    self._prove_alone(left)
                self._provers.tick(TICK_S)
            else:
                return
            self._look()

    def _prove_alone(self, left: int) -> None:
        """Free the GPUs, and start a prover for every two compile jobs: each has a worker and a compiler."""
        self._searched = True
        self._gpus.stop()
        self._display.note(
            f"no search is left, and the GPUs are free; {left} winners are being proved on the emulator; "
            f"Ctrl-C leaves them to: cudal2-agent campaign prove --name {self._plan.name}"
        )
        wanted = min(self._plan.settings.compile_jobs // 2, left)
        self._provers.add([self._prover(number, self._prover_entry) for number in range(len(self._provers.slots), wanted)])

    def _look(self, *, at_once: bool = False) -> None:
        gpus = [_view(slot, searches=True) for slot in self._gpus.slots if not self._searched]
        self._watch.look([*gpus, *(_view(slot, searches=False) for slot in self._provers.slots)], at_once=at_once)

    def _gpu(self, device: str, entry: Entry, search: int) -> Slot:
        building = sum((self._searches(one) + 1) // 2 for one in self._plan.devices)  # half of a GPU's processes
        settings = share_of(self._plan.settings, device, building)
        order = order_of(self._plan, settings, self._watch.deadline_s)
        lock = f"{device_id(int(device.partition(':')[2]))}-{search}" if device.startswith("cuda") else ""
        waits_s = settings.worker_wait_s if is_remote(device) else 0.0
        stall_s = 60 * settings.minutes + SLACK_S + waits_s
        return Slot(device, entry, order.model_copy(update={"lock": lock}), stall_s=stall_s)

    def _searches(self, device: str) -> int:
        """Processes on a device. They alternate on a GPU: one proposes and builds while the other's candidates are measured."""
        if device.startswith("exec"):
            return min(SEARCHES_PER_COMMAND, self._plan.searches_per_gpu)
        return self._plan.searches_per_gpu if device.startswith(("cuda", "spool")) else 1

    def _prover(self, number: int, entry: Entry) -> Slot:
        settings = self._plan.settings.model_copy(update={"device": "emulator", "compile_jobs": 1})
        order = order_of(self._plan, settings, self._watch.deadline_s)
        return Slot(f"prover {number}", entry, order, stall_s=2 * settings.emulate.timeout_s + SLACK_S)


def order_of(plan: CampaignPlan, settings: Settings, deadline_s: float | None) -> WorkerOrder:
    return WorkerOrder(campaign=plan.name, settings=settings, arch=plan.arch, deadline_s=deadline_s, commit=plan.commit)


def _view(slot: Slot, *, searches: bool) -> WorkerView:
    doing = " ".join(part for part in (slot.doing.task, slot.doing.stage) if part)
    if slot.ended:
        doing = f"ended: {slot.reason}" if slot.reason else "ended"
    return WorkerView(slot.label, doing, slot.since_s, slot.candidates, searches)


def _nothing_held(_: str, __: str) -> None:
    """A lost prover holds no item; its claim runs out."""
