"""Which buffer an illegal access hit: the driver's report of the fault, read from the kernel's log where that is allowed.

The driver reports to a process only that an access was illegal. Its kernel module logs the address, to a page of 4 KiB, and
whether it was read or written (Xid 31). Source: NVIDIA, GPU Deployment and Management Documentation, XID Errors.
"""

import contextlib
import os
import re
import stat
import time

from cudal2_agent.sandbox.cuda.guard.mapping import whose
from cudal2_agent.sandbox.jail.entering import KERNEL_LOG, KERNEL_LOG_FD

_DEVICE = os.makedev(1, 11)  # of /dev/kmsg, on every Linux
RECENT_S = 10.0
PATIENCE_S = 0.3
_FAULT = re.compile(r"Xid \([^)]*\): 31, .*?faulted @ 0x(?P<high>[0-9a-f]+)_(?P<low>[0-9a-f]+)\..*?ACCESS_TYPE_(?P<access>\w+)")
_STAMP = re.compile(r"^\d+,\d+,(?P<micros>\d+),")


def describe_fault() -> str:
    """Where the last illegal access went, in words; also where the log cannot be read or says nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            faults = _recent_faults()
        except OSError as exc:
            return f"which buffer it hit is not known: the kernel log cannot be read ({exc.strerror})"
        if faults or time.monotonic() >= deadline:
            break
        time.sleep(PATIENCE_S / 10)
    if not faults:
        return "which buffer it hit is not known: the kernel log names none"
    access, address = faults[-1]
    place = whose(address) or f"address {address:#x}, which is in no buffer"
    return f"it was a {access} of the page at {place}"


def _recent_faults() -> list[tuple[str, int]]:
    """(read or write, address) of the faults of the last seconds, oldest first. Raises: OSError."""
    since = 1e6 * (time.clock_gettime(time.CLOCK_MONOTONIC) - RECENT_S)
    found = []
    for line in _lines():
        stamp, fault = _STAMP.match(line), _FAULT.search(line)
        if stamp and fault and int(stamp["micros"]) >= since:
            access = "write" if fault["access"].endswith("WRITE") else "read"
            found.append((access, int(fault["high"] + fault["low"], 16)))
    return found


def _lines() -> list[str]:
    """The kernel's log, one record at a time. Raises: OSError."""
    lines = []
    descriptor = _open_log()
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    record = os.read(descriptor, 8192)
                except BrokenPipeError:  # a record was overwritten before it was read
                    continue
                if not record:
                    break
                lines.append(record.decode(errors="replace"))
    finally:
        os.close(descriptor)
    return lines


def _open_log() -> int:
    """The log, from its oldest record: opened by this process, else the descriptor that a jailed worker's launcher left
    open.
    """
    try:
        return os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        if not _is_kernel_log(KERNEL_LOG_FD):
            raise
    descriptor = os.dup(KERNEL_LOG_FD)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _is_kernel_log(descriptor: int) -> bool:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEVICE
