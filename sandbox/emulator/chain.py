"""Which launches of a plan may still run beside each of them, as far as `griddepcontrol` orders them.

A programmatic launch starts when every CTA of the one before it has let it, or has ended; its `griddepcontrol.wait` returns
when that one has completed and its memory is flushed. A launch that does not wait itself may complete before those ahead of
it, so a wait for it alone does not order anything behind them. Source: PTX ISA, griddepcontrol.
A launch without a programmatic edge follows everything before it in its stream.
"""

from dataclasses import dataclass

from sandbox.emulator.core_module import core
from sandbox.emulator.machine import Order

OTHERS = core.running_others  # the bit of the kernels that precede the plan


@dataclass(frozen=True)
class _Ended:
    """A launch that was run. `waited`: some CTA waited; `held`: one did so before it let the next launch start."""

    order: Order
    waited: bool
    held: bool


class Chain:
    """The launches of one run after another, in the order in which they are launched."""

    def __init__(self) -> None:
        self._last: _Ended | None = None

    def next(self, number: int, *, programmatic: bool) -> Order:
        """The next launch, which is to be `ended` before another is asked for. `number`: larger than any before."""
        last = self._last
        if last is None:
            return Order(number, running=OTHERS if programmatic else 0)
        if not programmatic:
            return Order(number)
        begun = last.order.running_after if last.held else last.order.running
        return Order(number, running=begun | 1 << last.order.number, running_after=self.left)

    def ended(self, order: Order, *, waited: bool, held: bool) -> None:
        self._last = _Ended(order, waited, held)

    @property
    def left(self) -> int:
        """Launches that may still run when the last one has completed, a bit for each."""
        if self._last is None:
            return 0
        return self._last.order.running_after if self._last.waited else self._last.order.running
