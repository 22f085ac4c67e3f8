"""The real worker process as far as it goes without a GPU: its pipes, its end, its reports."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.errors import DeviceUnavailable
from contract.options import WorkerOptions
from sandbox import pool as pool_module
from sandbox.local import driver_present
from sandbox.messages import Failed, StageEntered, decode_reply
from sandbox.pool import WorkerPool

ROOT = Path(__file__).resolve().parents[2]


def start(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


NOISE = """
import os, subprocess, sys
from sandbox.messages import StageEntered
from sandbox.worker import claim_pipes
requests, say = claim_pipes()
print("printed by a library", flush=True)
os.write(1, b"written by a driver\\n")
subprocess.run(["echo", "echoed by a child"])
say(StageEntered(stage="verify"))
print("stdin gives", sys.stdin.read().encode(), "and requests give", requests.readline(), flush=True)
"""


def test_nothing_printed_reaches_the_protocol_and_nothing_reads_its_requests():
    out, err = start(NOISE).communicate(b"a request\n", timeout=30)
    assert decode_reply(out) == StageEntered(stage="verify")
    for told in (b"printed by a library", b"written by a driver", b"echoed by a child"):
        assert told in err
    assert b"stdin gives b'' and requests give b'a request\\n'" in err


ORPHAN = """
import time
from sandbox import worker
worker.ORPHAN_GRACE_S = 0.2
requests, say = worker.claim_pipes()
lines = worker.read_ahead(requests)
assert lines.get() == b"a request\\n"
time.sleep(60)  # a kernel that never ends
"""


def test_a_worker_in_a_hung_kernel_ends_when_its_parent_does():
    process = start(ORPHAN)
    process.stdin.write(b"a request\n")
    process.stdin.flush()
    time.sleep(0.2)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(timeout=20) == 1


UNCAUGHT = """
import sys
from sandbox import worker
requests, say = worker.claim_pipes()
sys.excepthook = worker.Session(say).report_uncaught
raise ZeroDivisionError("a bug of ours")
"""


def test_a_bug_of_ours_is_reported_with_its_traceback():
    out, err = start(UNCAUGHT).communicate(timeout=30)
    reply = decode_reply(out)
    assert isinstance(reply, Failed)
    assert reply.kind == "worker"
    assert "ZeroDivisionError: a bug of ours" in reply.reason
    assert "Traceback" in reply.log
    assert b"Traceback" in err


@pytest.mark.skipif(driver_present(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_the_real_worker_says_so(monkeypatch):
    monkeypatch.setattr(pool_module, "BACK_OFF_S", 0.01)
    pool = WorkerPool([WorkerOptions()])
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        pool.ready()
    pool.close()
