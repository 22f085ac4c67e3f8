"""What an emulator's worker does with one candidate: it loads and proves it, and never measures it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import NOT_COVERED, REDUCED, Crashed, Prediction, TestResult, TimedOut, Wrong
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.emulator.executor import EmulatorExecutor, Interleavings
from cudal2_agent.sandbox.emulator.judgement import OutOfTime
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel, LaunchRefused
from cudal2_agent.sandbox.emulator.large.coverage import (
    is_small,
    reduced_task,
    resolve_for_few_sms,
    resolve_for_sampling,
    runs_whole,
    tile_of,
    unpinned,
    work_of,
)
from cudal2_agent.sandbox.emulator.large.sample import POINT_WORK, Sample
from cudal2_agent.sandbox.emulator.loading import NotEmulated, load_kernel, plan_of, require_torch
from cudal2_agent.sandbox.emulator.ptx.module import PtxError, Unsupported
from cudal2_agent.sandbox.verification.cases import CaseStore
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.probes.probing import with_symptoms
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof, tiers_not_run
from cudal2_agent.sandbox.workers.messages import TIME_SHARE, Done, Evaluate, NotExecuted, Stage, Verified

if TYPE_CHECKING:  # it imports torch
    from cudal2_agent.sandbox.emulator.modules.module_evaluator import ModuleProver

EMULATOR = "the emulator"
ATTEMPT_SHARE = 0.25  # of a proof's time, for a part that can only strengthen it
WHOLE_SHARE = 0.75  # of it, for whole grids of a task that a sample can stand for
PROBED_WORK = 2**30  # multiply-adds of a task whose whole grid is run for each probe
PROBES_S = 10.0  # after which no further probe of a failed kernel begins
CASE_BYTES = 512 * 1024**2  # of inputs and references kept between candidates of a task


# The predicted time of a kernel on a chip; None where its launches cannot be traced.
PredictKernel = Callable[[EmulatedKernel, Inspection, Chip], Prediction | None]


class Evaluator:
    """Proves candidates one after another; inputs and references of a task are kept until the task changes."""

    def __init__(self, chip: Chip, enter: Callable[[Stage], None], predict: PredictKernel | None = None) -> None:
        """`predict`: the time of a kernel that was found right, if anything models it."""
        self._chip, self._enter, self._predict = chip, enter, predict
        self._kernel: EmulatedKernel | None = None
        self._prover: ModuleProver | None = None
        self._store: tuple[GemmTask, CaseStore] | None = None

    def evaluate(self, request: Evaluate) -> Done | Verified | NotExecuted:
        """The candidate's outcome. An exception is a bug of ours.

        A request without a seed gets one here; all data and interleavings of the proof follow from it.
        """
        seeded = request.verify.model_copy(update={"seed": seed_of(request.verify)})
        request, inspection = request.model_copy(update={"verify": seeded}), request.built.inspection
        try:
            tests = self._evaluate(request)
        except NotEmulated as exc:
            return NotExecuted(reason=str(exc))
        except Unsupported as exc:
            return NotExecuted(reason=f"the emulator does not support {exc.what} ({exc.place or f'PTX line {exc.line}'})")
        except PtxError as exc:
            return NotExecuted(reason=f"the emulator cannot read the kernel: {exc}")
        except MemoryError:
            return NotExecuted(reason=f"the emulator's memory does not hold {request.task.shape}")
        except PlanError as exc:  # for this task it resolves, as the builder found; not for as many SMs as a sample needs
            return NotExecuted(reason=f"the emulator cannot run a part of this plan: {exc}")
        except LaunchRefused as exc:
            return Done(evaluation=Crashed(stage="load", message=str(exc), inspection=inspection))
        except OutOfTime as exc:
            limit_s = TIME_SHARE * request.verify.timeout_s
            symptoms = Symptoms(waits=exc.waits) if exc.waits else None
            late = TimedOut(stage="verify", limit_s=limit_s, message=str(exc), inspection=inspection, symptoms=symptoms)
            return Done(evaluation=late)
        if tests[-1].passed:
            timed = request.verify.tier == "all"
            missing = tiers_not_run(tests, programmatic=self._kernel is not None and self._kernel.programmatic) if timed else ()
            prediction = self._predicted(request) if timed else None
            if missing:
                why = "; ".join(test.message for test in tests if test.name == NOT_COVERED)
                return NotExecuted(reason=f"not run in any form: {', '.join(missing)} ({why})", prediction=prediction)
            return Verified(tests=tests, prediction=prediction)
        failed = tests[-1].model_copy(update={"seed": seeded.seed})
        return Done(evaluation=Wrong(test=failed, tests=(*tests[:-1], failed), inspection=inspection))

    def _predicted(self, request: Evaluate) -> Prediction | None:
        """For the plan as a GPU gets it, which may differ from the one that was run; modules are not modelled."""
        if self._predict is None or self._kernel is None or not isinstance(request.task, GemmTask):
            return None
        resolved = request.built.plan_for(request.task, self._chip.sms)
        return self._predict(self._kernel.launched_by(resolved), request.built.inspection, self._chip) if resolved else None

    def fault_of(self, built: Built) -> None:
        """Nothing that an emulated kernel does can break the emulator."""

    def _evaluate(self, request: Evaluate) -> tuple[TestResult, ...]:
        self._enter("load")
        if not isinstance(request.task, GemmTask):
            self._kernel, tests = self._modules().prove(request, request.task, _deadline(request.verify))
            return tests
        task, options, plan = request.task, request.verify, plan_of(request.built)
        resolved = request.built.plan_for(task, self._chip.sms)
        assert resolved is not None  # `plan_of` refuses host candidates
        deadline = _deadline(options)
        if runs_whole(task, plan):
            kernel = self._kernel = load_kernel(request.built, resolved, task)
            self._enter("verify")
            until = deadline if is_small(task) else _deadline(options, WHOLE_SHARE)
            try:
                return run_until_failure(self._whole(kernel, options, until))
            except OutOfTime:
                if is_small(task):
                    raise
        kernel = self._kernel = load_kernel(request.built, resolve_for_sampling(plan, resolved, task, POINT_WORK), task)
        smaller = self._smaller(request)
        self._enter("verify")
        if smaller is not None and request.reduced is not None and options.tier == "waits":
            return self._reduced(task, smaller, options, deadline)
        return self._in_parts(kernel, smaller, request, deadline)

    def _smaller(self, request: Evaluate) -> EmulatedKernel | None:
        """The kernel at a reduced size, or the same source if none was written for it. None if the plan rules that out.

        A condition that pins a size does not: a source that is right at other sizes too is proved there, whatever it claims.
        """
        if (reduced := request.reduced) is not None:
            built, task = reduced.built, gemm(reduced.task, EMULATOR)
            return load_kernel(built, resolve_for_few_sms(plan_of(built), task), task)
        plan = plan_of(request.built)
        if (same := reduced_task(gemm(request.task, EMULATOR), plan)) is None:
            return None
        try:
            return load_kernel(request.built, resolve_for_few_sms(unpinned(plan), same), same)
        except PlanError:
            return None

    def _in_parts(
        self, kernel: EmulatedKernel, smaller: EmulatedKernel | None, request: Evaluate, deadline: float
    ) -> tuple[TestResult, ...]:
        """A large task: all tiers on a smaller one, and a sample at full size, side by side; else all tiers on the sample.

        Raises: NotEmulated where neither can be run, or only a smaller one with a source that may have its sizes compiled in.
        """
        options, tile = request.verify, tile_of(plan_of(request.built), gemm(request.task, EMULATOR))
        with ThreadPoolExecutor(2) as pool:
            interleavings = Interleavings(kernel.product, seed_of(options), deadline)
            sample = Sample(kernel, tile, interleavings, seed_of(options))
            sampled = pool.submit(lambda: run_until_failure(sample.tests()))
            if smaller is None:
                proof: tuple[TestResult, ...] = (
                    _not_reduced(kernel.product, "was not run at a smaller size, which its plan does not allow"),
                )
            elif request.reduced is None:
                proof = self._attempt(kernel.product, smaller, options)
            else:
                proof = self._reduced(kernel.product, smaller, options, deadline)
        if not proof[-1].passed:
            return proof
        found = sampled.result()
        if found[-1].passed and proof[-1].name == NOT_COVERED:  # all tiers, on the sample
            found = (*found, *run_until_failure(sample.other_tiers()))
        if request.reduced is None and all(test.name == NOT_COVERED for test in found):
            raise NotEmulated("; ".join(test.message for test in (proof[-1], *found)))
        if not found[-1].passed and work_of(kernel.product) <= PROBED_WORK:
            whole = EmulatorExecutor(kernel, interleavings.as_before())
            found = (*found[:-1], _explained(found[-1], whole, kernel.product, deadline))
        return (*proof, *found)

    def _reduced(
        self, task: GemmTask, smaller: EmulatedKernel, options: VerifyOptions, deadline: float
    ) -> tuple[TestResult, ...]:
        """All tiers on the kernel that its schedule writes for a smaller task, then a test that names the task."""
        proof = run_until_failure(self._whole(smaller, options, deadline))
        if not (last := proof[-1]).passed:
            renamed = last.model_copy(update={"message": f"{last.message} (at the reduced size {smaller.product.shape})"})
            return (*proof[:-1], renamed)
        message = f"the tests before this one ran whole grids of {smaller.product.shape}, with the schedule of {task.shape}"
        return (*proof, TestResult(tier="emulator", name=REDUCED, passed=True, message=message))

    def _attempt(self, task: GemmTask, smaller: EmulatedKernel, options: VerifyOptions) -> tuple[TestResult, ...]:
        """The same with a source that may have its sizes compiled in. A failure proves nothing, so only a pass is kept."""
        try:
            proof = run_until_failure(self._whole(smaller, options, _deadline(options, ATTEMPT_SHARE), probes=False))
        except (OutOfTime, Unsupported):
            return (_not_reduced(task, f"was not executed to its end at {smaller.product.shape}"),)
        if not (last := proof[-1]).passed:
            why = f"fails at {smaller.product.shape} ({last.name}), as it may where a size is compiled in"
            return (_not_reduced(task, why),)
        message = (
            f"the tests before this one ran whole grids of {smaller.product.shape}, with the same source as it is; "
            f"code in it for {task.shape} alone is not covered by them"
        )
        return (*proof, TestResult(tier="emulator", name=REDUCED, passed=True, message=message))

    def _whole(
        self, kernel: EmulatedKernel, options: VerifyOptions, deadline: float, *, probes: bool = True
    ) -> Iterator[TestResult]:
        """All tiers over whole grids. `probes`: whether a failure is looked into."""
        executor = EmulatorExecutor(kernel, Interleavings(kernel.product, seed_of(options), deadline))
        traits = Traits(atomics=kernel.atomics, programmatic=kernel.programmatic)
        for test in Proof(executor, kernel.product, traits, self._cases(kernel.product), options).tests():
            yield _explained(test, executor.again(), kernel.product, deadline) if probes and not test.passed else test
        yield executor.summary()

    def _modules(self) -> "ModuleProver":
        """Raises: NotEmulated without torch."""
        if self._prover is None:
            require_torch()
            from cudal2_agent.sandbox.emulator.modules.module_evaluator import ModuleProver

            self._prover = ModuleProver(self._chip, self._enter)
        return self._prover

    def _cases(self, task: GemmTask) -> CaseStore:
        if self._store is None or self._store[0] != task:
            self._store = task, CaseStore(np, task, CASE_BYTES)
        return self._store[1]


def _explained(test: TestResult, executor: EmulatorExecutor, task: GemmTask, deadline: float) -> TestResult:
    """A failed test with its symptoms, as far as its probes end in time: a verdict is not lost for them."""
    until = min(deadline, time.monotonic() + PROBES_S)
    try:
        return with_symptoms(test, executor, task, lambda: time.monotonic() < until)
    except (OutOfTime, Unsupported):
        return test


def _deadline(options: VerifyOptions, share: float = 1.0) -> float:
    return time.monotonic() + share * TIME_SHARE * options.timeout_s


def _not_reduced(task: GemmTask, why: str) -> TestResult:
    message = f"{task.shape} is too large for every test to run the whole grid, and the source {why}: all tests run on a sample"
    return TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=message)
