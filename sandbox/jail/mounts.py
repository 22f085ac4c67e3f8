"""A mount namespace by system calls: after `enter_root`, the process sees only the paths that it was given.

Covered: every other path is absent, whether or not it exists outside; readable paths are mounted read-only.
Not covered: file systems mounted below a readable path stay writable where their permissions allow it.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

_NEW_USER, _NEW_NAMESPACE = 0x10000000, 0x00020000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_KEPT = ((os.ST_NOSUID, 2), (os.ST_NODEV, 4), (os.ST_NOEXEC, 8), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048))
_RELATIVE_TIMES, _ST_RELATIVE_TIMES = 1 << 21, 4096
_DETACH = 2
_INNER_ID = 1000  # not 0: a program that starts as root of a user namespace has every right inside it
_MAX_LINKS = 40

_LIBC = ctypes.CDLL(None, use_errno=True)


def enter_root(read: Iterable[str], write: Sequence[str], *, also: int = 0) -> None:
    """Make a root folder of these paths the root of this process, in a user namespace of its own.

    `also`: further namespaces to enter (clone flags). The first path to write becomes the working folder. Call before any
    thread is started. Raises: OSError where the system refuses.
    """
    user, group = os.getuid(), os.getgid()
    _check(_LIBC.unshare(_NEW_USER | _NEW_NAMESPACE | also), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_INNER_ID} {user} 1"), ("gid_map", f"{_INNER_ID} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    _mount(None, "/", _RECURSIVE | _PRIVATE)
    home = os.path.realpath(write[0])
    folders = _opened(write), _opened(read)
    _mount("tmpfs", home, _NO_SUID | _NO_DEVICES, kind="tmpfs", data="size=1m,mode=755")
    for opened, read_only in zip(folders, (False, True), strict=True):
        for path, descriptor in opened:
            _bind(home, path, descriptor, read_only=read_only)
    os.chdir(home)
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _DETACH), "umount2")
    os.chdir(home)


def _opened(paths: Iterable[str]) -> list[tuple[str, int]]:
    opened = []
    for path in dict.fromkeys(paths):
        try:
            opened.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
    return opened


def _bind(root: str, path: str, source: int, *, read_only: bool) -> None:
    """Mount an open file or folder at its path below a root."""
    target = f"{root}{_with_links(root, path)}"
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    if os.path.samestat(os.stat(target), os.fstat(source)):
        return  # a folder above it is mounted already
    try:
        _mount(f"/proc/self/fd/{source}", target, _BIND)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        _mount(f"/proc/self/fd/{source}", target, _BIND | _RECURSIVE)  # something is mounted below it
    os.close(source)
    if read_only:
        held = os.statvfs(target).f_flag
        kept = sum(flag for seen, flag in _KEPT if held & seen)
        times = _RELATIVE_TIMES if held & _ST_RELATIVE_TIMES else 0
        _mount(None, target, _REMOUNT | _BIND | _READ_ONLY | kept | times)


def _with_links(root: str, path: str) -> str:
    """The real path of a path; every symbolic link on the way is made below the root too. Raises: OSError for a loop."""
    done, rest = "", [part for part in path.split("/") if part]
    for _ in range(_MAX_LINKS):
        while rest:
            here = f"{done}/{rest.pop(0)}"
            if os.path.islink(here):
                break
            done = here
        else:
            return done or "/"
        link = os.readlink(here)
        os.makedirs(f"{root}{done}", exist_ok=True)
        if not os.path.lexists(f"{root}{here}"):
            os.symlink(link, f"{root}{here}")
        joined = os.path.normpath(os.path.join(done or "/", link, *rest))
        done, rest = "", [part for part in joined.split("/") if part]
    raise OSError(errno.ELOOP, f"too many symbolic links in {path}")


def _mount(source: str | None, target: str, flags: int, *, kind: str | None = None, data: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _check(_LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
