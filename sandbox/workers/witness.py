"""The emulator as a second witness beside a GPU: a pool of one worker that starts when a proof is first requested.

Covered: an emulator that was not built, does not start, or is lost in the middle; each is a reason and never an error.
Not covered: proofs run after the GPU's work and not beside it, since CPU load would disturb the launches that are timed.
"""

from collections.abc import Callable

from cudal2_agent.contract.errors import Cudal2Error, MachineError, WorkerError
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.sandbox.workers.messages import Evaluate, NotExecuted, Verified
from cudal2_agent.sandbox.workers.pool import WorkerPool

OpenPool = Callable[[], WorkerPool]


class WitnessPool:
    """Opens the emulator's pool once; if that fails, every request gets the reason. `open_pool` raises as a pool's start."""

    def __init__(self, open_pool: OpenPool) -> None:
        self._open_pool = open_pool
        self._pool: WorkerPool | None = None
        self._missing = ""

    def evaluate(self, request: Evaluate) -> Evaluation | Verified | NotExecuted:
        """The emulator's answer; `NotExecuted` where there is no emulator or it fails."""
        try:
            pool = self._opened()
            return pool.evaluate(request) if pool is not None else NotExecuted(reason=self._missing)
        except (MachineError, WorkerError) as exc:
            return NotExecuted(reason=f"the emulator failed: {_line(exc)}")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _opened(self) -> WorkerPool | None:
        if self._pool is None and not self._missing:
            try:
                self._pool = self._open_pool()
            except (MachineError, WorkerError) as exc:
                self._missing = f"there is no emulator here: {_line(exc)}"
        return self._pool


def _line(error: Cudal2Error) -> str:
    return " ".join(str(error).split())
