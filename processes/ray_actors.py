"""Actors on a Ray cluster: started, asked, and ended. Ray starts an actor that is lost again, where its node is gone elsewhere.

Ray is imported where it is used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

LOCAL = "local"


class ActorPlan(NamedTuple):
    """`kind`: the class of the actor. `restarts`, `retries`: of the actor and of a call on it; -1 for no limit."""

    kind: type
    restarts: int
    retries: int


class ActorLost(Exception):
    """The actor died in a call, or Ray has given it up. The message is one line."""


class Actor:
    """One actor. Each call that waits for its answer raises ActorLost."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle

    @property
    def name(self) -> str:
        """It keeps it when Ray starts it again."""
        return _named(self._handle._actor_id.hex())

    def begin(self, method: str, *arguments: object, **options: object) -> Any:
        """A reference to the answer."""
        return getattr(self._handle, method).options(**options).remote(*arguments)

    def answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as exc:
            raise _lost(exc) from exc

    def answers(self, method: str, *arguments: object) -> Iterator[Any]:
        """What a generator of the actor yields, as it comes."""
        try:
            for reference in self.begin(method, *arguments, num_returns="streaming"):
                yield self._ray.get(reference)
        except self._ray.exceptions.RayError as exc:
            raise _lost(exc) from exc

    def kill(self) -> None:
        self._ray.kill(self._handle)


class Cluster:
    """A cluster that this process is connected to. `nodes`: those that are alive. `hosts`: their machines."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        alive = [node for node in ray.nodes() if node["Alive"]]
        self.nodes, self.hosts = len(alive), len({node["NodeManagerAddress"] for node in alive})
        self.gpus = int(ray.cluster_resources().get("GPU", 0))

    def start(self, plan: ActorPlan, arguments: Sequence[object], count: int, gpus: int) -> list[Actor]:
        """So many equal actors. `gpus`: of each."""
        options = {"num_gpus": gpus, "num_cpus": 1, "max_restarts": plan.restarts, "max_task_retries": plan.retries}
        made = self._ray.remote(**options)(plan.kind)
        return [Actor(self._ray, made.remote(*arguments)) for _ in range(count)]

    def first_ready(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """The first answer that is there, if one comes in time."""
        ready: list[Any] = self._ray.wait(list(references), num_returns=1, timeout=timeout_s)[0]
        return ready


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster at an address; `local` starts one, which ends afterwards. One that this process is connected to stays.

    Raises: ImportError without Ray; ConnectionError.
    """
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(address=None if address == LOCAL else address, log_to_driver=False, include_dashboard=False)
    try:
        yield Cluster(ray)
    finally:
        if started:
            ray.shutdown()


def own_name() -> str:
    """The name of the actor that this process is."""
    import ray

    return _named(ray.get_runtime_context().get_actor_id())


def own_gpu() -> str:
    """The number of this actor's GPU; empty where it has none."""
    import ray

    numbers = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return str(numbers[0]) if numbers else ""


def _named(actor_id: str) -> str:
    return f"ray:{actor_id}"


def _lost(error: Exception) -> ActorLost:
    return ActorLost(str(error).strip().splitlines()[-1])
