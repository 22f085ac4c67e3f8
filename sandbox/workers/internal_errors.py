"""Errors of ours that a candidate brings out: its own outcome while they are rare, the run's end where they are the rule.

Whatever a candidate makes us raise must not end a run, so it becomes that candidate's `Crashed`. A bug that meets every
candidate must not hide behind that: after several different candidates in a row the run stops, with the traceback.
"""

import errno
import threading
import traceback

from contract.errors import CompilerMissing, DeviceUnavailable, MachineError, WorkerError
from contract.evaluation import Crashed
from contract.inspection import Inspection

IN_A_ROW = 3
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
# Of the machine or of the processes, whichever candidate is in hand.
NOT_OURS = (CompilerMissing, DeviceUnavailable, MachineError, WorkerError)


class InternalErrors:
    """Counts candidates in a row that met an error of ours. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met: list[str] = []

    def passed(self) -> None:
        """A candidate met none."""
        with self._lock:
            self._met.clear()

    def met(
        self, candidate_id: str, stage: str, reason: str, *, log: str = "", inspection: Inspection | None = None
    ) -> Crashed:
        """The outcome of a candidate that met one. Raises: WorkerError where it is one too many in a row."""
        with self._lock:
            if candidate_id not in self._met:
                self._met.append(candidate_id)
            count = len(self._met)
            if count >= IN_A_ROW:
                self._met.clear()
        if count >= IN_A_ROW:
            raise WorkerError(
                f"{count} candidates in a row met an internal error, the last one in {stage}: {reason}; "
                "please report it with the log",
                log=log,
            )
        return Crashed(stage=stage, message=f"internal error on this candidate: {reason}", inspection=inspection)


def describe(error: BaseException) -> tuple[str, str]:
    """(reason in a line, traceback) of an error, in characters that any encoding takes."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    log = "".join(traceback.format_exception(error))
    return _plain(reason), _plain(log)


def machine_error(error: OSError, where: str) -> MachineError | None:
    """An error of the file system that no candidate causes, in words; None where it is another."""
    if error.errno not in NO_SPACE:
        return None
    return MachineError(f"{where}: {error.strerror}; free some space, then go on with: cudal2-agent runs resume")


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
