"""The `Sandbox` protocol over a link: a sandbox of another machine, whose GPU, compiler and jail are there.

Covered: a worker that is lost costs no candidate at its first loss and one at its second; a link that loses every candidate
ends the run, which can be resumed; a worker that comes back with another GPU is refused; one that answers twice, or about
nothing that was asked, counts as lost.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from threading import Event, Timer
from typing import TypeVar

from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable, MachineError, ProfileFailed, WorkerError
from cudal2_agent.contract.events import Emit, WorkerRestarted
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Predict
from cudal2_agent.contract.records.baseline import BaselineBook, TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Crashed, Environment, Evaluation, Prediction, Unmeasured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.sandbox.remote.calls import (
    ArtifactCall,
    BuildCall,
    CloseCall,
    Deed,
    ExecuteCall,
    Execution,
    FarCall,
    LibraryProfileCall,
    OpenCall,
    Opening,
    ProfileCall,
    ProveCall,
)
from cudal2_agent.sandbox.remote.far_answers import (
    Ahead,
    AheadAnswer,
    ArtifactAnswer,
    BuiltAnswer,
    EndAnswer,
    ErrorAnswer,
    EventAnswer,
    FarAnswer,
    JudgedAnswer,
    OpenedAnswer,
    ProfileAnswer,
    TunedAnswer,
)
from cudal2_agent.sandbox.remote.link import Link, LinkLost
from cudal2_agent.sandbox.workers.internal_errors import InternalErrors

CANDIDATES = 32  # of one call, so that it stays far below the limits of a frame
KEPT_BUILDS = 512
LATE_S = 15.0  # beyond a proof's own limit, until it is not waited for

Outcome = TypeVar("Outcome")
_OfCandidates = Callable[[tuple[AnyCandidate, ...]], Deed]


class RemoteSandbox:
    """`contract.protocols.Sandbox` over a link, which stays open when the sandbox is closed."""

    def __init__(
        self, link: Link, opening: Opening, predict: Predict, emit: Emit, baselines: BaselineBook | None = None
    ) -> None:
        """`predict`: of the near side, which has what is built. Raises: Cudal2Error where the far side cannot open it."""
        self._link, self._opening, self._predict, self._emit = link, opening, predict, emit
        self._baselines = baselines
        self._internal = InternalErrors()
        self._waited_s = 0.0
        self._ahead: dict[tuple[str, str, Ahead], AheadAnswer] = {}  # by candidate, task and how
        self._built: dict[tuple[str, str], Built] = {}
        self._pin: str | None = None
        self._host = link.where
        self._opened = self._twice(
            lambda: self._only(OpenCall(), OpenedAnswer), lambda exc: DeviceUnavailable(f"{link.where}: {exc}")
        )
        self._host = self._opened.host
        self._pin = self.environment.key if self.environment is not None else None

    @property
    def chip(self) -> Chip:
        return self._opened.chip

    @property
    def can_execute(self) -> bool:
        return self._opened.can_execute

    @property
    def can_measure(self) -> bool:
        return self._opened.can_measure

    @property
    def environment(self) -> Environment | None:
        return self._opened.environment

    @property
    def waited_s(self) -> float:
        """What passed between calls that execute candidates and their answers, and was neither work on them nor a queue."""
        return self._waited_s

    @property
    def queued_s(self) -> float:
        return self._link.queued_s

    @property
    def builds_cutlass(self) -> bool:
        return self._opened.builds_cutlass

    def build(
        self, candidates: Sequence[AnyCandidate], task: Task, cancel: Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """See `Sandbox.build`. Raises: as the far sandbox does; DeviceUnavailable, WorkerError where no worker is left."""
        return self._builds(candidates, task, cancel, ahead=False)

    def _builds(
        self,
        candidates: Sequence[AnyCandidate],
        task: Task,
        cancel: Event | None,
        *,
        ahead: bool,
        counters: bool = False,
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """What this process has built is not asked again."""
        known = [None if ahead else self._built.get((one.id, task.id)) for one in candidates]
        for position, built in enumerate(known):
            if built is not None:
                yield position, built.model_copy(update={"candidate": candidates[position]})
        left = [position for position, built in enumerate(known) if built is None]
        tuned = self._tuned(task) if ahead else None
        outcomes = self._of_each(
            [candidates[position] for position in left],
            "build",
            lambda some: BuildCall(candidates=some, task=task, ahead=ahead, counters=counters, tuned=tuned),
            cancel,
        )
        for place, outcome in list(outcomes) if ahead else outcomes:  # verdicts come behind builds, and are awaited with them
            if isinstance(outcome, Built):
                self._built[outcome.candidate.id, task.id] = outcome
                while len(self._built) > KEPT_BUILDS:
                    self._built.pop(next(iter(self._built)), None)
            yield left[place], outcome

    def evaluate(self, built: Built, task: Task, effort: Effort) -> Evaluation:
        """See `Sandbox.evaluate`. Raises: as `build`."""
        return self._executed(built, task, effort)

    def verify(self, built: Built, task: Task) -> Evaluation:
        """See `Sandbox.verify`. Raises: as `build`."""
        return self._executed(built, task, "verify")

    def screen(self, built: Sequence[Built], task: Task) -> Iterator[tuple[int, Evaluation]]:
        """See `Sandbox.screen`. Raises: as `build`."""
        left = []
        for position, one in enumerate(built):
            if (known := self._foreseen(one, task, "screen", JudgedAnswer)) is not None:
                yield position, known.evaluation
            else:
                left.append(position)
        candidates = [built[position].candidate for position in left]
        outcomes = _evaluations(self._of_each(candidates, "screen", self._execution(task, "screen")))
        yield from ((left[place], evaluation) for place, evaluation in outcomes)

    def race(self, built: Sequence[Built], task: Task) -> list[Evaluation]:
        """See `Sandbox.race`. A worker that is lost twice ends it. Raises: as `build`."""
        candidates = tuple(one.candidate for one in built)
        deed = self._execution(task, "race")(candidates)
        found = self._twice(
            lambda: dict(_evaluations(self._placed(deed, candidates))), lambda exc: WorkerError(f"the race was lost: {exc}")
        )
        return [found[position] for position in range(len(built))]

    def predict(self, built: Built, task: Task) -> Prediction:
        return self._predict(built.candidate, task, built.inspection)

    def witness(self, built: Built, task: Task, seconds: float | None = None) -> Evaluation:
        """See `Sandbox.witness`. A lost worker is a reason, too, and so is one that does not answer in `seconds`."""
        if (known := self._foreseen(built, task, "prove", JudgedAnswer)) is not None:
            return known.evaluation
        deed, late = ProveCall(candidate=built.candidate, task=task, seconds=seconds), Event()
        timer = Timer(math.inf if seconds is None else seconds + LATE_S, late.set)
        timer.daemon = True
        if seconds is not None:
            timer.start()
        try:
            verdicts = self._twice(
                lambda: list(_evaluations(self._placed(deed, [built.candidate], late))), lambda exc: WorkerError(str(exc))
            )
            reason = f"no worker answered within {seconds or 0.0:.0f} s"
        except (MachineError, WorkerError) as exc:
            verdicts, reason = [], f"the proof failed: {exc}"
        finally:
            timer.cancel()
        if verdicts:
            return verdicts[0][1]
        prediction = self.predict(built, task)
        return Unmeasured(verified_by="nothing", reason=reason, prediction=prediction, inspection=built.inspection)

    def profile(self, built: Built, task: Task) -> Profile:
        """See `Sandbox.profile`. Raises: as `build`; ProfilerUnavailable, ProfileFailed."""
        if (known := self._foreseen(built, task, "profile", ProfileAnswer)) is not None:
            return known.profile
        return self._profiled(ProfileCall(candidate=built.candidate, task=task))

    def profile_library(self, detail: str, task: Task) -> Profile:
        """The same of a cuBLASLt kernel. Raises: as `profile`."""
        return self._profiled(LibraryProfileCall(detail=detail, task=task))

    def artifact(self, built: Built) -> bytes | None:
        """See `Sandbox.artifact`. Raises: as `build`."""
        if built.task is None:
            return None
        if (known := self._foreseen(built, built.task, "artifact", ArtifactAnswer)) is not None:
            return known.content
        deed = ArtifactCall(candidate=built.candidate, task=built.task)
        answers = self._twice(lambda: list(self._answers(deed)), lambda exc: WorkerError(f"the compiled code was lost: {exc}"))
        return next((answer.content for answer in answers if isinstance(answer, ArtifactAnswer)), None)

    def close(self) -> None:
        """The far side gives back the memory of its GPU. The link stays."""
        with suppress(Cudal2Error, LinkLost):
            list(self._answers(CloseCall()))

    def _execution(self, task: Task, how: Execution) -> _OfCandidates:
        tuned = self._tuned(task)
        return lambda some: ExecuteCall(candidates=some, task=task, how=how, tuned=tuned)

    def _foreseen(self, built: Built, task: Task, how: Ahead, kind: type[Outcome]) -> Outcome | None:
        """What came ahead of being asked. It counts once; asked again, the far side answers again."""
        answer = self._ahead.pop((built.candidate.id, task.id, how), None)
        if answer is None or not isinstance(answer.found, kind):
            return None
        self._waited_s -= answer.worked_s  # the work was done before
        return answer.found

    def _executed(self, built: Built, task: Task, how: Execution) -> Evaluation:
        if (known := self._foreseen(built, task, how, JudgedAnswer)) is not None:
            return known.evaluation
        [(_, evaluation)] = _evaluations(self._of_each([built.candidate], how, self._execution(task, how)))
        return evaluation

    def _tuned(self, task: Task) -> TunedBaseline | None:
        if self._baselines is None or self._pin is None or not isinstance(task, GemmTask):
            return None
        return self._baselines.tuned(task, self._pin)

    def _profiled(self, deed: Deed) -> Profile:
        return self._twice(
            lambda: self._only(deed, ProfileAnswer).profile,
            lambda exc: ProfileFailed(f"the worker was lost twice while it counted: {exc}"),
        )

    def _of_each(
        self, candidates: Sequence[AnyCandidate], stage: str, deed_of: _OfCandidates, cancel: Event | None = None
    ) -> Generator[tuple[int, Built | Evaluation]]:
        """(position, outcome) of each candidate as it is known. What a lost worker leaves is asked again; where nothing came
        of that, the first of it crashed."""
        left, losses = dict(enumerate(candidates)), 0
        while left and not (cancel is not None and cancel.is_set()):
            places = list(left)[:CANDIDATES]
            some = tuple(left[place] for place in places)
            try:
                with closing(self._placed(deed_of(some), some, cancel)) as outcomes:
                    for position, outcome in outcomes:
                        del left[places[position]]
                        losses = 0
                        yield places[position], outcome
            except LinkLost as exc:
                self._emit(WorkerRestarted(reason=f"{self._link.where}: {exc}"))
                losses += 1
                if losses > 1 and left:
                    first, losses = next(iter(left)), 0
                    yield first, self._blamed(left.pop(first), stage, exc)
            else:
                self._internal.passed()

    def _blamed(self, candidate: AnyCandidate, stage: str, exc: LinkLost) -> Crashed:
        """The outcome of a candidate with which a worker was lost twice. Raises: WorkerError after some in a row."""
        return self._internal.met(candidate.id, stage, f"the worker was lost twice: {exc}")

    def _twice(self, ask: Callable[[], Outcome], failed: Callable[[LinkLost], Cudal2Error]) -> Outcome:
        """What is asked; once more after a worker was lost."""
        try:
            return ask()
        except LinkLost as exc:
            self._emit(WorkerRestarted(reason=f"{self._link.where}: {exc}"))
        try:
            return ask()
        except LinkLost as exc:
            raise failed(exc) from exc

    def _placed(
        self, deed: Deed, candidates: Sequence[AnyCandidate], cancel: Event | None = None
    ) -> Generator[tuple[int, Built | Evaluation]]:
        """The answer about each candidate, as it comes. Raises: LinkLost, also for answers that make no sense."""
        missing, begin_s, before_s = set(range(len(candidates))), self._working_s(), self._waited_s
        with closing(self._answers(deed, cancel)) as answers:
            for answer in answers:
                if isinstance(deed, ExecuteCall) and isinstance(answer, JudgedAnswer | EndAnswer):
                    self._waited_s = before_s + self._working_s() - begin_s - answer.worked_s
                if isinstance(answer, AheadAnswer) and isinstance(deed, BuildCall) and 0 <= answer.position < len(candidates):
                    key = candidates[answer.position].id, deed.task.id, answer.how
                    self._ahead[key] = answer
                if not isinstance(answer, BuiltAnswer | JudgedAnswer):
                    continue
                if answer.position not in missing:
                    raise self._nonsense(f"an answer about candidate {answer.position} that is not waited for")
                missing.remove(answer.position)
                if isinstance(answer, JudgedAnswer):
                    yield answer.position, answer.evaluation
                    continue
                candidate = candidates[answer.position]
                if not isinstance(deed, BuildCall) or answer.built.candidate.id != candidate.id:
                    raise self._nonsense("a built candidate that was not asked for")
                yield answer.position, answer.built.model_copy(update={"candidate": candidate})
        if missing and not (cancel is not None and cancel.is_set()):
            raise self._nonsense(f"no answer about {len(missing)} of {len(candidates)} candidates")

    def _working_s(self) -> float:
        return time.monotonic() - self._link.queued_s

    def _nonsense(self, reason: str) -> LinkLost:
        self._link.break_off(reason)
        return LinkLost(reason)

    def _only(self, deed: Deed, kind: type[Outcome]) -> Outcome:
        """The one answer of its kind. Raises: LinkLost."""
        found = [answer for answer in self._answers(deed) if isinstance(answer, kind)]
        if len(found) != 1:
            raise self._nonsense(f"{len(found)} answers where there is one")
        return found[0]

    def _answers(self, deed: Deed, cancel: Event | None = None) -> Generator[FarAnswer]:
        """The answers of a call; events and tuned baselines are passed on. Raises: LinkLost, and what the far side raised."""
        call = FarCall(id=self._link.new_id(), opening=self._opening, pin=self._pin, deed=deed)
        with closing(self._link.call(call, cancel)) as answers:
            for answer in answers:
                match answer:
                    case EventAnswer(event=event):
                        self._emit(event)
                    case TunedAnswer(baseline=baseline):
                        if self._baselines is not None:
                            self._baselines.keep(baseline)
                    case ErrorAnswer():
                        raise answer.error(self._host)
                    case _:
                        yield answer


class AheadSandbox(RemoteSandbox):
    """Over a link whose answers take long, whatever is asked: one brings all that a run asks of a candidate next."""

    def build_to_measure(
        self, candidates: Sequence[AnyCandidate], task: Task, cancel: Event | None = None, *, counters: bool
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """See `MeasuresAhead`. Raises: as `build`."""
        return self._builds(candidates, task, cancel, ahead=True, counters=counters)


def open_over(
    link: Link, opening: Opening, predict: Predict, emit: Emit, baselines: BaselineBook | None = None
) -> RemoteSandbox:
    """The sandbox that suits a link. Raises: as `RemoteSandbox`."""
    kind = AheadSandbox if link.is_slow else RemoteSandbox
    return kind(link, opening, predict, emit, baselines)


def _evaluations(outcomes: Iterator[tuple[int, Built | Evaluation]]) -> Iterator[tuple[int, Evaluation]]:
    """Of calls that build nothing: `_placed` lets no other answer through."""
    for position, outcome in outcomes:
        assert not isinstance(outcome, Built)
        yield position, outcome
