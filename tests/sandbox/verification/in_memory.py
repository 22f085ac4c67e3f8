"""An `Executor` in numpy: kernels are functions on guarded arrays, so that the tiers run without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.cases import CaseStore
from cudal2_agent.sandbox.verification.elements import Array, Poisons, decode, encode
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Run, Traits, Violation
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof

BAND = 64
CANARY = 0xC5C5


@dataclass
class Memory:
    """The memory of a kernel. `d_band`: D with a band of canaries on both sides."""

    a: Array
    b: Array
    d: Array
    d_band: Array
    bias: Array | None = None
    up: Array | None = None
    workspace: dict[str, Any] = field(default_factory=dict)


Kernel = Callable[[GemmTask, Memory], None]


def product(
    task: GemmTask, a: Array, b: Array, bias: Array | None = None, *, chunk: int = 16, dtype: Any = np.float32
) -> Array:
    """D's bit patterns, accumulated over K in chunks with sums rounded to `dtype`, as a tensor core does; first the bias."""
    return encode(np, sums(task, a, b, bias, chunk=chunk, dtype=dtype), task.element)


def sums(task: GemmTask, a: Array, b: Array, bias: Array | None = None, *, chunk: int = 16, dtype: Any = np.float32) -> Array:
    """What `product` rounds, in f32."""
    left, right = decode(np, a, task.element), decode(np, b, task.element)
    total = np.zeros((a.shape[0], b.shape[1]), dtype=dtype)
    if bias is not None:
        total += decode(np, bias, task.element)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, a.shape[1], chunk):
            part = left[:, start : start + chunk].astype(np.float64) @ right[start : start + chunk].astype(np.float64)
            total = (total.astype(np.float64) + part).astype(dtype)
    return total.astype(np.float32)


def honest(task: GemmTask, memory: Memory) -> None:
    dtype = np.float32 if task.accumulate == "f32" else np.float16
    memory.d[:] = product(task, memory.a, memory.b, memory.bias, dtype=dtype)


Waits = bool | Callable[[Inputs], bool]


class InMemoryExecutor:
    """Two slots of arrays in host memory. `waits`: whether the kernel waits for its producer, given what is old."""

    xp = np

    def __init__(self, task: GemmTask, kernel: Kernel, *, library: bool = True, waits: Waits = True, seed: int = 0) -> None:
        self._task, self._kernel, self._library, self._waits = task, kernel, library, waits
        self._slots = [self._allocate() for _ in range(SLOTS)]
        self._workspace: dict[str, Any] = {}
        self._poisons = Poisons(seed)

    def _allocate(self) -> Memory:
        task = self._task
        band = np.full(task.m * task.n + 2 * BAND, CANARY, dtype=np.uint16)
        d = band[BAND:-BAND].reshape(task.m, task.n)
        a, b = (np.zeros(shape, dtype=np.uint16) for shape in ((task.m, task.k), (task.k, task.n)))
        up = np.zeros_like(b) if task.gated else None
        return Memory(a, b, d, band, np.zeros(task.n, dtype=np.uint16) if task.bias else None, up)

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        memory = self._slots[slot]
        memory.a[:], memory.b[:] = inputs.a, inputs.b
        if memory.bias is not None:
            memory.bias[:] = inputs.bias
        if memory.up is not None:
            memory.up[:] = inputs.up
        poison = self._poisons.next() if fill is Fill.POISON else None
        if fill is not Fill.STALE:
            memory.d[:] = poison or 0
        if fresh_workspace:
            self._workspace = {}
        memory.workspace = self._workspace
        self._kernel(self._task, memory)
        return Run(memory.d, tuple(self._violations(memory, inputs)), poison)

    def run_dependent(self, inputs: Inputs, decoy: Inputs) -> Run:
        waits = self._waits if isinstance(self._waits, bool) else self._waits(decoy)
        return self.run(inputs if waits else decoy)

    def library(self, inputs: Inputs) -> Array | None:
        if not self._library:
            return None
        dtype = np.float32 if self._task.accumulate == "f32" else np.float16
        return product(self._task, inputs.a, inputs.b, inputs.bias, chunk=32, dtype=dtype)

    def _violations(self, memory: Memory, inputs: Inputs) -> list[Violation]:
        found = []
        if (memory.d_band[:BAND] != CANARY).any() or (memory.d_band[-BAND:] != CANARY).any():
            found.append(Violation("canary", "wrote outside D"))
        if (memory.a != inputs.a).any() or (memory.b != inputs.b).any():
            found.append(Violation("input", "changed A or B"))
        return found


def prove(
    task: GemmTask,
    kernel: Kernel,
    *,
    library: bool = True,
    waits: Waits = True,
    traits: Traits | None = None,
    seed: int | None = 0,
) -> tuple[TestResult, ...]:
    """All tiers over a kernel in host memory, up to the first failure."""
    executor = InMemoryExecutor(task, kernel, library=library, waits=waits, seed=seed or 0)
    store = CaseStore(np, task, budget_bytes=2**28)
    proof = Proof(executor, task, traits or Traits(), store, VerifyOptions(seed=seed))
    return run_until_failure(proof.tests())
