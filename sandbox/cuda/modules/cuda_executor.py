"""Runs one contender on a module's values, between canaries.

All slots share one workspace and one scratch, as back-to-back launches on a stream do. Every run draws new places for its
buffers (`guard/placement.py`), unless it is to find in them what the last one left.
"""

import random
import secrets
from typing import Any

import cupy
import torch

from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.cuda.contender import Bound, Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import POISON, Guarded, map_guarded
from cudal2_agent.sandbox.cuda.modules.guarded_values import GuardedValues, operands
from cudal2_agent.sandbox.cuda.trusted import Bystanders
from cudal2_agent.sandbox.modules.executor import Run, Values
from cudal2_agent.sandbox.verification.elements import Poisons
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Violation

_EARLY = "{} bytes of outputs were written before the preceding kernel had finished: griddepcontrol.wait"


class CudaModuleExecutor:
    """As `sandbox.modules.executor.ModuleExecutor`. `slots`: guarded sets of the task's buffers."""

    def __init__(
        self,
        device: Device,
        place: torch.device,
        contender: Contender,
        slots: tuple[GuardedValues, ...],
        draw: random.Random,
        make: Any = None,
    ) -> None:
        self._device, self._place, self._contender, self._slots, self._draw = device, place, contender, slots, draw
        self._poisons, self._bystanders = Poisons(secrets.randbits(64)), Bystanders()
        make = make or map_guarded
        sizes: dict[str, int] = getattr(contender, "scratch", {})
        own = getattr(contender, "own_workspace_bytes", contender.workspace_bytes)
        self._workspace: Guarded | None = make(device.index)("workspace", own) if own else None
        scratch = [Buffer(name=name, shape=(size,), element=BufferElement.U8, role=Role.OUTPUT) for name, size in sizes.items()]
        self._scratch = GuardedValues(scratch, make(device.index, set(sizes))) if scratch else None
        self._renew_scratch()

    @property
    def device(self) -> torch.device:
        return self._place

    def run(self, values: Values, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_scratch: bool = True) -> Run:
        guarded = self._slots[slot]
        if fill is not Fill.STALE:
            guarded.place(self._draw)
        guarded.load(values)
        poison = self._poisons.next() if fill is Fill.POISON else None
        if fill is not Fill.STALE:
            guarded.poison(poison or 0)
        if fresh_scratch:
            self._renew_scratch()
        bound = self._bound(guarded)
        self._device.synchronize()
        bound.enqueue(self._device.stream.ptr)
        self._device.synchronize()
        return Run(guarded.outputs(), self._violations(guarded), poison)

    def run_dependent(self, values: Values, decoy: Values) -> Run:
        """As the protocol says; outputs hold poison, or what the candidate makes of the decoy."""
        guarded, poison = self._slots[self._draw.randrange(SLOTS)], None
        if self._draw.random() < 0.5:
            self.run(decoy, slot=self._slots.index(guarded))
        else:
            guarded.place(self._draw)
            self._renew_scratch()
            poison = self._poisons.next()
            guarded.poison(poison)
        guarded.load(decoy)
        outputs = guarded.bytes(written=True)
        before, seen = [each.copy() for each in outputs], [cupy.empty_like(each) for each in outputs]
        late = guarded.announce(values)
        early = cupy.zeros(1, dtype=cupy.uint64)
        self._bystanders.compile()
        bound, stream = self._bound(guarded), self._device.stream.ptr
        self._device.synchronize()
        alive = [self._bystanders.produce_values(late, list(zip(outputs, before, strict=True)), early)]
        bound.enqueue(stream)
        alive.append(self._bystanders.consume_values(list(zip(outputs, seen, strict=True)), stream))
        self._device.synchronize()
        violations = self._violations(guarded)
        if count := int(early[0]):
            violations = (Violation("order", _EARLY.format(count), tier="programmatic"), *violations)
        return Run(guarded.as_outputs(seen), violations, poison)

    def _bound(self, guarded: GuardedValues) -> Bound:
        workspace = None if self._workspace is None else self._workspace.payload
        return self._contender.bind(operands(guarded, self._scratch, workspace))

    def _renew_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.place(self._draw)
            self._scratch.poison(self._poisons.next())
        if self._workspace is not None:
            self._workspace.place(self._draw)
            self._workspace.fill(POISON)
            if self._contender.zero == "restored":
                self._workspace.payload[: self._contender.zero_bytes] = 0

    def _violations(self, guarded: GuardedValues) -> tuple[Violation, ...]:
        """What the run did to memory; the buffers are repaired for the next run."""
        found = [*guarded.violations(), *(self._scratch.violations() if self._scratch is not None else ())]
        if self._workspace is not None:
            if (written := self._workspace.violation()) is not None:
                found.append(Violation("canary", f"the workspace was {written}"))
                self._workspace.repair()
            if self._contender.zero == "restored":
                left = int((self._workspace.payload[: self._contender.zero_bytes] != 0).sum())
                if left:
                    found.append(Violation("workspace", f"{left} bytes of the workspace were not restored to zero"))
        if altered := self._contender.altered():
            found.append(Violation("module-state", f"module variables {', '.join(altered)} were changed"))
        return tuple(found)
