"""What a signature leads to, and how often it was called."""

import ctypes
from collections.abc import Callable

from cudal2.launcher.launcher import LoadedKernel

LaunchCall = Callable[[int, int, int, int], None]


class CallTally:
    """Calls of one kind. An increment is one bytecode sequence without a call, so no thread switch of CPython loses one.

    `compiled`: the counter of calls that did not pass through Python; None where there is none.
    """

    __slots__ = ("calls", "compiled")

    def __init__(self) -> None:
        self.calls = 0
        self.compiled: ctypes.c_uint64 | None = None

    @property
    def total(self) -> int:
        return self.calls + (self.compiled.value if self.compiled is not None else 0)


class CallRoute:
    """What a signature leads to: the `launch` of a kernel, or None for a fallback, which `tally` counts.

    `withdrawn`: called once the launch was withdrawn, by who keeps the route elsewhere.
    """

    __slots__ = ("columns", "device", "kernel", "launch", "rows", "tally", "withdrawn")

    def __init__(self, tally: CallTally) -> None:
        self.tally = tally
        self.kernel: LoadedKernel | None = None
        self.launch: LaunchCall | None = None
        self.withdrawn: Callable[[], None] | None = None
        self.device, self.rows, self.columns = -1, 0, 0

    def withdraw(self, tally: CallTally) -> None:
        """Launch no longer. `tally`: what counts calls from now on."""
        self.tally, self.launch = tally, None
        if self.withdrawn is not None:
            self.withdrawn()
