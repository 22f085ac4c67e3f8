"""The trusted producer and consumer around a candidate with programmatic launch (`trusted.cu`)."""

import ctypes
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.sandbox.cuda.driver import call
from cudal2_agent.sandbox.cuda.launcher import launch_config

BLOCK = 512
CTAS = 16
DELAY_NS = 500_000
Pair = tuple[Any, Any]


class Bystanders:
    """The two kernels, compiled for this GPU on first use. Needs sm_90 or later."""

    @cached_property
    def _module(self) -> Any:
        source = resources.files("cudal2_agent.sandbox.cuda").joinpath("trusted.cu").read_text()
        return cupy.RawModule(code=source, options=("-std=c++17",))

    def compile(self) -> None:
        """Load both kernels now, so that nothing between producer and candidate waits for a compiler."""
        for name in ("late_producer", "early_consumer", "late_values", "early_reader"):
            self._module.get_function(name)

    def produce(self, late: Sequence[Any], operands: Sequence[Any], d: Any, before: Any, early_writes: Any) -> Any:
        """Enqueue the producer on the current stream: it copies `late` (A, B) into `operands` (A, B) after its dependents
        may run. `early_writes` counts the elements of D that differ from `before` when it ends, or their bytes where a bias
        or `up` stands behind A and B. Returns what must live until it has ended.
        """
        if len(late) > 2:
            pairs = [(_bytes(one), _bytes(other)) for one, other in zip(late, operands, strict=True)]
            return self.produce_values(pairs, [(_bytes(d), _bytes(before))], early_writes)
        (a_late, b_late), (a, b) = late, operands
        self._module.get_function("late_producer")(
            (CTAS,),
            (BLOCK,),
            (
                a_late,
                a,
                cupy.uint64(a.size),
                b_late,
                b,
                cupy.uint64(b.size),
                d,
                cupy.uint64(d.size),
                before,
                early_writes,
                cupy.uint64(DELAY_NS),
            ),
        )
        return None

    def consume(self, d: Any, seen: Any, stream: int) -> None:
        """Enqueue the consumer with programmatic serialization: it starts as soon as the candidate allows."""
        self._dependent("early_consumer", (d.data.ptr, seen.data.ptr, d.size), stream)

    def produce_values(self, late: Sequence[Pair], watched: Sequence[Pair], early_writes: Any) -> Any:
        """As `produce` for the buffers of a module: pairs (late, buffer) and (output, before) of bytes. `early_writes` counts
        bytes. Returns what must live until the producer has ended.
        """
        copies, seen = _table(late), _table(watched)
        arguments = (copies, cupy.uint32(len(late)), seen, cupy.uint32(len(watched)), early_writes, cupy.uint64(DELAY_NS))
        self._module.get_function("late_values")((CTAS,), (BLOCK,), arguments)
        return copies, seen

    def consume_values(self, copies: Sequence[Pair], stream: int) -> Any:
        """As `consume`: pairs (output, seen) of bytes. Returns what must live until the consumer has ended."""
        table = _table(copies)
        self._dependent("early_reader", (table.data.ptr, len(copies)), stream)
        return table

    def _dependent(self, entry: str, arguments: Sequence[int], stream: int) -> None:
        """Enqueue a kernel with programmatic serialization."""
        launch = ResolvedLaunch(
            entry=entry,
            grid=(CTAS, 1, 1),
            block=(BLOCK, 1, 1),
            cluster=(1, 1, 1),
            dynamic_smem=0,
            programmatic=True,
            args=(),
        )
        config = launch_config(launch, programmatic=True)
        config.hStream = stream
        values = (ctypes.c_uint64 * len(arguments))(*arguments)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(values) + 8 * index for index in range(len(arguments)))
        )
        function = driver.CUfunction(self._module.get_function(entry).kernel.ptr)
        call(driver.cuLaunchKernelEx, config, function, ctypes.addressof(pointers), 0)


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(cupy.uint8)


def _table(pairs: Sequence[Pair]) -> Any:
    """Addresses and sizes of pairs of arrays of bytes, on the device."""
    rows = [(one.data.ptr, other.data.ptr, one.nbytes) for one, other in pairs]
    return cupy.asarray(np.array(rows, dtype=np.uint64).reshape(-1))
