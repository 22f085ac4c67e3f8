"""CUDA graphs of launches with their own clock: an event at the first node and one at the last."""

from collections.abc import Sequence

import cupy
from cuda.bindings import driver

from cudal2_agent.sandbox.cuda.contender import Bound
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import Fault, call

_EXTERNAL = int(driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)


class TimedGraph:
    """Launches of bound contenders, in order, as one graph. Stream capture keeps the programmatic edges between them.

    The events are nodes of the graph, so that host time before the graph starts is not counted. Raises: Fault where the
    contender enqueues something that a graph cannot hold.
    """

    def __init__(self, device: Device, bounds: Sequence[Bound], *, programmatic: bool | None = None) -> None:
        self._device, self._bounds = device, tuple(bounds)  # bound contenders own the parameters that the nodes point to
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._graph = self._capture(programmatic)
        self._graph.upload(device.stream)

    @property
    def launches(self) -> int:
        return len(self._bounds)

    def run_us(self) -> float:
        """Device time from the first node to the last. Unit: microseconds."""
        self._graph.launch(self._device.stream)
        self._device.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(self._start, self._end))

    def launch_us(self) -> float:
        """Device time per launch. Unit: microseconds."""
        return self.run_us() / self.launches

    def _capture(self, programmatic: bool | None) -> cupy.cuda.Graph:
        stream = self._device.stream
        stream.begin_capture()
        try:
            call(driver.cuEventRecordWithFlags, self._start.ptr, stream.ptr, _EXTERNAL)
            for bound in self._bounds:
                bound.enqueue(stream.ptr, programmatic=programmatic)
            call(driver.cuEventRecordWithFlags, self._end.ptr, stream.ptr, _EXTERNAL)
        except BaseException:
            driver.cuStreamEndCapture(stream.ptr)  # its status only repeats the error
            raise
        try:
            return stream.end_capture()
        except cupy.cuda.runtime.CUDARuntimeError as exc:
            raise Fault(f"cannot be captured in a CUDA graph: {exc}") from exc
