"""Operands between canary bands, which show stray writes and the byte they hit.

Covered: writes up to a band's width on either side of every buffer; any change of A, B, a bias or `up`. On a GPU each buffer
lies in a mapping of its own (`mapping.py`), where `placement.py` draws: bands fill its pages, and accesses beyond them fault,
reads too.
Not covered: reads within the pages of a buffer (the emulator detects those).
The array module is a parameter, so that the same code guards cupy arrays on a GPU and numpy arrays in tests.
"""

import random
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import cupy
import numpy as np

from cudal2_agent.contract.records.task import BIAS, UP, ElementType, GemmTask
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.guard.comparing import WORD_BYTES, differ
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.guard.placement import ALIGNMENT_BYTES, PAGE_BYTES, place, room_bytes

MIN_BAND_BYTES = 4 * 1024
MAX_BAND_BYTES = 1024 * 1024
_WRITTEN = ("D", "workspace")  # buffers that a candidate may write
_DRAWN_BYTES = 3 * PAGE_BYTES  # the bands of a mapping take less than two pages
POISON = 0xFF  # four of them are a NaN in f32, two of them one in f16 and in bf16


@dataclass(frozen=True)
class BufferViolation:
    """A violation of the buffers' rules: a band written, or an input changed. `buffer`: A, B, bias, up, D or workspace."""

    kind: Literal["canary", "input"]
    buffer: str
    message: str


class Guarded:
    """Bytes with a patterned band directly before and after them; the payload starts at a multiple of 256.

    A candidate is given `payload`; the sandbox writes through `target`, which is the same memory. In plain memory each band
    is an eighth of it, between 4 KiB and 1 MiB. In a mapping the bands fill all the rest, and `place` moves the payload. The
    pattern is a piece of bytes that each worker draws, at a drawn place of them, so that no kernel knows it.
    """

    def __init__(self, size_bytes: int, xp: Any = cupy, *, mapping: Mapping | None = None) -> None:
        self._xp, self._size_bytes, self._mapped = xp, size_bytes, mapping is not None
        if mapping is None:
            band = min(MAX_BAND_BYTES, max(MIN_BAND_BYTES, size_bytes // 8)) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            whole = xp.empty(size_bytes + 2 * band + ALIGNMENT_BYTES, dtype=xp.uint8)
            start = band + -address(whole) % ALIGNMENT_BYTES
            self._whole = self._writer = whole[start - band : start + size_bytes + band]
            start = band
        else:
            self._whole, self._writer, start = mapping.bytes(), mapping.writer(), 0
        widest = self._whole.size - size_bytes
        begin = secrets.randbelow((_DRAWN_BYTES - widest) // WORD_BYTES + 1) * WORD_BYTES
        self._pattern = _drawn_bytes(xp)[begin : begin + widest]
        self._lay(start)

    def place(self, draw: random.Random) -> None:
        """Move the payload to a place of its own draw; its contents are lost. Plain memory stays where it is."""
        if self._mapped:
            self._lay(place(self._size_bytes, self._whole.size, draw))

    def _lay(self, start: int) -> None:
        whole, writer, end = self._whole, self._writer, start + self._size_bytes
        self._before, self.payload, self._after = whole[:start], whole[start:end], whole[end:]
        self._writers, self.target = (writer[:start], writer[end:]), writer[start:end]
        self.repair()

    def repair(self) -> None:
        """Write the pattern into both bands."""
        for band in self._writers:
            if band.size:
                band[:] = self._pattern[: band.size]

    def fill(self, byte: int) -> None:
        self.target.fill(byte)

    def bands(self) -> list[tuple[Any, Any]]:
        """Each band and its expected contents."""
        return [(band, self._pattern[: band.size]) for band in (self._before, self._after) if band.size]

    def violation(self) -> str | None:
        """Where the bands were written: the damaged byte next to the payload, and the number of damaged bytes; None if
        intact.
        """
        if not _differ(self._xp, self.bands()):
            return None
        before = self._before != self._pattern[: self._before.size]
        after = self._after != self._pattern[: self._after.size]
        if count := int(before.sum()):
            distance = int(before[::-1].argmax()) + 1
            return f"written {distance} byte(s) before its start ({count} bytes of the band changed)"
        if count := int(after.sum()):
            distance = int(after.argmax()) + 1
            return f"written {distance} byte(s) past its end ({count} bytes of the band changed)"
        return None


class GuardedOperands:
    """One guarded set of a task's operands. `operands`: what a contender binds; A and B lie in the task's layout only.

    `make`: makes the guarded bytes of a buffer from its name and size; plain memory where None. `targets`: A, B, and a
    bias or `up`, as the sandbox writes them.
    """

    def __init__(
        self,
        task: GemmTask,
        workspace_bytes: int = 0,
        *,
        xp: Any = cupy,
        make: Callable[[str, int], Guarded] | None = None,
    ) -> None:
        self._xp = xp
        made = make or (lambda _name, size_bytes: Guarded(size_bytes, xp))
        self._pristine: dict[str, Any] = {}
        self._task = task
        buffers = {each.name: each for each in task.buffers}
        names = ["A", "D", *(name for name in buffers if name not in ("A", "D"))]
        self._shapes: dict[str, tuple[int, ...]] = {name: buffers[name].shape for name in names}
        self._guards = {name: made(name, buffers[name].bytes) for name in names}
        if workspace_bytes:
            self._guards["workspace"] = made("workspace", workspace_bytes)
        self._view()
        self.poison()

    def place(self, draw: random.Random) -> None:
        """Move every buffer to a place of its own draw. Their contents are lost, and `operands` and `targets` are new."""
        for guard in self._guards.values():
            guard.place(draw)
        self._pristine.clear()
        self._view()

    def _view(self) -> None:
        xp, dtype, guards = self._xp, storage_type(self._task.element), self._guards
        views = {name: guards[name].payload.view(dtype).reshape(shape) for name, shape in self._shapes.items()}
        inputs = [each.name for each in self._task.buffers if not each.role.written]
        self.targets = {name: guards[name].target.view(xp.uint16).reshape(self._shapes[name]) for name in inputs}
        third = {"bias": views.get(BIAS), "up": views.get(UP)}
        self.operands = Operands.in_layout(self._task.layout, views["A"], views["B"], views["D"], **third)
        if "workspace" in guards:
            self.operands = replace(self.operands, workspace=guards["workspace"].payload)

    def load(self, a: Any, b: Any, third: Any | None = None) -> None:
        """Copy inputs in. The given arrays stay the originals that `violations` compares with, bit for bit.

        `third`: a bias, or `up`.
        Shape: as the task's layout has them in memory, contiguous or not. Raises: ValueError for another shape.
        """
        for name, source in (("A", a), ("B", b), (self._task.third, third)):
            if name is None or source is None:
                continue
            target = self.targets[name]
            if source.shape != target.shape:
                raise ValueError(f"{name} should be {target.shape}, not {source.shape}")
            bits = self._xp.ascontiguousarray(source).view(self._xp.uint16)
            target[...] = bits
            self._pristine[name] = bits

    def poison(self) -> None:
        """Fill D and the workspace with NaN, which shows outputs left unwritten and memory read before it is written."""
        for name in ("D", "workspace"):
            if name in self._guards:
                self._guards[name].fill(POISON)

    def violations(self) -> tuple[BufferViolation, ...]:
        """Every band written and every input changed since `load`."""
        bands = [each for guard in self._guards.values() for each in guard.bands()]
        inputs = [(self._bits(name), bits.ravel()) for name, bits in self._pristine.items()]
        if not _differ(self._xp, [*bands, *inputs]):
            return ()
        found = []
        for name, guard in self._guards.items():
            if (written := guard.violation()) is not None:
                found.append(BufferViolation("canary", name, f"{name} was {written}"))
            if name in self._pristine and (changed := self._changed(name)):
                found.append(BufferViolation("input", name, f"input {name} was changed in {changed} element(s)"))
        return tuple(found)

    def repair(self) -> None:
        """Restore the set after a violation: the bands, and the inputs from their originals."""
        for name, guard in self._guards.items():
            guard.repair()
            if name in self._pristine:
                self.targets[name][...] = self._pristine[name]

    def _bits(self, name: str) -> Any:
        return self._guards[name].payload.view(self._xp.uint16)

    def _changed(self, name: str) -> int:
        return int((self._bits(name) != self._pristine[name].ravel()).sum())


def map_guarded(device: int, written: Collection[str] = _WRITTEN) -> Callable[[str, int], Guarded]:
    """Makes guarded bytes in mappings of their own, sealed but for those `written`. Raises: MemoryError."""

    def make(name: str, size_bytes: int) -> Guarded:
        return Guarded(size_bytes, mapping=Mapping(room_bytes(size_bytes), device, name, sealed=name not in written))

    return make


@cache
def _drawn_bytes(xp: Any) -> Any:
    """What patterns are pieces of; drawn once in a process, because it takes milliseconds. Shape: (_DRAWN_BYTES,)."""
    return xp.asarray(np.frombuffer(np.random.default_rng(secrets.randbits(64)).bytes(_DRAWN_BYTES), np.uint8))


def _differ(xp: Any, pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the arrays of any pair differ. Shape: pairs of (n,), of one integer type."""
    if xp is np:
        return any(bool((one != other).any()) for one, other in pairs)
    return differ(pairs)


def storage_type(element: ElementType) -> Any:
    """The array type that holds an element: numpy has no bfloat16, so its bits are stored as uint16."""
    return np.dtype(np.float16 if element is ElementType.F16 else np.uint16)


def address(array: Any) -> int:
    """Address of an array's first byte, on the device for cupy and on the host for numpy."""
    return int(array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data)
