"""How much of each thing a module may have, so that a short text cannot ask for much memory or time."""

from cudal2_agent.sandbox.emulator.ptx.module import PtxError

MOST = {
    "statements": 2**19,
    "registers": 2**18,
    "initial values": 2**20,
    "bytes of initial values": 2**26,
}


class Quota:
    """What one module has left."""

    def __init__(self) -> None:
        self._left = dict(MOST)

    def spend(self, what: str, count: int, line: int) -> None:
        """Raises: PtxError where a module has more than it may."""
        self._left[what] -= count
        if self._left[what] < 0:
            raise PtxError(f"more than {MOST[what]} {what}", line)
