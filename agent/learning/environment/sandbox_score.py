"""The score of candidates from sandboxes: one in this process, one process for each of several devices, or Ray actors.

Evaluations are kept in a file under the home folder as each is known, so that equal candidates are evaluated once, also by
other processes and after a kill.
"""

import hashlib
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import cudal2_agent.contract
import cudal2_agent.policies.schedule
import cudal2_agent.sandbox
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.agent.learning.environment.scored_outcome import lasting, scored, why_unknown
from cudal2_agent.agent.learning.environment.scoring_process import ScoringProcess
from cudal2_agent.agent.learning.environment.scoring_sandbox import (
    ScoringOrder,
    ScoringPlace,
    ScoringWorker,
    ScoringWorkerLost,
    WorkerOutcome,
    open_scoring_sandbox,
)
from cudal2_agent.agent.learning.environment.together import together
from cudal2_agent.agent.run.versions import installed_version
from cudal2_agent.agent.wiring.gpus import default_arch
from cudal2_agent.agent.wiring.sandbox import device_of, share_of
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Event, Notice, WorkerRestarted, ignore
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Crashed
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.score import Scored, TaskCandidates
from cudal2_agent.contract.settings.options import QUICK_ROUNDS
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.building.toolchain import nvrtc_version

FILE = "scores.sqlite"
_SOURCES = frozenset({".py", ".cuh", ".cu", ".hpp", ".cpp", ".so"})


class _Unanswered(NamedTuple):
    """A candidate without an answer. `key`: of its evaluation in the cache."""

    key: str
    task: Task
    candidate: AnyCandidate


class SandboxScore:
    """`contract.reward.score.JointScore` over workers. A call is shared out to the workers that are free."""

    def __init__(
        self, workers: Sequence[ScoringWorker], kept: ScoreCache, arch: Arch, *, efforts: str = "", emit: Emit = ignore
    ) -> None:
        """`efforts`: the options that an evaluation depends on, in words.

        Raises: UsageError where the workers are of different chips; MachineError, WorkerError where one cannot open.
        """
        self._workers, self._kept, self._arch, self._emit = workers, kept, arch, NoticesOnce(emit)
        self._place = _common(together([worker.place for worker in workers]))
        self._environment = [self._place.key, self._place.chip.name, efforts, sandbox_version()]
        self._idle: queue.SimpleQueue[ScoringWorker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)

    @property
    def chip(self) -> Chip:
        return self._place.chip

    @property
    def measures(self) -> bool:
        """Whether a GPU times candidates; otherwise their values rest on predicted times."""
        return self._place.measures

    def score(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored]:
        """See `Score.score`. Raises: UsageError for a task of another target, or whose operands do not fit."""
        [found] = self.score_groups([TaskCandidates(task=task, candidates=tuple(candidates))])
        return found

    def score_groups(self, groups: Sequence[TaskCandidates]) -> list[list[Scored]]:
        """See `JointScore.score_groups`. Raises: as `score`."""
        for task in (group.task for group in groups if group.task.arch is not self._arch):
            raise UsageError(f"this score is for {self._arch}, the task for {task.arch}; open a score for each target")
        begin_s = time.monotonic()
        keys = [[self._key(candidate, group.task) for candidate in group.candidates] for group in groups]
        asked = {
            key: _Unanswered(key, group.task, candidate)
            for group, of_group in zip(groups, keys, strict=True)
            for key, candidate in zip(of_group, group.candidates, strict=True)
        }
        found = self._known(list(asked.values()), begin_s)
        left = [one for key, one in asked.items() if key not in found]
        for outcomes in together([partial(self._evaluated, share, begin_s) for share in _shares(left, len(self._workers))]):
            found |= outcomes
        return [[found[key] for key in of_group] for of_group in keys]

    def known(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored | None]:
        """What the file holds of candidates, in order; None where they were not evaluated yet."""
        keys = [self._key(candidate, task) for candidate in candidates]
        asked = [_Unanswered(key, task, candidate) for key, candidate in zip(keys, candidates, strict=True)]
        found = self._known(asked, time.monotonic())
        return [found.get(key) for key in keys]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _key(self, candidate: AnyCandidate, task: Task) -> str:
        """What an evaluation depends on. Kernels of trusted writers are evaluated, and predicted, in another way."""
        return digest([candidate.id, candidate.origin.trusted_writer, task.id, *self._environment], 32)

    def _known(self, asked: Sequence[_Unanswered], begin_s: float) -> dict[str, Scored]:
        evaluations = self._kept.find([one.key for one in asked])
        return {
            one.key: scored(
                one.candidate, evaluations[one.key], one.task, self.chip, cached=True, seconds=time.monotonic() - begin_s
            )
            for one in asked
            if one.key in evaluations
        }

    def _evaluated(self, share: Sequence[_Unanswered], begin_s: float) -> dict[str, Scored]:
        """The outcomes of a share on one worker, once one is free. Each is kept as it is known."""
        worker = self._idle.get()
        try:
            found = self._known(share, begin_s)  # another thread may have asked for the same
            left = [one for one in share if one.key not in found]
            for one, (_, evaluation, executed_s) in self._outcomes(worker, left):
                passed_s = time.monotonic() - begin_s
                outcome = scored(one.candidate, evaluation, one.task, self.chip, seconds=passed_s, executed_s=executed_s)
                if lasting(outcome):
                    self._kept.keep(one.key, evaluation)
                if unknown := why_unknown(outcome, one.task):
                    self._emit(Notice(message=f"no value: {unknown}"))
                found[one.key] = outcome
            return found
        finally:
            self._idle.put(worker)

    def _outcomes(self, worker: ScoringWorker, share: Sequence[_Unanswered]) -> Iterator[tuple[_Unanswered, WorkerOutcome]]:
        """After a worker is lost, each candidate that has no answer is tried again, alone. One that loses it again crashed."""
        left = dict(enumerate(share))
        if not left:
            return
        try:
            with closing(worker.evaluate(_groups(share))) as outcomes:
                for outcome in outcomes:
                    yield left.pop(outcome.position), outcome
        except ScoringWorkerLost as exc:
            self._emit(WorkerRestarted(reason=f"a scoring process was lost: {exc}"))
        for one in left.values():
            yield one, self._alone(worker, one)

    def _alone(self, worker: ScoringWorker, one: _Unanswered) -> WorkerOutcome:
        try:
            [outcome] = worker.evaluate(_groups([one]))
        except ScoringWorkerLost as exc:
            self._emit(WorkerRestarted(reason=f"a scoring process was lost again: {exc}"))
            return WorkerOutcome(0, Crashed(stage="score", message=f"its scoring process was lost twice: {exc}"))
        return outcome


def _shares(left: Sequence[_Unanswered], workers: int) -> list[Sequence[_Unanswered]]:
    """Equal shares, each of neighbours in order: a worker prepares each of its tasks once."""
    count = min(workers, len(left))
    bounds = [number * len(left) // count for number in range(count + 1)] if count else []
    return [left[begin:end] for begin, end in pairwise(bounds)]


def _groups(share: Sequence[_Unanswered]) -> list[TaskCandidates]:
    """The candidates by task; neighbours of one task are a group, so that the order stays."""
    return [
        TaskCandidates(task=task, candidates=tuple(one.candidate for one in members))
        for task, members in groupby(share, key=lambda one: one.task)
    ]


@contextmanager
def open_score(
    settings: Settings, *, arch: Arch | None = None, devices: Sequence[str] = (), ray: str | None = None, emit: Emit = ignore
) -> Iterator[SandboxScore]:
    """A score on the device of the settings, in this process.

    `arch`: target of the tasks; by default that of the device. `devices`: as in the settings, one process for each;
    `emulator/N` is the Nth over the emulator. `ray`: address of a Ray cluster, or `local`; there is an actor for each of its
    GPUs, or for each of `devices`, which are then over the emulator.

    Raises: UsageError, MachineError, WorkerError, StoreError.
    """
    target = arch or default_arch(device_of(devices[0]) if devices else settings.device, settings.worker_wait_s)
    kept = ScoreCache(settings.local_dir / FILE, emit)
    efforts = f"quick rounds {QUICK_ROUNDS}"
    with ExitStack() as opened:
        if ray is not None:
            from cudal2_agent.agent.learning.environment.scoring_actor import open_scoring_actors

            workers: Sequence[ScoringWorker] = opened.enter_context(open_scoring_actors(settings, target, devices, ray))
        elif devices:
            shares = [share_of(settings, device, len(devices)) for device in devices]
            told = NoticesOnce(emit)
            orders = [ScoringOrder(settings=share, arch=target) for share in shares]
            workers = [ScoringProcess(order, emit=told) for order in orders]
        else:
            workers = [opened.enter_context(open_scoring_sandbox(ScoringOrder(settings=settings, arch=target), emit))]
        for worker in workers:
            opened.callback(worker.close)
        yield SandboxScore(workers, kept, target, efforts=efforts, emit=emit)


class NoticesOnce:
    """An `Emit` that passes on equal notices once: each process of a score has the same to say."""

    def __init__(self, emit: Emit) -> None:
        self._emit, self._told = emit, set[str]()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and event.message in self._told:
            return
        if isinstance(event, Notice):
            self._told.add(event.message)
        self._emit(event)


@cache
def sandbox_version() -> str:
    """Hash of what an evaluation depends on beside task, candidate and place: the sandbox, the predictions, the compiler."""
    folders = [
        Path(package.__file__ or "").parent
        for package in (cudal2_agent.contract, cudal2_agent.policies.schedule, cudal2_agent.sandbox)
    ]
    content = hashlib.sha256(f"{installed_version('cudal2-agent')} {nvrtc_version()}".encode())
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in _SOURCES):
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]


def _common(places: Sequence[ScoringPlace]) -> ScoringPlace:
    """The place of all workers. Raises: UsageError where there are several: rewards of one score are comparable."""
    names = sorted({place.key for place in places})
    if len(names) != 1:
        raise UsageError(
            f"the devices of a score must be alike, and these are {'; '.join(names) or 'none'}; choose some of them"
        )
    return places[0]
