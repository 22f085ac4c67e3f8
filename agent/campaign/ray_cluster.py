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
from cudal2_agent.agent.campaign.gpu_worker import Searches, device_lock, work_on
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.agent.campaign.watching import GRACE_S, LOOK_S, CampaignWatch, Display, WorkerView
from cudal2_agent.agent.wiring.actors import open_cluster, start_actors
from cudal2_agent.contract.errors import Cudal2Error, UsageError, WorkerError
from cudal2_agent.contract.events import ignore
from cudal2_agent.processes.ray_actors import ActorLost, ActorPlan, Cluster, own_gpu, own_name
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import Store, open_store

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
        lock = f"cuda-{gpu}-0" if (gpu := own_gpu()) else ""
        self._name = own_name()
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


def run_on_ray(
    plan: CampaignPlan, queue: CampaignQueue, address: str, display: Display, open_search: OpenSearch = open_shape_search
) -> None:
    """Run a plan on the cluster; only those of `plan.devices` that are the emulator count.

    Raises: MachineError, UsageError, WorkerError.
    """
    watch = CampaignWatch(queue, display, plan.hours)
    with open_cluster(address) as cluster:
        _Driver(cluster, plan, queue, display, watch, open_search).run()


class _Driver:
    def __init__(
        self,
        cluster: Cluster,
        plan: CampaignPlan,
        queue: CampaignQueue,
        display: Display,
        watch: CampaignWatch,
        open_search: OpenSearch,
    ) -> None:
        self._cluster, self._plan, self._queue = cluster, plan, queue
        self._display, self._watch = display, watch
        if cluster.hosts > 1 and plan.settings.store_url.startswith("sqlite"):
            raise UsageError("a cluster of several machines needs a store they all reach: set CUDAL2_STORE to a PostgreSQL URL")
        self._actors = start_actors(
            cluster,
            ActorPlan(GpuActor, restarts=MAX_RESTARTS, retries=-1),
            plan.settings,
            plan.devices,
            lambda share: (order_of(plan, share, watch.deadline_s), open_search),
        )
        self._failures = [0] * len(self._actors)
        self._since_s = [time.monotonic()] * len(self._actors)
        self._reason = ""

    def run(self) -> None:
        pending = {self._next(place): place for place in range(len(self._actors))}
        try:
            while pending and not self._watch.is_late(GRACE_S):
                for reference in self._cluster.first_ready(list(pending), LOOK_S):
                    place = pending.pop(reference)
                    if self._goes_on(place, reference) and self._watch.leaves_time():
                        pending[self._next(place)] = place
                self._look()
                if not self._queue.counts().left:
                    break  # an actor of a lost node may wait for a place for ever
        finally:
            for actor in self._actors:
                actor.kill()
                self._queue.release(actor.name, "its actor was stopped", counts=False)
            self._look(at_once=True)
        if self._queue.counts().left and self._watch.leaves_time():
            raise WorkerError(f"no actor of campaign {self._plan.name} could go on: {self._reason}; run it again to go on")

    def _next(self, place: int) -> Any:
        self._since_s[place] = time.monotonic()
        return self._actors[place].begin("search_next")

    def _goes_on(self, place: int, reference: Any) -> bool:
        """Whether the actor is asked again."""
        try:
            said = self._actors[place].answer(reference)
        except ActorLost as exc:  # Ray has given it up
            said, self._failures[place] = str(exc), MAX_FAILURES
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
        views = [
            WorkerView(f"actor {place}", held[actor.name].shape if actor.name in held else "waiting", since_s, 0, True)
            for place, (actor, since_s) in enumerate(zip(self._actors, self._since_s, strict=True))
        ]
        self._watch.look(views, at_once=at_once)
