"""Which tests of a module run at which size, and what a proof then says.

Covered: every tier over whole grids, of the task itself where it is small, else of the module at smaller dims; and at full size
the whole grid once without race detection, or a sample of CTAs with it, where the reference is affordable.
Not covered at full size, which a test says: modules whose references take too long here, and samples of plans of several
launches, whose CTAs read what CTAs outside the sample write.
"""

import math
import random
import time
from collections.abc import Callable, Iterator

import torch

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import FULL_SIZE, NOT_COVERED, REDUCED, TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.emulator.executor import Interleavings
from cudal2_agent.sandbox.emulator.judgement import OutOfTime
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.emulator.large.module_size import AFFORDABLE_WORK, WHOLE_WORK, names_sizes, work_of
from cudal2_agent.sandbox.emulator.large.points import corners_first, first_cta
from cudal2_agent.sandbox.emulator.loading import NotEmulated, load_kernel
from cudal2_agent.sandbox.emulator.modules.emulated_module import CPU, EmulatedModule
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.modules.cases import NORMAL
from cudal2_agent.sandbox.modules.proof import ModuleProof, PreparedCases
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.workers.messages import Evaluate, Stage

CASE_BYTES = 512 * 1024**2  # of inputs and references kept between candidates of a task
ATTEMPT_SHARE = 0.5  # of a proof's time, for a source that may have its sizes compiled in
REFERENCE_WORK = 2**25  # elements of a task whose reference is computed at full size
QUICK_WORK = 2**23  # of one whose whole grid is run there, without race detection
POINTS = 12  # of a grid, that are sampled
# What a sample may report only because the CTAs outside it are missing.
_INCONCLUSIVE = frozenset({Detector.DEADLOCK, Detector.ENDLESS, Detector.UNINITIALISED_READ})


class ModuleProver:
    """Proves candidates one after another; inputs and references of the tasks proved last are kept."""

    def __init__(self, chip: Chip, enter: Callable[[Stage], None]) -> None:
        self._chip, self._enter = chip, enter
        self._cases: list[PreparedCases] = []
        torch.set_num_threads(1)  # another proof may run beside this one

    def prove(self, request: Evaluate, task: ModuleTask, deadline: float) -> tuple[EmulatedKernel, tuple[TestResult, ...]]:
        """The kernel at the size asked, and the tests. `deadline`: on the monotonic clock.

        Raises: NotEmulated, OutOfTime, Unsupported, PtxError, LaunchRefused, PlanError.
        """
        options = request.verify
        kernel = self._kernel(request.built, task)
        self._enter("verify")
        work = work_of(task)
        if work <= WHOLE_WORK or (request.reduced is None and work <= AFFORDABLE_WORK):
            return kernel, run_until_failure(self._whole(kernel, task, options, deadline))
        if request.reduced is None or not isinstance(request.reduced.task, ModuleTask):
            raise NotEmulated(f"{task.shape} has {work:.1e} elements, and the module was not traced at smaller dims")
        proof = self._reduced(request.built, request.reduced.built, task, request.reduced.task, options, deadline)
        if not proof[-1].passed or options.tier != "all":
            return kernel, proof
        try:
            return kernel, (*proof, *run_until_failure(self._full_size(kernel, task, options, deadline)))
        except OutOfTime as exc:
            return kernel, (*proof, _not_covered(f"the time ended: {exc}"))

    def _kernel(self, built: Built, task: ModuleTask) -> EmulatedKernel:
        resolved = built.plan_for(task, self._chip.sms)
        if resolved is None:
            raise NotEmulated("a host candidate launches its kernels itself, which takes a GPU")
        return load_kernel(built, resolved, task)

    def _whole(self, kernel: EmulatedKernel, task: ModuleTask, options: VerifyOptions, deadline: float) -> Iterator[TestResult]:
        """All tiers over whole grids."""
        executor = EmulatedModule(kernel, Interleavings(task, seed_of(options), deadline))
        traits = Traits(atomics=kernel.atomics, programmatic=kernel.programmatic)
        yield from ModuleProof(executor, self._cases_of(task), traits, options).tests()
        yield executor.summary()

    def _reduced(
        self,
        original: Built,
        built: Built,
        task: ModuleTask,
        smaller: ModuleTask,
        options: VerifyOptions,
        deadline: float,
    ) -> tuple[TestResult, ...]:
        """All tiers at smaller dims, then a test that names them. `built`: for those, the original where none was written.

        Raises: NotEmulated where a failure would prove nothing.
        """
        changed = [f"{name} {size}" for name, size in smaller.dims.items() if size != task.dims.get(name)]
        dims = ", ".join(changed)
        kernel, candidate = self._kernel(built, smaller), built.candidate
        assert isinstance(candidate, Candidate)  # `_kernel` refuses others
        pinned = candidate.id == original.candidate.id and names_sizes(candidate, task, smaller)
        now = time.monotonic()
        until = now + ATTEMPT_SHARE * (deadline - now) if pinned else deadline
        try:
            proof = run_until_failure(self._whole(kernel, smaller, options, until))
        except (OutOfTime, Unsupported):
            if pinned:
                raise NotEmulated(f"the source may have its sizes compiled in, and was not run to its end at {dims}") from None
            raise
        if not (last := proof[-1]).passed:
            if pinned:
                raise NotEmulated(f"the source may have its sizes compiled in, and fails at {dims} ({last.name})")
            return (*proof[:-1], last.model_copy(update={"message": f"{last.message} (at {dims})"}))
        message = f"the tests before this one ran whole grids at {dims}"
        if pinned:
            message += ", with the same source; code in it for the sizes asked alone is not covered by them"
        return (*proof, TestResult(tier="emulator", name=REDUCED, passed=True, message=message))

    def _full_size(
        self, kernel: EmulatedKernel, task: ModuleTask, options: VerifyOptions, deadline: float
    ) -> Iterator[TestResult]:
        """Normal inputs at full size. The last test says what was run, or why nothing was."""
        work, launches = work_of(task), kernel.plan.launches
        if work > REFERENCE_WORK:
            yield _not_covered(f"the reference of {work:.1e} elements takes too long here")
            return
        prepared, _ = self._cases_of(task).prepare(NORMAL, options.seed)
        whole = work <= QUICK_WORK
        if prepared is None or (not whole and (len(launches) > 1 or kernel.plan.calls)):
            yield _not_covered("CTAs of a plan of several launches are not sampled" if prepared else "no case is finite")
            return
        ctas = [] if whole else [_sampled(kernel, seed_of(options))]
        interleavings = Interleavings(task, seed_of(options), deadline)
        run = EmulatedModule(kernel, interleavings, ctas, slots=1, races=not whole).run(prepared.values)
        fault = next(iter(run.violations), None)
        written = run.covered is None or all(bool(each.any()) for each in run.covered.values())
        if not whole and ((fault is not None and fault.kind in _INCONCLUSIVE) or (fault is None and not written)):
            yield _not_covered("a sample of CTAs does not end, or writes nothing, without the others")
            return
        if fault is not None:
            yield TestResult(tier=fault.tier, name=fault.kind, passed=False, message=f"{fault.message} (at full size)")
            return
        verdict = prepared.judge.judge(run)
        if not verdict.right:
            message = f"{verdict.describe()} (at full size)"
            yield TestResult(tier="accuracy", name=NORMAL.name, passed=False, worst=verdict.worst, message=message)
            return
        ran = (
            "the whole grid, without race detection"
            if whole
            else f"{sum(map(len, ctas))} of {math.prod(launches[0].grid)} CTAs"
        )
        message = f"{task.shape}: {ran}; {verdict.elements} outputs compared"
        yield TestResult(tier="emulator", name=FULL_SIZE, passed=True, worst=verdict.worst, message=message)
        if not whole:
            yield _not_covered("what only CTAs outside the sample do")

    def _cases_of(self, task: ModuleTask) -> PreparedCases:
        """Of this task; those of a task and of its reduced one are kept."""
        found = next((each for each in self._cases if each.task == task), None) or PreparedCases(task, CPU, CASE_BYTES)
        self._cases = [found, *(each for each in self._cases if each is not found)][:2]
        return found


def _sampled(kernel: EmulatedKernel, seed: int) -> list[int]:
    """CTAs at corners and edges of a grid, then drawn ones, by the first of each cluster."""
    launch = kernel.plan.launches[0]
    points = corners_first(launch, POINTS, random.Random(f"{seed}/{kernel.name}"))
    return sorted({first_cta(launch, cluster) for point in points for cluster in point})


def _not_covered(why: str) -> TestResult:
    return TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=f"not covered at full size: {why}")
