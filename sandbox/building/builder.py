"""The builder: check, compile and inspect a batch of candidates in parallel child processes."""

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from cudal2_agent.contract.errors import CompilerMissing, MachineError
from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, HostCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Rejected, TimedOut
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.check import check
from cudal2_agent.sandbox.building.compiler import Cancelled, Compiler
from cudal2_agent.sandbox.building.toolchain import builds_cutlass, find_nvcc
from cudal2_agent.sandbox.inspect.inspection import inspect
from cudal2_agent.sandbox.workers.internal_errors import NOT_OURS, InternalErrors, describe, machine_error

MIN_FREE_BYTES = 4 * 2**20  # of the cache's file system; with less, a compiler's failure is not the candidate's fault

logger = logging.getLogger(__name__)


class Builder:
    """Builds for one chip. Its threads only wait for child processes, so the interpreter's lock does not slow them."""

    def __init__(self, options: CompileOptions, chip: Chip) -> None:
        self._options = options
        self._chip = chip
        self._compiler = Compiler(options)
        self._internal = InternalErrors()

    def close(self) -> None:
        """End the processes that wait for the next compilation."""
        self._compiler.close()

    @property
    def builds_cutlass(self) -> bool:
        """Whether there are nvcc and the headers of CuTe and CUTLASS."""
        return builds_cutlass(self._options.nvcc)

    def build(
        self,
        candidates: Sequence[AnyCandidate],
        task: Task,
        cancel: threading.Event | None = None,
        *,
        briefly: bool = False,
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """(position, outcome) as each finishes. Equal candidates are built once. Closing the iterator ends its children.

        `briefly`: as for `build_one`. Another thread, which cannot close the iterator, sets `cancel`: the children end, and
        the iterator without an error.
        Raises: CompilerMissing, MachineError, WorkerError.
        """
        positions: dict[str, list[int]] = {}
        for position, candidate in enumerate(candidates):
            positions.setdefault(candidate.id, []).append(position)
        cancel = cancel or threading.Event()
        with ThreadPoolExecutor(self._options.jobs, thread_name_prefix="build") as pool:
            pending: dict[Future[Built | Evaluation], list[int]] = {
                pool.submit(self.build_one, candidates[same[0]], task, cancel, briefly=briefly): same
                for same in positions.values()
            }
            try:
                for done in as_completed(pending):
                    outcome = done.result()
                    yield from ((position, outcome) for position in pending[done])
            except Cancelled:
                return
            finally:
                cancel.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def refused(self, candidate: AnyCandidate) -> Rejected | None:
        """Why a host candidate is not built: only files that the user names and trusts are. What a policy writes never is."""
        if not isinstance(candidate, HostCandidate) or self._options.trust_host:
            return None
        message = "host candidates run code of their own; only files that the user names and trusts (--trust-host) are run"
        return Rejected(rule="host-candidate", message=message)

    def build_one(
        self, candidate: AnyCandidate, task: Task, cancel: threading.Event | None = None, *, briefly: bool = False
    ) -> Built | Evaluation:
        """Check, compile and inspect one candidate; an unexpected error becomes its `Crashed`.

        `briefly`: the machine code of a trusted writer is not inspected yet, which takes a third of the time.
        Raises: CompilerMissing, MachineError, WorkerError.
        """
        try:
            outcome = self._build(candidate, task, cancel, briefly=briefly)
            if isinstance(outcome, CompileFailed):
                self._require_space()
        except (Cancelled, *NOT_OURS):
            raise
        except Exception as exc:
            if isinstance(exc, OSError) and (full := machine_error(exc, self._options.cache_dir)) is not None:
                raise full from exc
            reason, log = describe(exc)
            logger.warning("internal error on candidate %s: %s", candidate.id, log)
            return self._internal.met(candidate.id, "build", reason, log=log)
        self._internal.passed()
        return outcome

    def _require_space(self) -> None:
        """Raises: MachineError where the compiler may have failed for lack of space, whatever it reported."""
        free = shutil.disk_usage(self._options.cache_dir).free
        if free < MIN_FREE_BYTES:
            raise MachineError(
                f"{self._options.cache_dir}: only {free / 2**20:.1f} MiB are free; "
                "free some space, then go on with: cudal2-agent runs resume"
            )

    def _lacking(self, candidate: AnyCandidate) -> Rejected | None:
        """A plan may name a compiler that this machine lacks. A compiler that the settings name and that is absent is not its
        fault.
        """
        if isinstance(candidate, HostCandidate) or candidate.compiler != "nvcc" or self._options.nvcc:
            return None
        try:
            find_nvcc(None)
        except CompilerMissing as exc:
            return Rejected(rule="plan-compiler", message=f'the plan has "compiler": "nvcc", and {exc}')
        return None

    def _build(
        self, candidate: AnyCandidate, task: Task, cancel: threading.Event | None, *, briefly: bool
    ) -> Built | Evaluation:
        started = time.monotonic()
        limits, judged = LIMITS[task.arch], not (briefly and candidate.origin.trusted_writer)
        if (refused := self.refused(candidate)) is not None:
            return refused
        checked = check(candidate, task, limits, self._chip.sms)
        if isinstance(checked, Rejected):
            return checked
        if (lacking := self._lacking(candidate)) is not None:
            return lacking
        compiled = self._compiler.compile(candidate, task.arch, cancel)
        if isinstance(compiled, CompileFailed | TimedOut):
            return compiled
        inspection = inspect(compiled, candidate, checked.plan, task, limits, self._compiler.cache, machine_code=judged)
        if isinstance(inspection, Rejected):
            return inspection
        return Built(
            candidate=candidate,
            inspection=inspection,
            artifact_path=compiled.artifact_path,
            cached=compiled.cached,
            seconds=time.monotonic() - started,
            task=task,
            plan=checked.plan,
            judged=judged,
        )
