"""Errors of this project that a candidate triggers: its own outcome while they are rare, the end of the run if they persist.

An error that one candidate triggers does not end a run; it becomes that candidate's `Crashed`. A bug that affects every
candidate must not stay hidden that way: after several different candidates in a row the run stops with the traceback.
"""

import errno
import threading
import traceback

from cudal2_agent.contract.errors import CompilerMissing, DeviceUnavailable, MachineError, WorkerError
from cudal2_agent.contract.records.evaluation import Crashed
from cudal2_agent.contract.records.inspection import Inspection

IN_A_ROW = 3
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
# Of the machine or of the processes, whichever candidate is in hand.
NOT_OURS = (CompilerMissing, DeviceUnavailable, MachineError, WorkerError)


class InternalErrors:
    """Counts candidates in a row that triggered an internal error. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met: list[str] = []

    def passed(self) -> None:
        """A candidate triggered none."""
        with self._lock:
            self._met.clear()

    def met(
        self, candidate_id: str, stage: str, reason: str, *, log: str = "", inspection: Inspection | None = None
    ) -> Crashed:
        """The outcome of a candidate that triggered one. Raises: WorkerError after `IN_A_ROW` candidates in a row."""
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
    """(reason in one line, traceback) of an error, in characters that every encoding can represent."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    log = "".join(traceback.format_exception(error))
    return _plain(reason), _plain(log)


def machine_error(error: OSError, where: str) -> MachineError | None:
    """A file-system error that no candidate causes, as a `MachineError`; None for any other error."""
    if error.errno not in NO_SPACE:
        return None
    return MachineError(f"{where}: {error.strerror}; free some space, then go on with: cudal2-agent runs resume")


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
