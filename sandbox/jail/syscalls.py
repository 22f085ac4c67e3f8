"""A seccomp filter: system calls that a child of model-written code never needs fail with EPERM, in all of its threads.

Covered: tracing and memory of other processes, mounts, namespaces, kernel keys, BPF, io_uring, userfaultfd, file handles,
limits of other processes; on request sockets, new processes and programs, and signals to others.
Not covered: processor architectures other than x86-64 and AArch64, where `forbid` does nothing and returns False.
"""

import ctypes
import os
import platform
from collections.abc import Iterable

from cudal2_agent.sandbox.jail.landlock import forbid_new_privileges

# Numbers on x86-64 and AArch64; 0 where AArch64 lacks the call.
_ALWAYS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
}
_SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
_PROCESSES = {
    "fork": (57, 0),
    "vfork": (58, 0),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_PROGRAMS = {"execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
_CLONE_THREAD = 0x10000

_INDEX = {"x86_64": 0, "aarch64": 1}
_AUDITED = (0xC000003E, 0xC00000B7)
_SECCOMP = (317, 277)
_X32 = 0x40000000  # the second set of numbers on x86-64
_LOAD, _IS, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL_PROCESS, _NOT_PERMITTED, _NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_SET_FILTER, _ALL_THREADS = 1, 1


class _FilterStep(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("then", ctypes.c_uint8), ("otherwise", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint16), ("steps", ctypes.POINTER(_FilterStep)))


def forbid(*, processes: bool, programs: bool, sockets: bool) -> bool:
    """Install the filter permanently, in every thread of this process; False where this machine's numbers are unknown.

    `processes`, `programs` (`execve`), `sockets`: whether new ones stay allowed; threads always do. Raises: OSError.
    """
    index = _INDEX.get(platform.machine())
    if index is None:
        return False
    calls = dict(_ALWAYS)
    for allowed, more in ((processes, _PROCESSES), (programs, _PROGRAMS), (sockets, _SOCKETS)):
        calls |= {} if allowed else more
    steps = _steps(index, [numbers[index] for numbers in calls.values() if numbers[index]], processes=processes)
    program = _FilterProgram(len(steps), (_FilterStep * len(steps))(*steps))
    forbid_new_privileges()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SECCOMP[index], ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_ALL_THREADS), ctypes.byref(program)):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
    return True


def _steps(index: int, forbidden: list[int], *, processes: bool) -> list[_FilterStep]:
    steps = [
        _FilterStep(_LOAD, 0, 0, _ARCHITECTURE),
        _FilterStep(_IS, 1, 0, _AUDITED[index]),
        _FilterStep(_RETURN, 0, 0, _KILL_PROCESS),
        _FilterStep(_LOAD, 0, 0, _NUMBER),
    ]
    if index == _INDEX["x86_64"]:
        steps += [_FilterStep(_AT_LEAST, 0, 1, _X32), _FilterStep(_RETURN, 0, 0, _NOT_PERMITTED)]
    for number in forbidden:
        steps += [_FilterStep(_IS, 0, 1, number), _FilterStep(_RETURN, 0, 0, _NOT_PERMITTED)]
    steps += _unless(_PRLIMIT[index], _IS, (0, os.getpid()))
    if not processes:
        # The C library falls back to clone, whose flags the filter can read.
        steps += [_FilterStep(_IS, 0, 1, _CLONE3[index]), _FilterStep(_RETURN, 0, 0, _NO_SUCH_CALL)]
        steps += _unless(_CLONE[index], _HAS_BIT, (_CLONE_THREAD,))
        steps += _unless(_TGKILL[index], _IS, (os.getpid(),))  # abort() sends a signal to its own process
    return [*steps, _FilterStep(_RETURN, 0, 0, _ALLOW)]


def _unless(number: int, test: int, values: Iterable[int]) -> list[_FilterStep]:
    """Forbid a call unless its first argument passes a test against one of the values."""
    tests = [step for value in values for step in (_FilterStep(test, 0, 1, value), _FilterStep(_RETURN, 0, 0, _ALLOW))]
    body = [_FilterStep(_LOAD, 0, 0, _FIRST_ARGUMENT), *tests, _FilterStep(_RETURN, 0, 0, _NOT_PERMITTED)]
    return [_FilterStep(_IS, 0, len(body), number), *body]
