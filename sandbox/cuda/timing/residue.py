"""State that launches leave on the chip, removed before every sample: shared memory, registers, local memory, L2 lines.

Measured on an H200: all of shared memory and of local memory survives from one kernel to the next, and so do registers.
Lines that were read under `evict_last` survive ordinary traffic (`python -m benchmarks.ruler.retention`).
"""

import random

import cupy
from cuda.bindings import driver

from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.cuda.guard.mapping import NOT_SUPPORTED, Mapping
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming

SWEEP_L2_MULTIPLE = 2


class Residue:
    """Clears one device. Its own memory is useless to a candidate: it holds what the last sweep wrote."""

    def __init__(self, device: Device, pools: OperandPools, trusted: TrustedTiming) -> None:
        self._pools, self._trusted = pools, trusted
        self._swept = Mapping(SWEEP_L2_MULTIPLE * device.chip.l2_bytes, device.index, "the sweep of L2")

    def clear(self, draw: random.Random, local_bytes: int) -> None:
        """Everything, for a kernel with `local_bytes` of local memory per thread."""
        self._trusted.scrub_local(draw.getrandbits(64), local_bytes)
        self._trusted.scrub_chip(draw.getrandbits(64))
        self.sweep_l2(draw)

    def sweep_l2(self, draw: random.Random) -> None:
        """Leave nothing of the operands in L2, whatever policy they were read under, and nothing to be written back.

        Measured: with the sweep's own lines to be written back, 128x2048x12288 takes 27.3 us instead of 22.4.
        """
        try:
            call(driver.cuCtxResetPersistingL2Cache)
        except DriverFault as fault:
            if fault.status not in NOT_SUPPORTED:  # a GPU, or a partition of one, may lack this reset
                raise
            self._pools.demote()
        self._trusted.sweep(self._swept.bytes(), draw.getrandbits(63))
        self._trusted.checksum(self._swept.bytes(), 0)  # reads all of it

    def close(self) -> None:
        cupy.cuda.get_current_stream().synchronize()
        self._swept.close()
