"""Landlock by system calls: after `restrict`, this thread and its children open only the files that rules allow.

Covered: reading, listing, executing, creating, writing, truncating, device ioctls (ABI 5), TCP (ABI 4), abstract Unix
sockets and signals to processes outside (ABI 6), reading `/proc` entries of processes outside that only a tracer may read.
Not covered: whether a path exists and its attributes (`stat`); other threads that already run; files that are already open.
Source: Linux, Documentation/userspace-api/landlock.rst.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

EXECUTE = 1 << 0
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove and make entries of every kind
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = _READ_FILE | _READ_DIR
# Character devices, sockets and block devices are never made.
WRITE = _WRITE_FILE | (_CHANGE_FOLDER & ~(1 << 6 | 1 << 9 | 1 << 11)) | _REFER | _TRUNCATE | _IOCTL_DEV
DEVICE = _WRITE_FILE | _IOCTL_DEV
_OF_A_FILE = EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock ABI; 0 where it has none or it is switched off."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(rules: Iterable[tuple[str, int]], *, handled: int, network: bool) -> None:
    """Allow of the `handled` rights only what a rule gives to a path and everything below it. Absent paths are skipped.

    `network`: whether TCP stays allowed. Raises: OSError where the kernel refuses.
    """
    abi = version()
    ruleset = _create(abi, handled, network)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & _known(abi) & handled)
        forbid_new_privileges()
        _call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def forbid_new_privileges() -> None:
    """No program that this process starts gains rights by being set-user-ID. Raises: OSError."""
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))):
        raise _error("prctl")


def _create(abi: int, handled: int, network: bool) -> int:
    asked = _Ruleset(fs=handled & _known(abi), net=0 if network or abi < 4 else 3, scoped=3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    return _call(_CREATE_RULESET, ctypes.byref(asked), ctypes.c_size_t(size), ctypes.c_uint32(0))


def _known(abi: int) -> int:
    newer = (_REFER if abi < 2 else 0) | (_TRUNCATE if abi < 3 else 0) | (_IOCTL_DEV if abi < 5 else 0)
    return ((1 << 16) - 1) & ~newer


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        granted = rights if stat.S_ISDIR(os.fstat(folder).st_mode) else rights & _OF_A_FILE
        if granted:
            rule = _PathBeneath(access=granted, folder=folder)
            _call(_ADD_RULE, ruleset, ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(folder)


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        raise _error("Landlock")
    return result


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
