"""The driver's fault reports in the system log: recent ones, their text, and an unreadable log."""

import os
import time

import pytest

pytest.importorskip("cupy")

from cudal2_agent.sandbox.cuda.guard import fault_log

TEXT = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=454, name=python3, channel 0x0000001e, intr 00000000. MMU Fault: ENGINE GRAPHICS "
    "GPC1 GPCCLIENT_T1_8 faulted @ 0x{address}. Fault is of type {kind} ACCESS_TYPE_VIRT_{access}\n"
)


def record(age_s=0.0, address="286c_ba200000", kind="FAULT_PDE", access="WRITE"):
    micros = round(1e6 * (time.clock_gettime(time.CLOCK_MONOTONIC) - age_s))
    return f"3,812,{micros},-;" + TEXT.format(address=address, kind=kind, access=access)


@pytest.fixture
def logged(monkeypatch):
    monkeypatch.setattr(fault_log, "PATIENCE_S", 0.0)
    monkeypatch.setattr(
        fault_log, "whose", lambda address: "0 byte(s) past the end of D" if address == 0x286CBA200000 else None
    )

    def log(*lines):
        monkeypatch.setattr(fault_log, "_lines", lambda: list(lines))
        return fault_log.describe_fault()

    return log


def test_the_buffer_of_the_last_fault_is_named(logged):
    assert logged("6,1,5,-;something else\n", record(access="READ", address="1_0"), record()) == (
        "it was a write of the page at 0 byte(s) past the end of D"
    )


def test_an_address_in_no_buffer_is_given(logged):
    told = logged(record(address="7f00_00001000", access="READ"))
    assert told == "it was a read of the page at address 0x7f0000001000, which is in no buffer"


def test_a_write_to_read_only_memory_is_a_write(logged):
    assert "a write of the page" in logged(record(kind="FAULT_RO_VIOLATION"))


@pytest.mark.parametrize("lines", [(), ("6,1,5,-;NVRM: loading\n",), (record(age_s=60),), ("not a record at all",)])
def test_what_tells_nothing_is_said(logged, lines):
    assert logged(*lines) == "which buffer it hit is not known: the kernel log names none"


def test_a_log_that_cannot_be_read_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(fault_log, "KERNEL_LOG", str(tmp_path / "nothing"))
    monkeypatch.setattr(fault_log, "KERNEL_LOG_FD", -1)
    assert "the kernel log cannot be read (No such file or directory)" in fault_log.describe_fault()


def test_records_are_read_to_the_end_of_the_log(monkeypatch, tmp_path):
    file = tmp_path / "kmsg"
    file.write_text(record())
    records = iter([record().encode(), BrokenPipeError(), record(age_s=1).encode(), BlockingIOError()])

    def read(_descriptor, _size):
        found = next(records)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(fault_log, "KERNEL_LOG", str(file))
    monkeypatch.setattr(fault_log.os, "read", read)
    assert len(fault_log._lines()) == 2


def test_a_jailed_worker_reads_the_log_that_was_left_open_for_it(monkeypatch, tmp_path):
    """A pipe is no kernel log; the null device stands for one here."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(fault_log, "KERNEL_LOG", str(tmp_path / "nothing"))
    monkeypatch.setattr(fault_log, "_DEVICE", os.fstat(null).st_rdev)
    for descriptor, expected in ((reader, "cannot be read"), (null, "names none")):
        monkeypatch.setattr(fault_log, "KERNEL_LOG_FD", descriptor)
        assert expected in fault_log.describe_fault()
    for descriptor in (reader, writer, null):
        os.close(descriptor)
