"""What a signature leads to, found once and kept."""

import threading
from collections.abc import Callable
from typing import Any

from cudal2.dispatch.decision import FallbackCause
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.torch.call_counts import CallTally
from cudal2.torch.matrix_signature import MatrixForm
from cudal2_agent.contract.records.task import Activation

MAX_ROUTES = 65536  # a program with more signatures than that starts anew

LaunchCall = Callable[..., None]  # as `LoadedKernel.launch`


class CallRoute:
    """What a signature leads to: the `launch` of a kernel, or None for a fallback of a `cause`. `tally` counts its calls.

    `withdrawn`: called once the launch was withdrawn, by who keeps the route elsewhere.
    """

    __slots__ = ("cause", "columns", "device", "kernel", "launch", "rows", "tally", "withdrawn")

    def __init__(self, tally: CallTally, cause: FallbackCause | None = None) -> None:
        self.tally, self.cause = tally, cause
        self.kernel: LoadedKernel | None = None
        self.launch: LaunchCall | None = None
        self.withdrawn: Callable[[], None] | None = None
        self.device, self.rows, self.columns = -1, 0, 0

    @property
    def lasts(self) -> bool:
        """False where the route changes when a build or a capture ends."""
        return self.cause not in (FallbackCause.BUILDING, FallbackCause.CAPTURING)

    def withdraw(self, tally: CallTally) -> None:
        """Launch no longer. `tally`: what counts calls from now on."""
        self.tally, self.cause, self.launch = tally, FallbackCause.LAUNCH_FAILED, None
        if self.withdrawn is not None:
            self.withdrawn()


class RouteCache:
    """Routes by signature. `decide` finds those that are not kept yet, one at a time.

    `kept`: read without a lock, and changed only here.
    """

    def __init__(self, decide: Callable[..., CallRoute]) -> None:
        self._decide = decide
        self.kept: dict[Any, CallRoute] = {}
        self._lock = threading.RLock()

    def open(self, key: Any, *product: MatrixForm | Activation | None) -> CallRoute:
        """The route of a signature. `product`: what `decide` takes. That of a capture is not kept."""
        with self._lock:
            found = self.kept.get(key)
            if found is not None:
                return found
            route = self._decide(*product)
            if route.cause is not FallbackCause.CAPTURING:
                if len(self.kept) >= MAX_ROUTES:
                    self.kept.clear()
                self.kept[key] = route
            return route

    def look_again(self) -> None:
        """Look the signatures up anew that wait for a build; loaded kernels and counts stay."""
        with self._lock:
            for key in [key for key, route in self.kept.items() if route.cause is FallbackCause.BUILDING]:
                del self.kept[key]
