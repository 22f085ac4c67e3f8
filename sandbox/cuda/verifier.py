"""Verification on the GPU: the tiers of `sandbox.verification` over guarded buffers."""

import secrets
import time
from dataclasses import replace
from typing import Any

import cupy

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.baselines.library_baselines import open_reference_library
from cudal2_agent.sandbox.cuda.contender import Bound, Contender, Operands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import POISON as POISON_BYTE
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded, GuardedOperands, map_guarded
from cudal2_agent.sandbox.cuda.trusted import Bystanders
from cudal2_agent.sandbox.verification.cases import CaseStore
from cudal2_agent.sandbox.verification.elements import Array, Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Run, Traits, Violation
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.probes.probing import with_symptoms
from cudal2_agent.sandbox.verification.tiers import Proof, run_until_failure

PROBES_S = 20.0  # after which no further probe of a failed kernel begins
CASE_SHARE = 0.25  # of the free device memory, for inputs and references kept between candidates


class Verifier:
    """Verifies candidates of one task on one GPU. Buffers, inputs and references are kept between candidates.

    Raises: MemoryError (such as cupy's OutOfMemoryError) where the task does not fit.
    """

    def __init__(self, task: GemmTask, device: Device) -> None:
        self._task, self._device = task, device
        self._bystanders = Bystanders()
        # One slot's buffers end at the end of their mapping, the next one's begin at its start.
        self._slots = tuple(GuardedOperands(task, make=map_guarded(device.index, at_end=not slot % 2)) for slot in range(SLOTS))
        self._library = open_reference_library(task)
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        self._store = CaseStore(cupy, task, int(CASE_SHARE * free_bytes))

    def verify(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """All tests up to the first that fails, which gets its symptoms.

        Raises: DriverFault where the contender breaks the device's context.
        """
        executor = self._executor(contender)
        tests = run_until_failure(self._proof(contender, options, executor).tests())
        until = time.monotonic() + PROBES_S
        return (*tests[:-1], with_symptoms(tests[-1], executor, self._task, lambda: time.monotonic() < until))

    def screen(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """The first exact test under guard. Raises: as `verify`."""
        return run_until_failure(self._proof(contender, options, self._executor(contender)).brief())

    def recheck(self, contender: Contender, options: VerifyOptions) -> TestResult:
        """Fresh data again, after the timing."""
        return self._proof(contender, options, self._executor(contender)).freshness("after-timing")

    def _executor(self, contender: Contender) -> "CudaExecutor":
        return CudaExecutor(self._task, self._device, contender, self._slots, self._library, self._bystanders)

    def _proof(self, contender: Contender, options: VerifyOptions, executor: "CudaExecutor") -> Proof:
        traits = Traits(atomics=contender.atomics, programmatic=contender.programmatic)
        return Proof(executor, self._task, traits, self._store, options)


class CudaExecutor:
    """Runs one contender between canaries. All slots share one workspace, as back-to-back launches on a stream do."""

    xp = cupy

    def __init__(
        self,
        task: GemmTask,
        device: Device,
        contender: Contender,
        slots: tuple[GuardedOperands, ...],
        library: Contender | None,
        bystanders: Bystanders,
    ) -> None:
        self._task, self._device, self._contender = task, device, contender
        self._slots, self._library, self._bystanders = slots, library, bystanders
        self._poisons = Poisons(secrets.randbits(64))
        self._workspace = _guarded_workspace(device, contender.workspace_bytes)
        self._bounds: dict[int, Bound] = {}
        self._renew_workspace()

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        guarded = self._slots[slot]
        guarded.load(*inputs.stored(self._task.layout))
        poison = self._poisons.next() if fill is Fill.POISON else None
        if fill is not Fill.STALE:
            _bits(guarded.operands.d).fill(poison or 0)
        if fresh_workspace:
            self._renew_workspace()
        bound = self._bound(slot)
        self._device.synchronize()
        bound.enqueue(self._device.stream.ptr)
        self._device.synchronize()
        return Run(_bits(guarded.operands.d), self._violations(guarded), poison)

    def run_dependent(self, inputs: Inputs, decoy: Inputs) -> Run:
        guarded, bound, stream = self._slots[0], self._bound(0), self._device.stream.ptr
        guarded.load(*inputs.stored(self._task.layout))  # the inputs' expected contents afterwards
        poison = self._poisons.next()
        _bits(guarded.operands.d).fill(poison)
        self._renew_workspace()
        a, b = guarded.targets.values()  # the producer's; the candidate may not write them
        d = _bits(guarded.operands.d)
        late = (a.copy(), b.copy())
        a[...], b[...] = decoy.stored(self._task.layout)
        early_writes, seen = cupy.zeros(1, dtype=cupy.uint64), cupy.empty_like(d)
        self._bystanders.compile()
        self._device.synchronize()
        self._bystanders.produce(late, (a, b), d, poison, early_writes)
        bound.enqueue(stream)
        self._bystanders.consume(d, seen, stream)
        self._device.synchronize()
        return Run(seen, self._early(int(early_writes[0])) + self._violations(guarded), poison)

    def library(self, inputs: Inputs) -> Array | None:
        if self._library is None:
            return None
        guarded = self._slots[0]
        guarded.load(*inputs.stored(self._task.layout))
        guarded.poison()
        self._library.bind(guarded.operands).enqueue(self._device.stream.ptr)
        self._device.synchronize()
        return _bits(guarded.operands.d)

    def _bound(self, slot: int) -> Bound:
        if slot not in self._bounds:
            operands: Operands = self._slots[slot].operands
            workspace = None if self._workspace is None else self._workspace.payload
            self._bounds[slot] = self._contender.bind(replace(operands, workspace=workspace))
        return self._bounds[slot]

    def _renew_workspace(self) -> None:
        if self._workspace is not None:
            self._workspace.fill(POISON_BYTE)
            if self._contender.zero == "restored":
                self._workspace.payload[: self._contender.zero_bytes] = 0

    def _violations(self, guarded: GuardedOperands) -> tuple[Violation, ...]:
        """What the run did to memory; the buffers are repaired for the next run."""
        found = [
            Violation("input" if fault.message.startswith("input ") else "canary", fault.message)
            for fault in guarded.violations()
        ]
        if self._workspace is not None and (written := self._workspace.violation()) is not None:
            found.append(Violation("canary", f"the workspace was {written}"))
            self._workspace.repair()
        if self._contender.zero == "restored" and self._workspace is not None:
            left = int(cupy.count_nonzero(self._workspace.payload[: self._contender.zero_bytes]))
            if left:
                found.append(Violation("workspace", f"{left} bytes of the workspace were not restored to zero"))
        if altered := self._contender.altered():
            found.append(Violation("module-state", f"module variables {', '.join(altered)} were changed"))
        if found:
            guarded.repair()
        return tuple(found)

    @staticmethod
    def _early(count: int) -> tuple[Violation, ...]:
        if not count:
            return ()
        message = f"{count} outputs were written before the preceding kernel had finished: griddepcontrol.wait"
        return (Violation("order", message, tier="programmatic"),)


def _guarded_workspace(device: Device, size_bytes: int) -> Guarded | None:
    """A workspace at the end of its mapping; None where the contender needs none."""
    return map_guarded(device.index, at_end=True)("workspace", size_bytes) if size_bytes else None


def _bits(array: Any) -> Array:
    return array.view(cupy.uint16)
