"""Launches after the rounds, in the timer's own memory, whose operands, slots and contents are those of timed launches.

Covered: a launch that writes the output or the workspace of another one, which works for later launches; with programmatic
launch, one that reads operands or writes D before its predecessor has ended, or lets its dependents read D too early. Operands
that are still old hold numbers as the timer or as the tests draw them; D holds its filling, or the right product of other
operands. A launch that waits by a fair coin passes these and verification's with a probability of 2^-10 at most, 2^-8 where a
sample has four launches only.
All is enqueued in stream order, and the counters are read once at the end.
Not covered: memory outside the rings, which `guard/` and the mappings' ends cover in verification.
"""

import random
from typing import Any

import cupy

from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sampling import Lane
from cudal2_agent.sandbox.cuda.timing.track import BaseTrack
from cudal2_agent.sandbox.cuda.trusted import Bystanders

LAUNCHES, FEWEST = 8, 6  # drawn from those of a sample; with verification's dependent runs at least ten
ELEMENTS = 2**29  # of operands that are made anew; where one launch has many, fewer are drawn
LOOKED_BYTES = 8 * 1024**3  # of the rings, read to find what does not belong there; behind every launch where they are small


class Aftermath:
    """Runs drawn launches of a lane one by one, and looks at the rings after each."""

    def __init__(self, track: BaseTrack, contender: Contender, lane: Lane, bystanders: Bystanders, draw: random.Random) -> None:
        self._track, self._contender, self._lane, self._draw = track, contender, lane, draw
        self._bystanders = bystanders
        task = track.task
        read = sum(buffer.elements for buffer in task.buffers if not buffer.role.written)
        few = max(FEWEST, min(LAUNCHES, ELEMENTS // max(read, 1)))
        self._chosen = draw.sample(range(len(lane.launches)), min(few, len(lane.launches)))

    def fault(self) -> tuple[str, str] | None:
        """The check that failed and why, None where none did."""
        track, lane = self._track, self._lane
        track.refill(lane.workspaces, self._draw)
        rings = [(ring, [launch.slot for launch in lane.launches]) for ring in track.rings]
        if lane.workspaces is not None:
            rings.append((lane.workspaces, list(range(len(lane.launches)))))
        owned = [ring.owned() for ring, _ in rings]
        every = -(-len(self._chosen) * sum(ring.memory.nbytes for ring, _ in rings) // LOOKED_BYTES)
        done: list[int] = []
        found: list[tuple[str, str, Any]] = []  # check, fault with its number left out, that number on the device
        for index in self._chosen:
            for (ring, slots), marks in zip(rings, owned, strict=True):
                ring.give(marks, slots[index])
            if self._contender.programmatic:
                behind = track.behind_late_predecessor(lane, index, done, self._bystanders, self._draw)
                found += [("order", words, count) for words, count in behind]
            else:
                self._alone(index)
            done.append(index)
            if len(done) % every == 1 % every:
                found += [
                    ("strays", _of_others(ring), ring.strays(marks)) for (ring, _), marks in zip(rings, owned, strict=True)
                ]
        judged = track.judge.project([lane.launches[index] for index in done], self._draw)
        counts = cupy.concatenate([count for _, _, count in found]).tolist() if found else []
        for (check, words, _), count in zip(found, counts, strict=True):
            if count:
                return check, words.format(count)
        return None if judged.fault is None else ("order" if self._contender.programmatic else "outputs", judged.fault)

    def _alone(self, index: int) -> None:
        self._lane.bounds[index].enqueue(self._track.device.stream.ptr)
        self._track.device.synchronize()


def _of_others(ring: Ring) -> str:
    what = "workspaces" if ring.name == "workspace" else "outputs"
    return f"a launch changed {{}} pieces of 16 bytes of the {what} of launches that had not begun, or between them"
