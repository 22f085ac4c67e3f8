"""What a worker does with a batch: candidates of one task, screened one after another, or timed together in a final."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.evaluator import Evaluator, Loaded, Verifies, wrong, wrong_while_timed
from cudal2_agent.sandbox.cuda.race_timer import RaceTimer
from cudal2_agent.sandbox.cuda.screen_timer import ScreenTimer
from cudal2_agent.sandbox.cuda.timing.timer import Measurement, Timer
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from cudal2_agent.sandbox.workers.messages import CandidateBatch, Done, Evaluate, StageEntered, Tuned


def _trusted(built: Built) -> bool:
    return isinstance(built.candidate, Candidate) and built.candidate.origin.trusted_writer


class _Broken(Exception):
    """A finalist has broken the context during the rounds."""


class _Racing:
    """The candidates of a batch: their contenders and tests as long as they hold, the outcomes of those that left."""

    def __init__(self, request: CandidateBatch) -> None:
        self.request = request
        self.contenders: dict[int, Loaded] = {}
        self.tests: dict[int, tuple[TestResult, ...]] = {}
        self.measured: Mapping[int, Measurement] = {}
        self.broken = False
        self._fresh: list[Done] = []
        self._left: list[Loaded] = []

    def out(self, position: int, done: Done) -> None:
        if position in self.contenders:
            self._left.append(self.contenders.pop(position))
        self.broken = not done.healthy
        self._fresh.append(done.model_copy(update={"position": position}))

    def fresh(self) -> Iterator[Done]:
        """Outcomes that were not reported yet, in the order in which they came."""
        fresh, self._fresh = self._fresh, []
        yield from fresh

    def close_left(self) -> None:
        """Unload what failed. Its graphs must be gone."""
        left, self._left = self._left, []
        for contender in left:
            contender.close()


class _MemoryTurns:
    """The verifier and the rounds of a batch. Those of a large task take turns in memory; baselines stay open all the time."""

    def __init__(self, verifier: Verifies, timer: Timer, make: Callable[[], ScreenTimer | RaceTimer]) -> None:
        self._verifier, self._timer, self._make = verifier, timer, make
        self._rounds: ScreenTimer | RaceTimer | None = make()

    @property
    def apart(self) -> bool:
        """Whether all candidates should be verified before the first is timed."""
        return self._verifier.large

    def verifier(self) -> Verifies:
        if self._verifier.large:
            self.end()
            self._timer.close()
        return self._verifier

    def rounds(self) -> ScreenTimer | RaceTimer:
        """Raises: MemoryError."""
        if self._rounds is None:
            self._verifier.release()
            self._rounds = self._make()
        return self._rounds

    def end(self) -> None:
        """Destroy the graphs of candidates, before their code is unloaded."""
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = self._rounds if not self._verifier.large else None


class BatchEvaluator(Evaluator):
    """Evaluates single candidates and batches. `position`: of the candidate that is worked on."""

    def __init__(self, device: Device, say: Callable[[Record], None]) -> None:
        super().__init__(device, lambda stage: say(StageEntered(stage=stage, position=self.position)))
        self._say = say
        self.position = 0

    def batch(self, request: CandidateBatch) -> Iterator[Done]:
        """One outcome for each candidate; none after one that broke the context. Raises: as `evaluate`."""
        self.position = 0
        self._begin("prepare")
        make = ScreenTimer if request.effort == "screen" else RaceTimer
        with self._memory_for(request):
            verifier, timer = self._prepare(request.task)
            verifier.release()
            verifier.prepare(request.verify, briefly=request.effort == "screen" and all(map(_trusted, request.built)))
            timer.expect(request.tuned)
            turns = _MemoryTurns(verifier, timer, lambda: make(timer, request.task, self._device.pci_bus_id, request.time))
        self._tell_tuning(timer)
        racing, every = _Racing(request), range(len(request.built))
        for group in [every] if request.effort == "race" or turns.apart else [[position] for position in every]:
            yield from self._together(racing, group, turns)
            if racing.broken:
                return

    @contextlib.contextmanager
    def _memory_for(self, request: CandidateBatch) -> Iterator[None]:
        """Raises: MachineError where memory is short."""
        try:
            yield
        except MemoryError as exc:
            raise MachineError(f"too little free memory to measure {request.task.shape}: {exc}") from exc

    def _together(self, racing: _Racing, group: Sequence[int], turns: _MemoryTurns) -> Iterator[Done]:
        """Verify all of a group, time those that hold, verify these again. In a screen a trusted writer's kernel is verified
        briefly and once, any other as for an evaluation.
        """
        request, screened = racing.request, racing.request.effort == "screen"
        briefly = {position for position in group if screened and _trusted(request.built[position])}
        verifier = turns.verifier()
        yield from self._each(racing, group, lambda each: self._verified(racing, each, verifier, briefly=each in briefly))
        if racing.contenders and not racing.broken:
            if turns.apart:
                self._begin("prepare")
            with self._memory_for(request):
                rounds = turns.rounds()
            if isinstance(rounds, RaceTimer):
                self._begin_race(racing, rounds)
            else:
                yield from self._timed(racing, rounds, briefly)
            yield from racing.fresh()
        if racing.broken:
            return
        measured = racing.measured
        again = [position for position in measured if position in racing.contenders and position not in briefly]
        if again:
            verifier = turns.verifier()
            yield from self._each(racing, again, lambda position: self._rechecked(racing, position, verifier))
        if racing.broken:
            return
        turns.end()
        racing.close_left()
        for position, contender in list(racing.contenders.items()):
            contender.close()
            del racing.contenders[position]
            built = request.built[position]
            finished = self._measured(built, request.task, racing.tests[position], measured[position], request.effort)
            yield Done(evaluation=finished, position=position)

    def _timed(self, racing: _Racing, rounds: ScreenTimer, briefly: Collection[int]) -> Iterator[Done]:
        """Screen one after another."""
        measured: dict[int, Measurement] = {}
        racing.measured = measured

        def time(position: int) -> None:
            self._begin("time")
            measured[position] = rounds.measure(racing.contenders[position], trusted=position in briefly)

        yield from self._each(racing, list(racing.contenders), time)

    def _each(self, racing: "_Racing", positions: Sequence[int], work: Callable[[int], None]) -> Iterator[Done]:
        """Do work on one candidate after another; those that fail leave, with their outcomes."""
        for position in positions:
            if not racing.broken:
                self._attempt(racing, position, lambda position=position: work(position))  # type: ignore[misc]
                yield from racing.fresh()

    def _begin_race(self, racing: "_Racing", rounds: RaceTimer) -> None:
        """The rounds. A context that breaks ends them, and the final of the others starts again in the next worker."""

        def attempt(position: int, work: Callable[[], None]) -> bool:
            self.position = position
            self._begin("time")
            if self._attempt(racing, position, work):
                return True
            if racing.broken:
                raise _Broken
            return False

        with contextlib.suppress(_Broken):
            for position, contender in list(racing.contenders.items()):
                attempt(position, lambda position=position, contender=contender: rounds.enter(position, contender))  # type: ignore[misc]
            racing.measured = rounds.run(attempt)

    def _attempt(self, racing: "_Racing", position: int, work: Callable[[], None]) -> bool:
        """Whether the work on a finalist went well; where it did not, the finalist's outcome is in `racing`."""
        self.position = position
        built = racing.request.built[position]
        known = racing.contenders.get(position)
        self._workspace_bytes = known.workspace_bytes if known is not None else 0

        def judged() -> Done | None:
            try:
                work()
            except WrongWhileTimed as exc:
                return Done(evaluation=wrong_while_timed(built, racing.tests[position], exc))
            tests = racing.tests.get(position, ())
            return Done(evaluation=wrong(built, tests)) if tests and not tests[-1].passed else None

        done = self._blaming(built, racing.request.task, judged)
        if done is None:
            return True
        racing.out(position, done)
        return False

    def _verified(self, racing: "_Racing", position: int, verifier: Verifies, *, briefly: bool) -> None:
        contender = self._load(racing.request.built[position], racing.request.task)
        racing.contenders[position] = contender
        self._begin("verify")
        racing.tests[position] = (verifier.screen if briefly else verifier.verify)(contender, racing.request.verify)
        self._device.synchronize()

    def _rechecked(self, racing: "_Racing", position: int, verifier: Verifies) -> None:
        self._begin("recheck")
        again = verifier.recheck(racing.contenders[position], racing.request.verify)
        racing.tests[position] = (*racing.tests[position], again)
        self._device.synchronize()

    def _open_baselines(self, timer: Timer, request: Evaluate, options: TimeOptions) -> None:
        timer.expect(request.tuned)
        super()._open_baselines(timer, request, options)
        self._tell_tuning(timer)

    def _tell_tuning(self, timer: Timer) -> None:
        if (tuned := timer.new_tuning()) is not None:
            self._say(Tuned(baseline=tuned))
