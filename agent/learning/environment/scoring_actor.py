"""Workers of a score on a Ray cluster: an actor for each GPU.

An actor that is lost is started again by Ray, on another node where its own is gone. Evaluations are kept where the score is.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from cudal2_agent.agent.learning.environment.scoring_process import OpenWorker, ScoringFailure
from cudal2_agent.agent.learning.environment.scoring_sandbox import open_scoring_sandbox
from cudal2_agent.agent.learning.environment.scoring_worker import (
    ScoringOrder,
    ScoringPlace,
    ScoringWorker,
    ScoringWorkerLost,
    WorkerOutcome,
)
from cudal2_agent.agent.wiring.sandbox import share_of
from cudal2_agent.contract.errors import MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.score import TaskCandidates
from cudal2_agent.contract.settings.settings import Settings

LOCAL = "local"
MAX_RESTARTS = -1  # a training run outlives many actors; each loss is told


class ScoringHost:
    """The actor: a worker with its sandbox. Errors come back as records, so that each is one line."""

    def __init__(self, order: ScoringOrder, open_worker: OpenWorker) -> None:
        self._order, self._open_worker = order, open_worker
        self._opened = ExitStack()
        self._worker: ScoringWorker | None = None

    def place(self) -> ScoringPlace | ScoringFailure:
        try:
            return self._ready().place()
        except Exception as exc:  # noqa: BLE001 (the score raises it)
            return ScoringFailure.of(exc)

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Iterator[WorkerOutcome | ScoringFailure]:
        try:
            yield from self._ready().evaluate(groups)
        except Exception as exc:  # noqa: BLE001 (the score raises it)
            yield ScoringFailure.of(exc)

    def _ready(self) -> ScoringWorker:
        if self._worker is None:
            self._worker = self._opened.enter_context(self._open_worker(self._order, ignore))
        return self._worker


class ScoringActor:
    """A `ScoringWorker` on the cluster."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def place(self) -> ScoringPlace:
        """Waits for an actor that is being started again."""
        try:
            place = self._ray.get(self._actor.place.options(max_task_retries=-1).remote())
        except self._ray.exceptions.RayError as exc:
            raise WorkerError(f"a scoring actor did not start: {_last_line(exc)}") from exc
        if isinstance(place, ScoringFailure):
            raise place.error()
        assert isinstance(place, ScoringPlace)
        return place

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        self.place()
        try:
            for reference in self._actor.evaluate.options(num_returns="streaming").remote(tuple(groups)):
                answer = self._ray.get(reference)
                if isinstance(answer, ScoringFailure):
                    raise answer.error()
                yield answer
        except self._ray.exceptions.RayError as exc:
            raise ScoringWorkerLost(_last_line(exc)) from exc

    def close(self) -> None:
        self._ray.kill(self._actor)


@contextmanager
def open_scoring_actors(
    settings: Settings, arch: Arch, devices: Sequence[str], address: str, open_worker: OpenWorker = open_scoring_sandbox
) -> Iterator[list[ScoringActor]]:
    """Actors on the cluster: one for each of `devices`, over the emulator, else for each GPU.

    Raises: MachineError, UsageError.
    """
    try:
        import ray
    except ImportError as exc:
        raise MachineError("a score on Ray needs Ray; pip install 'cudal2-agent[ray]'") from exc
    started = not ray.is_initialized()
    try:
        if started:
            ray.init(address=None if address == LOCAL else address, log_to_driver=False, include_dashboard=False)
    except ConnectionError as exc:
        raise UsageError(f"no Ray cluster at {address} ({exc}); name its address, or local to start one here") from exc
    try:
        yield _actors(ray, settings, arch, devices, open_worker)
    finally:
        if started:
            ray.shutdown()


def _actors(ray: Any, settings: Settings, arch: Arch, devices: Sequence[str], open_worker: OpenWorker) -> list[ScoringActor]:
    """Raises: UsageError where the cluster has no GPU."""
    emulated = bool(devices)
    count = len(devices) or int(ray.cluster_resources().get("GPU", 0))
    if not count:
        raise UsageError("the Ray cluster has no GPU; name devices such as emulator/0 to prove kernels without times")
    nodes = sum(node["Alive"] for node in ray.nodes())
    share = share_of(settings, "emulator" if emulated else "cuda:0", -(-count // nodes))
    options = {"num_gpus": 0 if emulated else 1, "num_cpus": 1, "max_restarts": MAX_RESTARTS, "max_task_retries": 0}
    host = ray.remote(**options)(ScoringHost)
    return [ScoringActor(ray, host.remote(ScoringOrder(settings=share, arch=arch), open_worker)) for _ in range(count)]


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
