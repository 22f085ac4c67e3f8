"""Names what a problem file tried and may not do. The jail is what holds; the names are for the file's author.

Covered: files, connections, processes, signals and libraries, as far as Python reports them by audit events; a file that
catches the error is refused all the same.
Not covered: system calls of native code, which the jail refuses without a name.
"""

import errno
import os
import sys
import sysconfig
from types import FrameType
from typing import Any

_NAMES = {
    "open": "open {}",
    "os.fork": "start a process",
    "os.forkpty": "start a process",
    "os.system": "start a process ({})",
    "os.exec": "start a process ({})",
    "os.spawn": "start a process ({})",
    "os.posix_spawn": "start a process ({})",
    "subprocess.Popen": "start a process ({})",
    "socket.__new__": "open a connection",
    "socket.connect": "open a connection",
    "socket.getaddrinfo": "open a connection ({})",
    "socket.gethostbyname": "open a connection ({})",
    "urllib.Request": "open a connection ({})",
    "os.kill": "send a signal",
    "signal.pthread_kill": "send a signal",
    "os.listdir": "list the folder {}",
    "os.scandir": "list the folder {}",
    "os.mkdir": "make the folder {}",
    "os.remove": "remove {}",
    "os.rename": "rename {}",
    "os.rmdir": "remove {}",
    "os.chmod": "change {}",
    "os.chown": "change {}",
    "os.link": "link {}",
    "os.symlink": "link {}",
    "os.truncate": "change {}",
    "ctypes.dlopen": "load the library {}",
}
# Libraries do these while they are imported, and go on where they may not.
_MAY_FAIL = frozenset({"open", "os.listdir", "os.scandir", "ctypes.dlopen"})
_STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_MOST_CHARS = 200


class Deeds:
    """What the file at `path` did. `watch` installs the hook, which stays for the life of the process."""

    def __init__(self, path: str) -> None:
        self._path, self._found = path, ""
        self.active = True

    @property
    def told(self) -> str:
        """The first thing that it tried, as `open a connection`; empty where it tried nothing."""
        return self._found

    def watch(self) -> None:
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        words = _NAMES.get(event)
        if words is None or not self.active or not self._is_to_blame(event):
            return
        self.active = False  # what follows, tracebacks above all, opens files
        try:
            object_ = arguments[0] if arguments else ""
            name = object_.decode(errors="replace") if isinstance(object_, bytes) else str(object_)
            self._found = self._found or words.format(name[:_MOST_CHARS])
        finally:
            self.active = True
        raise PermissionError(errno.EPERM, f"a problem file may not {self._found}")

    def _is_to_blame(self, event: str) -> bool:
        """Whether the file did it, itself or by the standard library; not a library that it imports."""
        frame: FrameType | None = sys._getframe(2)
        first = True
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self._path:
                return True
            importing = name.startswith("<frozen importlib")
            if importing or (event in _MAY_FAIL and first and not name.startswith(_STANDARD)):
                return False
            if not name.startswith(_STANDARD) or os.sep + "site-packages" + os.sep in name:
                return False
            first = False
            frame = frame.f_back
        return False
