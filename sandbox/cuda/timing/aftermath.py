"""Launches after the rounds, in the timer's own memory, whose operands, slots and contents are those of timed launches.

Covered: a launch that writes the output or the workspace of another one, which works for later launches; with programmatic
launch, one that reads operands or writes D before its predecessor has ended, or lets its dependents read D too early. Operands
that are still old hold numbers as the timer or as the tests draw them; D holds its filling, or the right product of other
operands.
Not covered: memory outside the rings, which `guard/` and the mappings' ends cover in verification.
"""

import random

import cupy

from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sampling import Lane
from cudal2_agent.sandbox.cuda.timing.track import Track
from cudal2_agent.sandbox.cuda.trusted import DELAY_NS, Bystanders

LAUNCHES, FEWEST = 16, 2  # drawn from those of a sample
ELEMENTS = 2**29  # of operands that are made anew; where one launch has many, fewer are drawn
LOOKED_BYTES = 8 * 1024**3  # of the rings, read to find what does not belong there; behind every launch where they are small


class Aftermath:
    """Runs drawn launches of a lane one by one, and looks at the rings after each."""

    def __init__(self, track: Track, contender: Contender, lane: Lane, bystanders: Bystanders, draw: random.Random) -> None:
        self._track, self._contender, self._lane, self._draw = track, contender, lane, draw
        self._bystanders = bystanders
        task = track.task
        few = max(FEWEST, min(LAUNCHES, ELEMENTS // (task.k * (task.m + task.n))))
        self._chosen = draw.sample(range(len(lane.launches)), min(few, len(lane.launches)))

    def fault(self) -> tuple[str, str] | None:
        """The check that failed and why, None where none did."""
        track, lane = self._track, self._lane
        track.refill(lane.workspaces, self._draw)
        rings = [(track.ring, [launch.slot for launch in lane.launches])]
        if lane.workspaces is not None:
            rings.append((lane.workspaces, list(range(len(lane.launches)))))
        owned = [ring.owned() for ring, _ in rings]
        every = -(-len(self._chosen) * sum(ring.memory.nbytes for ring, _ in rings) // LOOKED_BYTES)
        done: list[int] = []
        for index in self._chosen:
            for (ring, slots), marks in zip(rings, owned, strict=True):
                ring.give(marks, slots[index])
            if not self._contender.programmatic:
                self._alone(index)
            elif (early := self._behind_late_predecessor(index, done)) is not None:
                return "order", early
            done.append(index)
            if len(done) % every == 1 % every:
                for (ring, _), marks in zip(rings, owned, strict=True):
                    if (strays := ring.strays(marks)) > 0:
                        return "strays", _of_others(ring, strays)
        judged = track.judge.project([lane.launches[index] for index in done], self._draw)
        return None if judged.fault is None else ("order" if self._contender.programmatic else "outputs", judged.fault)

    def _alone(self, index: int) -> None:
        self._lane.bounds[index].enqueue(self._track.device.stream.ptr)
        self._track.device.synchronize()

    def _behind_late_predecessor(self, index: int, done: list[int]) -> str | None:
        """One launch whose operands come late and whose output is read early. Returns what it did too early."""
        track, launch = self._track, self._lane.launches[index]
        d = track.ring.slot(launch.slot).view(cupy.uint16)
        if done and self._draw.random() < 0.5:
            d[...] = track.ring.slot(self._lane.launches[self._draw.choice(done)].slot).view(cupy.uint16)
        before, seen, early = d.copy(), cupy.empty_like(d), cupy.zeros(1, dtype=cupy.uint64)
        track.pools.make_old(launch[:2], self._draw)
        self._bystanders.compile()
        track.device.synchronize()
        stream = track.device.stream.ptr
        track.pools.renew_late(launch[:2], d, before, early, DELAY_NS)
        self._lane.bounds[index].enqueue(stream)
        self._bystanders.consume(d, seen, stream)
        track.device.synchronize()
        if count := int(early[0]):
            return f"{count} outputs of a launch were written before its predecessor had finished"
        if count := int(cupy.count_nonzero(seen != d)):
            return f"{count} outputs of a launch were written after its dependents could read them"
        return None


def _of_others(ring: Ring, strays: int) -> str:
    what = "outputs" if ring.name == "D" else "workspaces"
    return f"a launch changed {16 * strays} bytes of the {what} of launches that had not begun, or between them"
