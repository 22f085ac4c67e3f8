"""The proof of a module on the GPU: the tiers of `sandbox/modules/proof.py` over guarded buffers."""

import random

import torch

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import map_guarded
from cudal2_agent.sandbox.cuda.modules.cuda_executor import CudaModuleExecutor
from cudal2_agent.sandbox.cuda.modules.guarded_values import GuardedValues
from cudal2_agent.sandbox.cuda.modules.tensors import memory_told, use_stream
from cudal2_agent.sandbox.modules.cases import CASES
from cudal2_agent.sandbox.modules.proof import ModuleProof, PreparedCases
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import SLOTS, Traits
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure

LARGE = 0.05  # of the device memory, from which buffers do not stay beside those of timing
CASE_SHARE = 0.1  # of the free device memory, for values and references kept between candidates


class ModuleVerifier:
    """Verifies candidates of one module on one GPU. Buffers are kept between candidates until `release`.

    Raises: MemoryError where the task does not fit.
    """

    def __init__(self, task: ModuleTask, device: Device) -> None:
        self._task, self._device = task, device
        self._place = use_stream(device)
        self._slots: tuple[GuardedValues, ...] = ()
        self.large = SLOTS * task.operand_bytes > LARGE * device.chip.memory_bytes
        free_bytes, _ = torch.cuda.mem_get_info()
        self._cases = PreparedCases(task, self._place, int(CASE_SHARE * free_bytes))

    def prepare(self, options: VerifyOptions, *, briefly: bool = False) -> None:
        """Draw the fixed cases and their references. `briefly`: for `screen` alone."""
        with memory_told():
            for case in CASES[: min(1 if briefly else len(CASES), self._cases.capacity)]:
                self._cases.prepare(case, options.seed)

    def verify(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """All tests up to the first that fails. Raises: DriverFault where the contender breaks the device's context."""
        with memory_told():
            return run_until_failure(self._proof(contender, options).tests())

    def screen(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """The first tests under guard. Raises: as `verify`."""
        with memory_told():
            return run_until_failure(self._proof(contender, options).brief())

    def recheck(self, contender: Contender, options: VerifyOptions) -> TestResult:
        """Fresh values again, after the timing."""
        with memory_told():
            return self._proof(contender, options).freshness("after-timing")

    def release(self) -> None:
        """Give the buffers of a large task back; they are made again when they are needed."""
        if not self.large:
            return
        self._slots = ()
        torch.cuda.empty_cache()
        self._device.pool.free_all_blocks()

    def _proof(self, contender: Contender, options: VerifyOptions) -> ModuleProof:
        if not self._slots:
            torch.cuda.empty_cache()
            written = {buffer.name for buffer in self._task.buffers if buffer.role.written}
            make = map_guarded(self._device.index, written)
            self._slots = tuple(GuardedValues(self._task.buffers, make) for _ in range(SLOTS))
        draw = random.Random(f"places/{seed_of(options)}")
        executor = CudaModuleExecutor(self._device, self._place, contender, self._slots, draw)
        traits = Traits(atomics=contender.atomics, programmatic=contender.programmatic)
        return ModuleProof(executor, self._cases, traits, options)
