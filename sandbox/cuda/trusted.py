"""The trusted producer and consumer around a candidate with programmatic launch (`trusted.cu`)."""

import ctypes
from functools import cached_property
from importlib import resources
from typing import Any

import cupy
from cuda.bindings import driver

from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.sandbox.cuda.driver import call
from cudal2_agent.sandbox.cuda.launcher import launch_config

BLOCK = 512
CTAS = 16
DELAY_NS = 500_000


class Bystanders:
    """The two kernels, compiled for this GPU on first use. Needs sm_90 or later."""

    @cached_property
    def _module(self) -> Any:
        source = resources.files("cudal2_agent.sandbox.cuda").joinpath("trusted.cu").read_text()
        return cupy.RawModule(code=source, options=("-std=c++17",))

    def compile(self) -> None:
        """Load both kernels now, so that nothing between producer and candidate waits for a compiler."""
        self._module.get_function("late_producer")
        self._module.get_function("early_consumer")

    def produce(self, late: tuple[Any, Any], operands: tuple[Any, Any], d: Any, before: Any, early_writes: Any) -> None:
        """Enqueue the producer on the current stream: it copies `late` (A, B) into `operands` (A, B) after its dependents
        may run. `early_writes` counts the elements of D that differ from `before` when it ends.
        """
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

    def consume(self, d: Any, seen: Any, stream: int) -> None:
        """Enqueue the consumer with programmatic serialization: it starts as soon as the candidate allows."""
        launch = ResolvedLaunch(
            entry="early_consumer",
            grid=(CTAS, 1, 1),
            block=(BLOCK, 1, 1),
            cluster=(1, 1, 1),
            dynamic_smem=0,
            programmatic=True,
            args=(),
        )
        config = launch_config(launch, programmatic=True)
        config.hStream = stream
        values = (ctypes.c_uint64 * 3)(d.data.ptr, seen.data.ptr, d.size)
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(values) + 8 * index for index in range(3)))
        function = driver.CUfunction(self._module.get_function("early_consumer").kernel.ptr)
        call(driver.cuLaunchKernelEx, config, function, ctypes.addressof(pointers), 0)
