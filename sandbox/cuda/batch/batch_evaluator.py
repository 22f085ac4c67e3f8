"""What a worker does with a batch: candidates of one task, screened one after another or raced against each other."""

from collections.abc import Callable, Iterator

from contract.base import Record
from contract.build import Built
from contract.candidate import Candidate
from contract.errors import MachineError
from contract.evaluation import TestResult
from contract.options import TimeOptions
from sandbox.cuda.batch.screen_timer import ScreenTimer
from sandbox.cuda.contender import Contender
from sandbox.cuda.device import Device
from sandbox.cuda.evaluator import Evaluator, wrong, wrong_while_timed
from sandbox.cuda.timing.timer import Timer
from sandbox.cuda.timing.watch import WrongWhileTimed
from sandbox.cuda.verifier import Verifier
from sandbox.workers.messages import Batch, Done, Evaluate, StageEntered, Tuned


class BatchEvaluator(Evaluator):
    """Evaluates single candidates and batches. `position`: of the candidate that is worked on."""

    def __init__(self, device: Device, say: Callable[[Record], None]) -> None:
        super().__init__(device, lambda stage: say(StageEntered(stage=stage, position=self.position)))
        self._say = say
        self.position = 0

    def batch(self, request: Batch) -> Iterator[Done]:
        """One outcome for each candidate; none after one that broke the context. Raises: as `evaluate`."""
        self.position = 0
        self._begin("prepare")
        try:
            verifier, timer = self._prepare(request.task)
            timer.expect(request.tuned)
            rounds = ScreenTimer(timer, request.task, self._device.pci_bus_id, request.time)
        except MemoryError as exc:
            raise MachineError(f"too little free memory to measure {request.task.shape}: {exc}") from exc
        self._tell_tuning(timer)
        yield from self._screen(request, verifier, rounds)

    def _screen(self, request: Batch, verifier: Verifier, rounds: ScreenTimer) -> Iterator[Done]:
        for self.position, built in enumerate(request.built):

            def work(built: Built = built) -> Done:
                return self._screened(request, built, verifier, rounds)

            done = self._blaming(built, request.task, work)
            yield done.model_copy(update={"position": self.position})
            if not done.healthy:
                return

    def _screened(self, request: Batch, built: Built, verifier: Verifier, rounds: ScreenTimer) -> Done:
        """A trusted writer's kernel is verified briefly, any other as for an evaluation."""
        trusted = isinstance(built.candidate, Candidate) and built.candidate.origin.trusted_writer
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

    def _time(self, request: Evaluate, options: TimeOptions, contender: Contender, tests: tuple[TestResult, ...]) -> Done:
        _, timer = self._prepare(request.task)
        timer.expect(request.tuned)
        done = super()._time(request, options, contender, tests)
        self._tell_tuning(timer)
        return done

    def _tell_tuning(self, timer: Timer) -> None:
        if (tuned := timer.new_tuning()) is not None:
            self._say(Tuned(baseline=tuned))
