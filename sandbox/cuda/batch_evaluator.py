"""What a worker does with a batch: candidates of one task, screened one after another, or timed together in a final."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

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
    """The finalists: their contenders and tests as long as they hold, the outcomes of those that left."""

    def __init__(self, request: CandidateBatch) -> None:
        self.request = request
        self.contenders: dict[int, Loaded] = {}
        self.tests: dict[int, tuple[TestResult, ...]] = {}
        self.measured: Mapping[int, Measurement] = {}
        self.broken = False
        self._fresh: list[Done] = []

    def out(self, position: int, done: Done) -> None:
        self.contenders.pop(position, None)
        self.broken = not done.healthy
        self._fresh.append(done.model_copy(update={"position": position}))

    def fresh(self) -> Iterator[Done]:
        """Outcomes that were not reported yet, in the order in which they came."""
        fresh, self._fresh = self._fresh, []
        yield from fresh


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
        task, pci_bus_id = request.task, self._device.pci_bus_id
        try:
            verifier, timer = self._prepare(task)
            verifier.prepare(request.verify, briefly=request.effort == "screen" and all(map(_trusted, request.built)))
            timer.expect(request.tuned)
            make = ScreenTimer if request.effort == "screen" else RaceTimer
            rounds = make(timer, task, pci_bus_id, request.time)
        except MemoryError as exc:
            raise MachineError(f"too little free memory to measure {task.shape}: {exc}") from exc
        self._tell_tuning(timer)
        match rounds:
            case ScreenTimer():
                yield from self._screen(request, verifier, rounds)
            case RaceTimer():
                yield from self._race(request, verifier, rounds)

    def _screen(self, request: CandidateBatch, verifier: Verifies, rounds: ScreenTimer) -> Iterator[Done]:
        for self.position, built in enumerate(request.built):

            def work(built: Built = built) -> Done:
                return self._screened(request, built, verifier, rounds)

            done = self._blaming(built, request.task, work)
            yield done.model_copy(update={"position": self.position})
            if not done.healthy:
                return

    def _screened(self, request: CandidateBatch, built: Built, verifier: Verifies, rounds: ScreenTimer) -> Done:
        """A trusted writer's kernel is verified briefly, any other as for an evaluation."""
        trusted = _trusted(built)
        contender = self._load(built, request.task)
        self._begin("verify")
        tests = (verifier.screen if trusted else verifier.verify)(contender, request.verify)
        self._device.synchronize()
        if not tests[-1].passed:
            contender.close()
            return Done(evaluation=wrong(built, tests))
        self._begin("time")
        try:
            measurement = rounds.measure(contender, trusted=trusted)
        except WrongWhileTimed as exc:
            return Done(evaluation=wrong_while_timed(built, tests, exc))
        if not trusted:
            self._begin("recheck")
            tests = (*tests, verifier.recheck(contender, request.verify))
        self._device.synchronize()
        contender.close()
        if not tests[-1].passed:
            return Done(evaluation=wrong(built, tests))
        return Done(evaluation=self._measured(built, request.task, tests, measurement, request.effort))

    def _race(self, request: CandidateBatch, verifier: Verifies, rounds: RaceTimer) -> Iterator[Done]:
        """Verify all, time those that hold together, verify these again."""
        racing = _Racing(request)
        yield from self._each(racing, range(len(request.built)), lambda position: self._verified(racing, position, verifier))
        verifier.release()
        self._begin_race(racing, rounds)
        yield from racing.fresh()
        if racing.broken:
            return
        measured = racing.measured
        yield from self._each(racing, list(measured), lambda position: self._rechecked(racing, position, verifier))
        if racing.broken:
            return
        rounds.close()
        for position, contender in racing.contenders.items():
            contender.close()
            built = request.built[position]
            finished = self._measured(built, request.task, racing.tests[position], measured[position], request.effort)
            yield Done(evaluation=finished, position=position)

    def _each(self, racing: "_Racing", positions: Sequence[int], work: Callable[[int], None]) -> Iterator[Done]:
        """Do work on one finalist after another; those that fail leave, with their outcomes."""
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

    def _verified(self, racing: "_Racing", position: int, verifier: Verifies) -> None:
        contender = self._load(racing.request.built[position], racing.request.task)
        racing.contenders[position] = contender
        self._begin("verify")
        racing.tests[position] = verifier.verify(contender, racing.request.verify)
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
