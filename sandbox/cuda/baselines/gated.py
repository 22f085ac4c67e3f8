"""Gated products by a library: one product with B and `up` together, into scratch, then one kernel that reads both sums.

That is what programs do which hold both weights in one storage. Where the two do not lie so, the library multiplies twice. The
kernel is ours, because PyTorch has none: its activation and its product would be two.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

import cupy
from cuda.bindings import driver

from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtGemm
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.contender import Bound, Operands
from cudal2_agent.sandbox.cuda.driver import call
from cudal2_agent.sandbox.cuda.guard.buffers import storage_type

BLOCK = 256
VECTOR = 8  # elements that a thread writes, where rows are whole pieces of so many


def library_task(task: GemmTask, *, joined: bool) -> GemmTask:
    """The product that a library is asked for: with B and `up` by columns, together or one after the other."""
    plain = {"n": 2 * task.n if joined else task.n, "layout": Layout.TN, "activation": None, "gated": False}
    return task.model_copy(update=plain)


class Gate:
    """The kernel behind the product, compiled on first use, and the scratch that it reads. `joined`: as `library_task`."""

    def __init__(self, task: GemmTask, *, joined: bool) -> None:
        self.task, self.joined = task, joined

    @cached_property
    def scratch(self) -> Any:
        """Shape: (M, 2 N), or (2, M, N) where the library multiplies twice."""
        task = self.task
        shape = (task.m, 2 * task.n) if self.joined else (2, task.m, task.n)
        return cupy.empty(shape, dtype=storage_type(task.element))

    @cached_property
    def _kernel(self) -> Any:
        return cupy.RawModule(code=gate_source(self.task), options=("-std=c++17",)).get_function("gate")

    def load(self) -> None:
        """Compile and load the kernel now, rather than lazily inside a capture or a timed region."""
        call(driver.cuFuncLoad, driver.CUfunction(self._kernel.kernel.ptr))

    def enqueue(self, d: Any, stream: int) -> None:
        """D from both sums in scratch."""
        task, sums = self.task, self.scratch.reshape(-1).view(cupy.uint16)
        beside, pitch = (task.n, 2 * task.n) if self.joined else (task.m * task.n, task.n)
        threads = task.m * (task.n if task.n % VECTOR else task.n // VECTOR)
        sizes = (cupy.uint32(task.m), cupy.uint32(task.n), cupy.uint32(pitch))
        with _stream(stream):
            self._kernel((-(-threads // BLOCK),), (BLOCK,), (sums, sums[beside:], d, *sizes))


def gate_source(task: GemmTask) -> str:
    """The kernel's text for a task's activation and elements, with the functions that candidates have."""
    sandbox = resources.files("cudal2_agent.sandbox")
    functions = sandbox.joinpath("include/cudal2/activation.cuh").read_text().replace("#pragma once\n", "")
    gate = sandbox.joinpath("cuda/baselines/gate.cu").read_text()
    name = "".join(word.title() for word in str(task.activation).split("_"))
    return f"#define ACTIVATION cudal2::{name}\n#define BF16 {int(task.element is ElementType.BF16)}\n{functions}\n{gate}"


class GatedBaseline(LibraryContender):
    """A library's product, once or twice, then the kernel that gates; all of it is timed."""

    def __init__(self, gate: Gate, product: LibraryContender) -> None:
        times = "one product" if gate.joined else "two products"
        super().__init__(product.name, f"{product.detail}; {times}, then {gate.task.activation} and the gate in one kernel")
        self._gate, self._product = gate, product

    def bind(self, operands: Operands) -> "BoundGated":
        """Raises: Unavailable where B and `up` do not lie there by columns."""
        self._gate.load()
        given = (operands.joined,) if self._gate.joined else (operands.b_tn, operands.up_tn)
        outs = (self._gate.scratch,) if self._gate.joined else tuple(self._gate.scratch)
        weights = list(zip(given, outs, strict=True))
        if any(each is None for each, _ in weights):
            raise Unavailable("B and up do not lie there by columns")
        products = [self._product.bind(replace(operands, b_tn=each, d=out)) for each, out in weights]
        return BoundGated(self._gate, products, operands.d)


class GatedLt(GatedBaseline):
    """One of cuBLASLt's suggestions for the product."""

    def __init__(self, gate: Gate, product: LtGemm) -> None:
        super().__init__(gate, product)
        self.layout, self.record = product.layout, product.record


class BoundGated:
    def __init__(self, gate: Gate, products: Sequence[Bound], d: Any) -> None:
        self._gate, self._products, self._d = gate, products, d

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (the library decides)
        for product in self._products:
            product.enqueue(stream)
        self._gate.enqueue(self._d, stream)


@cache
def _stream(handle: int) -> Any:
    """cupy's object for a stream that is given by its handle."""
    return cupy.cuda.ExternalStream(handle)
