"""Which launches of a plan may still run concurrently with each of them, by the order of `griddepcontrol`.

A secondary launch starts when every CTA of the primary one has executed `launch_dependents` or has ended. Its
`griddepcontrol.wait` returns when the primary launch has completed and its memory is flushed. A launch that does not wait may
complete before the launches that precede it, so a wait for it alone does not order anything after those.
A launch without a programmatic edge follows everything before it in its stream, as the kernels of a library call do.
Source: PTX ISA, griddepcontrol.
"""

from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.machine import Order

OTHERS = core.running_others  # the bit of the kernels that precede the plan


@dataclass(frozen=True)
class _Ended:
    """A launch that was run. `waited`: some CTA waited; `held`: one waited before it triggered the next launch."""

    order: Order
    waited: bool
    held: bool


class Chain:
    """The launches of one run, in their order."""

    def __init__(self) -> None:
        self._last: _Ended | None = None

    def next(self, number: int, *, programmatic: bool) -> Order:
        """The next launch. It must be `ended` before the one after it. `number`: larger than any before."""
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
        """Launches that may still run when the last one has completed, a bit per launch."""
        if self._last is None:
            return 0
        return self._last.order.running_after if self._last.waited else self._last.order.running
