"""A campaign on a Ray cluster: an actor per GPU. All state is in the store, which every node must reach.

Ray numbers GPUs logically, so that an actor locks its device as the processes of one machine do. An actor that is lost is
started again by Ray and frees what it held.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from cudal2_agent.agent.campaign.campaign import CampaignPlan, order_of
from cudal2_agent.agent.campaign.campaign_process import WorkerOrder
from cudal2_agent.agent.campaign.claiming import Searches, work_on
from cudal2_agent.agent.campaign.gpu_worker import device_lock
from cudal2_agent.agent.campaign.overview import WorkerView
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.agent.campaign.watching import GRACE_S, LOOK_S, CampaignWatch, Display
from cudal2_agent.agent.wiring.sandbox import share_of
from cudal2_agent.contract.errors import Cudal2Error, MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import ignore
from cudal2_agent.store.campaigns.queue import CampaignQueue
from cudal2_agent.store.store import Store, open_store

LOCAL = "local"
MAX_RESTARTS = 5
MAX_FAILURES = 5  # of one actor in a row
OpenSearch = Callable[[WorkerOrder, Store], AbstractContextManager[Searches]]


@contextmanager
def open_shape_search(order: WorkerOrder, store: Store) -> Iterator[Searches]:
    """The real search. A machine that lacks something fails here, before a task is claimed."""
    with open_search(order.settings, store, ignore, order.commit) as search:
        search.open(order.arch)
        yield search


class GpuActor:
    """One GPU of the cluster. Its sandbox stays open between two tasks, and is opened again after a failure or a pause."""

    def __init__(self, order: WorkerOrder, open_search: OpenSearch) -> None:
        import ray

        context = ray.get_runtime_context()
        numbers = context.get_accelerator_ids().get("GPU", [])
        lock = f"cuda-{numbers[0]}-0" if numbers else ""
        self._name = actor_name(context.get_actor_id())
        self._order, self._open_search = order, open_search
        self._always, self._opened = ExitStack(), ExitStack()
        self._always.enter_context(device_lock(order.settings, lock))
        self._store = self._always.enter_context(open_store(order.settings.store_url))
        self._queue = CampaignQueue(self._store, order.campaign)
        self._searches: Searches | None = None
        self._queue.release(self._name, "its actor was lost")  # what the process before this one held

    def search_next(self) -> str | None:
        """Search one task, if one is free: None where none is, empty where that went well, else the reason of the failure."""
        try:
            if self._searches is None:
                self._searches = self._opened.enter_context(self._open_search(self._order, self._store))
            claim = self._queue.claim(self._name)
            if claim is None:
                self._searches.close()
                return None
            work_on(self._queue, self._searches, claim, lambda _task, _result: None)
        except Cudal2Error as exc:
            self._searches = None
            self._opened.close()
            return str(exc)
        return ""


def actor_name(actor_id: str) -> str:
    """The name under which an actor holds items; it keeps it when Ray starts it again."""
    return f"ray:{actor_id}"


def run_on_ray(
    plan: CampaignPlan, queue: CampaignQueue, address: str, display: Display, open_search: OpenSearch = open_shape_search
) -> None:
    """Run a plan on the cluster; only those of `plan.devices` that are the emulator count.

    Raises: MachineError, UsageError, WorkerError.
    """
    try:
        import ray
    except ImportError as exc:
        raise MachineError("--ray needs Ray; pip install 'cudal2-agent[ray]'") from exc
    watch = CampaignWatch(queue, display, plan.hours)
    started = not ray.is_initialized()
    try:
        if started:
            ray.init(address=None if address == LOCAL else address, log_to_driver=False, include_dashboard=False)
    except ConnectionError as exc:
        raise UsageError(f"no Ray cluster at {address} ({exc}); name its address, or local to start one here") from exc
    try:
        _Driver(ray, plan, queue, display, watch, open_search).run()
    finally:
        if started:
            ray.shutdown()


class _Driver:
    def __init__(
        self,
        ray: Any,
        plan: CampaignPlan,
        queue: CampaignQueue,
        display: Display,
        watch: CampaignWatch,
        open_search: OpenSearch,
    ) -> None:
        self._ray, self._plan, self._queue = ray, plan, queue
        self._display, self._watch = display, watch
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if (
            len(nodes) > 1
            and plan.settings.store_url.startswith("sqlite")
            and len({n["NodeManagerAddress"] for n in nodes}) > 1
        ):
            raise UsageError("a cluster of several machines needs a store they all reach: set CUDAL2_STORE to a PostgreSQL URL")
        gpus = int(ray.cluster_resources().get("GPU", 0))
        emulated = bool(plan.devices)
        count = len(plan.devices) if emulated else gpus
        if not count:
            raise UsageError("the Ray cluster has no GPU; --gpus emulator proves kernels without times")
        settings = share_of(plan.settings, "emulator" if emulated else "cuda:0", -(-count // len(nodes)))
        order = order_of(plan, settings, watch.deadline_s)
        options = {"num_gpus": 0 if emulated else 1, "num_cpus": 1, "max_restarts": MAX_RESTARTS, "max_task_retries": -1}
        actor = ray.remote(**options)(GpuActor)
        self._actors = [actor.remote(order, open_search) for _ in range(count)]
        self._failures = [0] * count
        self._since_s = [time.monotonic()] * count
        self._reason = ""

    def run(self) -> None:
        pending = {self._next(place): place for place in range(len(self._actors))}
        try:
            while pending and not self._watch.is_late(GRACE_S):
                ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=LOOK_S)
                for reference in ready:
                    place = pending.pop(reference)
                    if self._goes_on(place, reference) and self._watch.leaves_time():
                        pending[self._next(place)] = place
                self._look()
                if not self._queue.counts().left:
                    break  # an actor of a lost node may wait for a place for ever
        finally:
            for actor in self._actors:
                self._ray.kill(actor)
                self._queue.release(actor_name(actor._actor_id.hex()), "its actor was stopped", counts=False)
            self._look(at_once=True)
        if self._queue.counts().left and self._watch.leaves_time():
            raise WorkerError(f"no actor of campaign {self._plan.name} could go on: {self._reason}; run it again to go on")

    def _next(self, place: int) -> Any:
        self._since_s[place] = time.monotonic()
        return self._actors[place].search_next.remote()

    def _goes_on(self, place: int, reference: Any) -> bool:
        """Whether the actor is asked again."""
        try:
            said = self._ray.get(reference)
        except self._ray.exceptions.RayError as exc:  # Ray has given it up
            said, self._failures[place] = str(exc).strip().splitlines()[-1], MAX_FAILURES
        if said is None:
            if not self._queue.counts().left:
                return False
            time.sleep(LOOK_S)  # others hold what is left
            return True
        if not said:
            self._failures[place] = 0
            return True
        self._failures[place] += 1
        self._reason = said
        self._display.note(f"actor {place}: {said}")
        return self._failures[place] < MAX_FAILURES

    def _look(self, *, at_once: bool = False) -> None:
        held = self._queue.running()
        names = [actor_name(actor._actor_id.hex()) for actor in self._actors]
        views = [
            WorkerView(f"actor {place}", held[name].shape if name in held else "waiting", self._since_s[place], 0, True)
            for place, name in enumerate(names)
        ]
        self._watch.look(views, at_once=at_once)
