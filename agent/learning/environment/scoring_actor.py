"""Workers of a score on a Ray cluster: an actor for each GPU.

An actor that is lost is started again by Ray, on another node where its own is gone. Evaluations are kept where the score is.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cudal2_agent.agent.learning.environment.scoring_process import OpenWorker, ScoringFailure
from cudal2_agent.agent.learning.environment.scoring_sandbox import (
    ScoringOrder,
    ScoringPlace,
    ScoringWorker,
    ScoringWorkerLost,
    WorkerOutcome,
    open_scoring_sandbox,
)
from cudal2_agent.agent.wiring.actors import open_cluster, start_actors
from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.score import TaskCandidates
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.ray_actors import Actor, ActorLost, ActorPlan

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

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def place(self) -> ScoringPlace:
        """Waits for an actor that is being started again."""
        try:
            place = self._actor.answer(self._actor.begin("place", max_task_retries=-1))
        except ActorLost as exc:
            raise WorkerError(f"a scoring actor did not start: {exc}") from exc
        if isinstance(place, ScoringFailure):
            raise place.error()
        assert isinstance(place, ScoringPlace)
        return place

    def evaluate(self, groups: Sequence[TaskCandidates]) -> Generator[WorkerOutcome]:
        self.place()
        try:
            for answer in self._actor.answers("evaluate", tuple(groups)):
                if isinstance(answer, ScoringFailure):
                    raise answer.error()
                yield answer
        except ActorLost as exc:
            raise ScoringWorkerLost(str(exc)) from exc

    def close(self) -> None:
        self._actor.kill()


@contextmanager
def open_scoring_actors(
    settings: Settings, arch: Arch, devices: Sequence[str], address: str, open_worker: OpenWorker = open_scoring_sandbox
) -> Iterator[list[ScoringActor]]:
    """Actors on the cluster: one for each of `devices`, over the emulator, else for each GPU.

    Raises: MachineError, UsageError.
    """

    def arguments(share: Settings) -> tuple[ScoringOrder, OpenWorker]:
        return ScoringOrder(settings=share, arch=arch), open_worker

    with open_cluster(address) as cluster:
        plan = ActorPlan(ScoringHost, restarts=MAX_RESTARTS, retries=0)
        yield [ScoringActor(actor) for actor in start_actors(cluster, plan, settings, devices, arguments)]
