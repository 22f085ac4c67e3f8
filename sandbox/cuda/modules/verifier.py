"""The proof of a module on the GPU: the tiers of `sandbox/modules/proof.py` over guarded buffers."""

import random
import secrets

import torch

from cudal2_agent.contract.plan.plan import Scratch
from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import POISON, Guarded, map_guarded
from cudal2_agent.sandbox.cuda.modules.guarded_values import GuardedValues, Make, operands
from cudal2_agent.sandbox.cuda.modules.tensors import use_stream
from cudal2_agent.sandbox.modules.executor import Run, Values
from cudal2_agent.sandbox.modules.proof import ModuleProof
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.elements import Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Traits, Violation
from cudal2_agent.sandbox.verification.tiers import run_until_failure


class ModuleVerifier:
    """Verifies candidates of one module on one GPU. Buffers are kept between candidates until `release`.

    Raises: MemoryError where the task does not fit.
    """

    def __init__(self, task: ModuleTask, device: Device) -> None:
        self._task, self._device = task, device
        self._place = use_stream(device)
        self._slots: tuple[GuardedValues, ...] = ()

    def prepare(self, options: VerifyOptions, *, briefly: bool = False) -> None:
        """Nothing is made before a candidate asks for it."""

    def verify(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """All tests up to the first that fails. Raises: DriverFault where the contender breaks the device's context."""
        return run_until_failure(self._proof(contender, options).tests())

    def screen(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]:
        """The first tests under guard. Raises: as `verify`."""
        return run_until_failure(self._proof(contender, options).brief())

    def recheck(self, contender: Contender, options: VerifyOptions) -> TestResult:
        """Fresh values again, after the timing."""
        return self._proof(contender, options).freshness("after-timing")

    def release(self) -> None:
        """Give the buffers back; they are made again when they are needed."""
        self._slots = ()
        torch.cuda.empty_cache()
        self._device.pool.free_all_blocks()

    def _proof(self, contender: Contender, options: VerifyOptions) -> ModuleProof:
        if not self._slots:
            make = map_guarded(self._device.index)
            sealed = {buffer.name for buffer in self._task.buffers if not buffer.role.written}
            self._slots = tuple(GuardedValues(self._task.buffers, make_of(make, sealed)) for _ in range(SLOTS))
        executor = CudaModuleExecutor(self._task, self._device, self._place, contender, self._slots, seed_of(options))
        traits = Traits(atomics=contender.atomics, programmatic=contender.programmatic)
        return ModuleProof(executor, self._task, traits, options)
