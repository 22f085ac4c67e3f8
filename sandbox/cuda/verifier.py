"""Verification on the GPU: the tiers of `sandbox.verification` over guarded buffers."""

import random
import secrets
import time
from dataclasses import replace
from functools import cache
from typing import Any

import cupy

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.baselines.cublas import CublasGemm
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender
from cudal2_agent.sandbox.cuda.baselines.library_baselines import open_reference_library
from cudal2_agent.sandbox.cuda.contender import Bound, Contender, Operands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import POISON as POISON_BYTE
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded, GuardedOperands, map_guarded
from cudal2_agent.sandbox.cuda.trusted import Bystanders
from cudal2_agent.sandbox.verification.activations import activated
from cudal2_agent.sandbox.verification.cases import SPARSE, CaseStore, cases_for
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.elements import Array, Poisons, decode_wide, encode
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Run, Traits, Violation
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.probes.probing import with_symptoms
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof

PROBES_S = 20.0  # after which no further probe of a failed kernel begins
DEPENDENT_RUNS = 4  # one of each combination of data; `timing/aftermath.py` has at least six more
FIRST_PROGRAMMATIC = 90  # compute capability
WARM_UP = 64  # m, n and k of the task that compiles the sandbox's kernels
CASE_SHARE = 0.25  # of the free device memory, for inputs and references kept between candidates


class Verifier:
    """Verifies candidates of one task on one GPU. Buffers, inputs and references are kept between candidates.

    Raises: MemoryError (such as cupy's OutOfMemoryError) where the task does not fit.
    """

    large = False

    def __init__(self, task: GemmTask, device: Device) -> None:
        self._task, self._device = task, device
        self._bystanders = Bystanders()
        self._slots = tuple(GuardedOperands(task, make=map_guarded(device.index)) for _ in range(SLOTS))
        self._library = open_reference_library(task)
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        self._store = CaseStore(cupy, task, int(CASE_SHARE * free_bytes))
        self._prepared: set[tuple[int | None, bool]] = set()  # seeds, and whether briefly

    def prepare(self, options: VerifyOptions, *, briefly: bool = False) -> None:
        """Do what a first candidate would wait for: compile the sandbox's kernels, make the fixed cases' data and references.

        `briefly`: for `screen` alone.
        """
        if self._library is None or (options.seed, briefly) in self._prepared:  # nothing that is known to be right can be run
            return
        small = {"m": WARM_UP, "n": WARM_UP, "k": WARM_UP, "bias": False}
        _warm_up(self._task.model_copy(update=small), self._device, briefly)
        library = self._executor(self._library, options).library
        self._store.fill((SPARSE,) if briefly else cases_for(self._task), options.seed, library)
        self._prepared = {*(done for done in self._prepared if done[0] == options.seed), (options.seed, briefly)}

    def verify(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """All tests up to the first that fails, which gets its symptoms.

        Raises: DriverFault where the contender breaks the device's context.
        """
        executor = self._executor(contender, options)
        tests = run_until_failure(self._proof(contender, options, executor).tests())
        until = time.monotonic() + PROBES_S
        return (*tests[:-1], with_symptoms(tests[-1], executor, self._task, lambda: time.monotonic() < until))

    def screen(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """The first exact test under guard. Raises: as `verify`."""
        return run_until_failure(self._proof(contender, options, self._executor(contender, options)).brief())

    def recheck(self, contender: Contender, options: VerifyOptions) -> TestResult:
        """Fresh data again, after the timing."""
        return self._proof(contender, options, self._executor(contender, options)).freshness("after-timing")

    def release(self) -> None:
        """Buffers of a matrix product leave timing its memory."""

    def _executor(self, contender: Contender, options: VerifyOptions) -> "CudaExecutor":
        draw = random.Random(f"places/{seed_of(options)}")
        return CudaExecutor(self._task, self._device, contender, self._slots, self._library, self._bystanders, draw)

    def _proof(self, contender: Contender, options: VerifyOptions, executor: "CudaExecutor") -> Proof:
        traits = Traits(atomics=contender.atomics, programmatic=contender.programmatic, dependent_runs=DEPENDENT_RUNS)
        return Proof(executor, self._task, traits, self._store, options)


class CudaExecutor:
    """Runs one contender between canaries. All slots share one workspace, as back-to-back launches on a stream do.

    Every run draws new places for its buffers (`guard/placement.py`), unless it is to find in them what the last one left.
    """

    xp = cupy

    def __init__(
        self,
        task: GemmTask,
        device: Device,
        contender: Contender,
        slots: tuple[GuardedOperands, ...],
        library: Contender | None,
        bystanders: Bystanders,
        draw: random.Random,
    ) -> None:
        self._task, self._device, self._contender, self._draw = task, device, contender, draw
        self._slots, self._library, self._bystanders = slots, library, bystanders
        self._poisons = Poisons(secrets.randbits(64))
        self._old_products: list[bool] = []  # whether the next dependent runs find a right D of other operands
        self._workspace = _guarded_workspace(device, contender.workspace_bytes)
        self._renew_workspace()

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        guarded = self._slots[slot]
        if fill is not Fill.STALE:
            guarded.place(self._draw)
        guarded.load(*inputs.stored(self._task.layout))
        poison = self._poisons.next() if fill is Fill.POISON else None
        if fill is not Fill.STALE:
            _bits(guarded.operands.d).fill(poison or 0)
        if fresh_workspace:
            self._renew_workspace()
        bound = self._bound(guarded)
        self._device.synchronize()
        bound.enqueue(self._device.stream.ptr)
        self._device.synchronize()
        return Run(_bits(guarded.operands.d), self._violations(guarded), poison)

    def run_dependent(self, inputs: Inputs, decoy: Inputs) -> Run:
        """As `Executor.run_dependent`, in drawn buffers. D holds poison, or the candidate's own product of the decoy."""
        guarded, stream, poison = self._slots[self._draw.randrange(SLOTS)], self._device.stream.ptr, None
        self._old_products = self._old_products or self._draw.sample((True, False), 2)
        if self._old_products.pop():
            self.run(decoy, slot=self._slots.index(guarded))
        else:
            guarded.place(self._draw)
            self._renew_workspace()
            poison = self._poisons.next()
            _bits(guarded.operands.d).fill(poison)
        guarded.load(*inputs.stored(self._task.layout))  # the inputs' expected contents afterwards
        targets = tuple(guarded.targets.values())  # the producer's; the candidate may not write them
        d = _bits(guarded.operands.d)
        late, before = tuple(target.copy() for target in targets), d.copy()
        for target, values in zip(targets, decoy.stored(self._task.layout), strict=True):
            target[...] = values
        early_writes, seen = cupy.zeros(1, dtype=cupy.uint64), cupy.empty_like(d)
        self._bystanders.compile()
        bound = self._bound(guarded)
        self._device.synchronize()
        held = self._bystanders.produce(late, targets, d, before, early_writes)
        bound.enqueue(stream)
        self._bystanders.consume(d, seen, stream)
        self._device.synchronize()
        del held
        return Run(seen, self._early(int(early_writes[0])) + self._violations(guarded), poison)

    def library(self, inputs: Inputs) -> Array | None:
        """cuBLAS's sums A·B on these inputs, without an activation; None where there is no cuBLAS."""
        if self._library is None:
            return None
        guarded = self._slots[0]
        guarded.load(*inputs.stored(self._task.layout))
        guarded.poison()
        if inputs.bias is not None:  # cuBLAS adds what D held
            _bits(guarded.operands.d)[...] = inputs.bias
        self._library.bind(guarded.operands).enqueue(self._device.stream.ptr)
        self._device.synchronize()
        return _bits(guarded.operands.d)

    def _bound(self, guarded: GuardedOperands) -> Bound:
        workspace = None if self._workspace is None else self._workspace.payload
        return self._contender.bind(replace(guarded.operands, workspace=workspace))

    def _renew_workspace(self) -> None:
        if self._workspace is not None:
            self._workspace.place(self._draw)
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


class _Activated(LibraryContender):
    """The activation of sums in float64, times those of `up` in a gated task, rounded once, which passes every test."""

    def __init__(self, task: GemmTask) -> None:
        super().__init__("float64", "cupy")
        self._task = task

    def bind(self, operands: Operands) -> Bound:
        return _BoundActivated(self._task, operands)


class _BoundActivated:
    def __init__(self, task: GemmTask, operands: Operands) -> None:
        self._task, self._d = task, _bits(operands.d)
        a, b = (_bits(array) for array in operands.stored(task.layout))
        weights = (b, *((_bits(operands.third(task)),) if task.gated else ()))
        self._a = a.T if task.layout.transposes_a else a
        self._weights = [each.T if task.layout.transposes_b else each for each in weights]

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (cupy's own stream)
        a, *weights = (decode_wide(cupy, bits, self._task.element) for bits in (self._a, *self._weights))
        values = activated(cupy, self._task.activation, a @ weights[0])
        for up in weights[1:]:
            values = values * (a @ up)
        self._d[...] = encode(cupy, values, self._task.element)


@cache
def _warm_up(small: GemmTask, device: Device, briefly: bool) -> None:
    """Verify what is right once in this process, so that the sandbox's own kernels for such tasks are compiled."""
    right = CublasGemm(small, small.layout, strict=True) if small.activation is None else _Activated(small)
    verifier = Verifier(small, device)
    (verifier.screen if briefly else verifier.verify)(right, VerifyOptions())
    if device.arch.number >= FIRST_PROGRAMMATIC:
        Bystanders().compile()


def _guarded_workspace(device: Device, size_bytes: int) -> Guarded | None:
    """None where the contender needs no workspace."""
    return map_guarded(device.index)("workspace", size_bytes) if size_bytes else None


def _bits(array: Any) -> Array:
    return array.view(cupy.uint16)
