"""The far side: calls, answered by sandboxes of this machine.

Covered: calls of several threads and of several near sides; a near side that names files (it cannot); host candidates, which
run only where the far side's own settings trust them; times of another environment, which are refused.
Not covered: how many calls run at once, which the caller decides.
"""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, contextmanager, suppress

from cudal2_agent.contract.errors import Cudal2Error, MachineError, ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.events import Event, Notice, StageStarted, WorkerRestarted
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Environment, Evaluation, Measured, Wrong
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.reward import beyond_roofline
from cudal2_agent.sandbox.local import LocalSandbox
from cudal2_agent.sandbox.remote.calls import (
    ArtifactCall,
    BuildCall,
    CloseCall,
    DoctorCall,
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
    MAX_ARTIFACT_BYTES,
    Ahead,
    AheadAnswer,
    ArtifactAnswer,
    BuiltAnswer,
    DoctorAnswer,
    EndAnswer,
    ErrorAnswer,
    EventAnswer,
    FarAnswer,
    JudgedAnswer,
    MachineCheck,
    OpenedAnswer,
    ProfileAnswer,
    TunedAnswer,
)
from cudal2_agent.sandbox.workers.internal_errors import describe

KEPT_BUILDS = 512  # a call whose candidate is not among them builds it again

Say = Callable[[FarAnswer], None]
# Opens the sandbox of an opening; what happens in it and what it tunes goes to the two callers.
OpenLocal = Callable[[Opening, Callable[[Event], None], "TunedHere"], Context[LocalSandbox]]


class TunedHere:
    """Tuned baselines as the calls brought them; the near sides keep them. A `BaselineBook`."""

    def __init__(self, on_kept: Callable[[TunedBaseline], None]) -> None:
        self._known: dict[tuple[str, str], TunedBaseline] = {}
        self._on_kept = on_kept

    def tuned(self, task: GemmTask, environment: str) -> TunedBaseline | None:
        return self._known.get((task.id, environment))

    def bring(self, baseline: TunedBaseline | None) -> None:
        if baseline is not None:
            self._known.setdefault((baseline.task.id, baseline.environment), baseline)

    def keep(self, baseline: TunedBaseline) -> None:
        self._known[baseline.task.id, baseline.environment] = baseline
        self._on_kept(baseline)


class _CallClock:
    """The seconds that are worked on a call: not those in which it waits for its turn, or the GPU for another process."""

    def __init__(self) -> None:
        self._begin_s, self._waited_s = time.monotonic(), 0.0
        self._waits: Callable[[], float] = lambda: 0.0  # since the last change, and still

    def __call__(self) -> float:
        return time.monotonic() - self._begin_s - self._waited_s - self._waits()

    @contextmanager
    def alone(self, lock: threading.Lock, sandbox: LocalSandbox) -> Iterator[None]:
        """Wait for a lock and hold it. While it is held, whatever the sandbox waits for is this call's."""
        since_s = time.monotonic()
        self._waits = lambda: time.monotonic() - since_s
        with lock:
            before_s = sandbox.waited_s
            self._change(lambda: sandbox.waited_s - before_s)
            try:
                yield
            finally:
                self._change(lambda: 0.0)

    def _change(self, waits: Callable[[], float]) -> None:
        self._waited_s += self._waits()
        self._waits = waits


class _OpenedHere:
    """An open sandbox, the calls that use it, and what it has built. `first`: the call that opens it."""

    def __init__(self, opening: Opening, open_local: OpenLocal, first: FarCall, say: Say) -> None:
        self.opening, self.users = opening, {first.id: (first, say)}
        self.baselines = TunedHere(lambda baseline: self._tell(TunedAnswer(baseline=baseline)))
        self._built: OrderedDict[tuple[str, str, bool], Built] = OrderedDict()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self.sandbox = self._stack.enter_context(open_local(opening, self._happened, self.baselines))

    def kept(self, candidate: AnyCandidate, task: Task) -> Built | None:
        """What was built of a candidate; its origin, which is no part of the build, as it is now."""
        with self._lock:
            found = self._built.get((candidate.id, task.id, candidate.origin.trusted_writer))
        return None if found is None else found.model_copy(update={"candidate": candidate})

    def keep(self, built: Built, task: Task) -> None:
        with self._lock:
            self._built[built.candidate.id, task.id, built.candidate.origin.trusted_writer] = built
            while len(self._built) > KEPT_BUILDS:
                self._built.popitem(last=False)

    def close(self) -> None:
        self._stack.close()

    def _happened(self, event: Event) -> None:
        if isinstance(event, StageStarted | WorkerRestarted | Notice):
            self._tell(EventAnswer(event=event))

    def _tell(self, answer: FarAnswer) -> None:
        """To the oldest call that executes something, else to any."""
        users = list(self.users.values())
        executing = [say for call, say in users if isinstance(call.deed, ExecuteCall | ProveCall | ProfileCall)]
        for say in (*executing, *(say for _, say in users))[:1]:
            say(answer)


class CallService:
    """Answers calls. A sandbox stays open until another one is needed and no call uses it, or until it is told to close."""

    def __init__(self, open_local: OpenLocal, examine: Callable[[], Sequence[MachineCheck]]) -> None:
        self._open_local, self._examine = open_local, examine
        self._open: dict[Opening, _OpenedHere] = {}
        self._opening = threading.Lock()
        self._clocks: dict[str, _CallClock] = {}
        self._alone = threading.Lock()  # nothing is timed beside a proof or another call
        self.host = socket.gethostname()[:100]

    def answer(self, call: FarCall, say: Say, cancel: threading.Event) -> None:
        """Say all answers of a call, the last of which ends it. An error is an answer, too."""
        try:
            say(EndAnswer(worked_s=self._answer(call, say, cancel)))
        except Cudal2Error as exc:
            say(ErrorAnswer.of(exc))
        except Exception as exc:  # noqa: BLE001 (the near side raises it)
            reason, log = describe(exc)
            say(ErrorAnswer(kind="WorkerError", reason=f"internal error: {reason}", log=log))

    def worked_s(self) -> dict[str, float]:
        """The calls in progress, with the seconds that were worked on each."""
        return {id_: clock() for id_, clock in list(self._clocks.items())}

    def close(self) -> None:
        with self._opening:
            for opened in self._open.values():
                opened.close()
            self._open.clear()

    def _answer(self, call: FarCall, say: Say, cancel: threading.Event) -> float:
        clock = self._clocks[call.id] = _CallClock()
        try:
            if isinstance(call.deed, CloseCall):
                self._close(call.opening)
            elif isinstance(call.deed, DoctorCall):
                say(DoctorAnswer(checks=tuple(self._examine())))
            else:
                with self._used(call, say) as opened:
                    for answer in self._answers(call, opened, cancel, clock):
                        say(answer)
            return clock()
        finally:
            del self._clocks[call.id]

    def _used(self, call: FarCall, say: Say) -> "_Use":
        with self._opening:
            opened = self._open.get(call.opening)
            if opened is None:
                for other in [each for each in self._open.values() if not each.users]:
                    del self._open[other.opening]
                    other.close()
                opened = self._open[call.opening] = _OpenedHere(call.opening, self._open_local, call, say)
            opened.users[call.id] = call, say
        environment = opened.sandbox.environment
        if call.pin is not None and (environment is None or environment.key != call.pin):
            del opened.users[call.id]
            raise MachineError(f"times so far are of {call.pin}, and this is {_named(environment)}; times are never mixed")
        return _Use(opened, call.id)

    def _close(self, opening: Opening) -> None:
        with self._opening:
            opened = self._open.get(opening)
            if opened is not None and not opened.users:
                del self._open[opening]
                opened.close()

    def _answers(self, call: FarCall, opened: _OpenedHere, cancel: threading.Event, clock: "_CallClock") -> Iterator[FarAnswer]:
        sandbox, deed = opened.sandbox, call.deed
        match deed:
            case OpenCall():
                yield OpenedAnswer(
                    host=self.host,
                    chip=sandbox.chip,
                    environment=sandbox.environment,
                    can_execute=sandbox.can_execute,
                    can_measure=sandbox.can_measure,
                    builds_cutlass=sandbox.builds_cutlass,
                )
            case BuildCall(candidates=candidates, task=task):
                ready_at: dict[int, Built] = {}
                for position, outcome in _built(opened, candidates, task, cancel):
                    if isinstance(outcome, Built):
                        ready_at[position] = outcome
                        yield BuiltAnswer(position=position, built=outcome)
                    else:
                        yield JudgedAnswer(position=position, evaluation=outcome, worked_s=clock())
                if deed.ahead and ready_at:
                    opened.baselines.bring(deed.tuned)
                    with clock.alone(self._alone, sandbox):
                        yield from _measured_ahead(opened, ready_at, task, cancel, clock, counters=deed.counters)
            case ExecuteCall():
                opened.baselines.bring(deed.tuned)
                ready_at = {}
                for position, outcome in _all_ready(opened, deed, cancel):
                    if isinstance(outcome, Built):
                        ready_at[position] = outcome
                    else:
                        yield JudgedAnswer(position=position, evaluation=outcome, worked_s=clock())
                with clock.alone(self._alone, sandbox):
                    for position, evaluation in _executed(opened, ready_at, deed.task, deed.how):
                        yield JudgedAnswer(position=position, evaluation=evaluation, worked_s=clock())
                        if cancel.is_set():
                            return
            case ProveCall(candidate=candidate, task=task, seconds=seconds):
                ready = _ready(opened, candidate, task, cancel)
                with clock.alone(self._alone, sandbox):
                    verdict = sandbox.witness(ready, task, seconds) if isinstance(ready, Built) else ready
                yield JudgedAnswer(position=0, evaluation=verdict, worked_s=clock())
            case ProfileCall(candidate=candidate, task=task):
                ready = _ready(opened, candidate, task, cancel)
                if not isinstance(ready, Built):
                    raise MachineError(f"a candidate that was built before could not be built again: {ready.headline}")
                with clock.alone(self._alone, sandbox):
                    profile = sandbox.profile(ready, task)
                yield ProfileAnswer(profile=profile)
            case LibraryProfileCall(detail=detail, task=task):
                with clock.alone(self._alone, sandbox):
                    profile = sandbox.profile_library(detail, task)
                yield ProfileAnswer(profile=profile)
            case ArtifactCall(candidate=candidate, task=task):
                ready = _ready(opened, candidate, task, cancel)
                content = sandbox.artifact(ready) if isinstance(ready, Built) else None
                if content is not None and len(content) > MAX_ARTIFACT_BYTES:
                    raise MachineError(
                        f"the compiled code has {len(content) >> 20} MiB; at most {MAX_ARTIFACT_BYTES >> 20} travel"
                    )
                if content is not None:
                    yield ArtifactAnswer.of(content)


class _Use:
    """One call's use of an open sandbox."""

    def __init__(self, opened: _OpenedHere, call_id: str) -> None:
        self._opened, self._call_id = opened, call_id

    def __enter__(self) -> _OpenedHere:
        return self._opened

    def __exit__(self, *_: object) -> None:
        self._opened.users.pop(self._call_id, None)


class _OwnEnd(threading.Event):
    """What a builder sets as it ends. It ends too where the call is cancelled, which goes on after the build."""

    def __init__(self, call: threading.Event) -> None:
        super().__init__()
        self._call = call

    def is_set(self) -> bool:
        return super().is_set() or self._call.is_set()


def _built(
    opened: _OpenedHere, candidates: Sequence[AnyCandidate], task: Task, cancel: threading.Event
) -> Iterator[tuple[int, Built | Evaluation]]:
    for position, outcome in opened.sandbox.build(candidates, task, _OwnEnd(cancel)):
        if isinstance(outcome, Built):
            opened.keep(outcome, task)
        yield position, outcome


def _ready(opened: _OpenedHere, candidate: AnyCandidate, task: Task, cancel: threading.Event) -> Built | Evaluation:
    """A candidate as it was built here, or built now: by another worker, or before this one started."""
    known = opened.kept(candidate, task)
    if known is not None:
        return known
    for _, outcome in _built(opened, [candidate], task, cancel):
        return outcome
    raise MachineError("the call was cancelled")


def _all_ready(opened: _OpenedHere, call: ExecuteCall, cancel: threading.Event) -> Iterator[tuple[int, Built | Evaluation]]:
    """The candidates of a call as they were built here; those that were not are built now."""
    kept = [opened.kept(candidate, call.task) for candidate in call.candidates]
    yield from ((position, each) for position, each in enumerate(kept) if each is not None)
    new = [position for position, each in enumerate(kept) if each is None]
    if new:
        candidates = [call.candidates[position] for position in new]
        yield from ((new[place], outcome) for place, outcome in _built(opened, candidates, call.task, cancel))


def _executed(opened: _OpenedHere, ready: Mapping[int, Built], task: Task, how: Execution) -> Iterator[tuple[int, Evaluation]]:
    """The outcomes by position, as each is known."""
    places = sorted(ready)
    built = [ready[place] for place in places]
    match how:
        case "screen" if built:
            yield from ((places[number], evaluation) for number, evaluation in opened.sandbox.screen(built, task))
        case "race" if built:
            yield from zip(places, opened.sandbox.race(built, task), strict=True)
        case "verify":
            yield from ((place, opened.sandbox.verify(each, task)) for place, each in zip(places, built, strict=True))
        case "quick" | "full":
            yield from ((place, opened.sandbox.evaluate(each, task, how)) for place, each in zip(places, built, strict=True))


def _measured_ahead(
    opened: _OpenedHere, ready: Mapping[int, Built], task: Task, cancel: threading.Event, clock: _CallClock, *, counters: bool
) -> Iterator[AheadAnswer]:
    """What a run asks next: a screen of trusted writers' candidates on a GPU, and counters of the fastest; of others a quick
    evaluation and the emulator's verdict, and of those that pass both, counters and the compiled code."""
    sandbox, before_s = opened.sandbox, clock()

    def told(position: int, how: Ahead, found: Evaluation | ProfileAnswer | ArtifactAnswer) -> AheadAnswer:
        nonlocal before_s
        took_s, before_s = clock() - before_s, clock()
        known = (
            found if isinstance(found, ProfileAnswer | ArtifactAnswer) else JudgedAnswer(position=position, evaluation=found)
        )
        return AheadAnswer(position=position, how=how, found=known, worked_s=took_s)

    def counted(position: int) -> Iterator[AheadAnswer]:
        with suppress(ProfileFailed, ProfilerUnavailable):  # asked again, the reason is an answer
            yield told(position, "profile", ProfileAnswer(profile=sandbox.profile(ready[position], task)))

    screened = {place: one for place, one in ready.items() if sandbox.can_measure and one.candidate.origin.trusted_writer}
    times_us: dict[int, float] = {}
    for position, evaluation in _executed(opened, screened, task, "screen"):
        yield told(position, "screen", evaluation)
        if isinstance(evaluation, Measured) and not beyond_roofline(evaluation, task, sandbox.chip):
            times_us[position] = evaluation.time_us
    if counters and times_us and not cancel.is_set():
        yield from counted(min(times_us, key=times_us.__getitem__))
    for position in sorted(ready.keys() - screened.keys()):
        if cancel.is_set():
            return
        built = ready[position]
        evaluation = sandbox.evaluate(built, task, "quick")
        yield told(position, "quick", evaluation)
        if not sandbox.can_measure and not isinstance(evaluation, Measured):
            continue
        if isinstance(evaluation, Measured) and beyond_roofline(evaluation, task, sandbox.chip):
            continue
        proof = sandbox.witness(built, task)
        yield told(position, "prove", proof)
        if isinstance(evaluation, Measured) and not isinstance(proof, Wrong):
            if counters:
                yield from counted(position)
            if (content := sandbox.artifact(built)) is not None and len(content) <= MAX_ARTIFACT_BYTES:
                yield told(position, "artifact", ArtifactAnswer.of(content))


def _named(environment: Environment | None) -> str:
    return environment.key if environment is not None else "no GPU"
