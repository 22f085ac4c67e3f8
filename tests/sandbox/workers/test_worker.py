"""The real worker process without a GPU: its pipes, its end, its reports."""

import queue
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, PlanError
from cudal2_agent.contract.records.evaluation import Crashed
from cudal2_agent.contract.settings.options import WorkerOptions
from cudal2_agent.sandbox.backend import driver_present
from cudal2_agent.sandbox.workers import pool as pool_module
from cudal2_agent.sandbox.workers.messages import Done, Failed, NotExecuted, Ready, StageEntered, decode_reply, encode
from cudal2_agent.sandbox.workers.pool import WorkerPool
from cudal2_agent.sandbox.workers.worker import Session
from tests.doubles import CHIP
from tests.sandbox.workers.test_pool import request

ROOT = Path(__file__).resolve().parents[3]


def start(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


NOISE = """
import os, subprocess, sys
from cudal2_agent.sandbox.workers.messages import StageEntered
from cudal2_agent.sandbox.workers.worker import claim_pipes
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
from cudal2_agent.sandbox.workers import worker
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
from cudal2_agent.sandbox.workers import worker
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


class Raises:
    """A backend that raises at every candidate; `fault`: the fault that it attributes to the candidate."""

    def __init__(self, error, fault=None):
        self._error, self._fault = error, fault

    def evaluate(self, _request):
        raise self._error

    def fault_of(self, _built):
        if isinstance(self._fault, Exception):
            raise self._fault
        return self._fault


def answers(evaluator, *lines):
    """A session's replies without `Ready`, and the exit code."""
    said, waiting = [], queue.SimpleQueue()
    for line in (*lines, None):
        waiting.put(line)
    ready = Ready(environment=None, chip=CHIP)
    code = Session(said.append).serve(evaluator, ready, waiting)
    return said[1:], code


@pytest.mark.parametrize(
    "error",
    [
        ValueError("from the core's binding"),
        OverflowError("int too large to convert"),
        struct.error("argument out of range"),
        RecursionError("maximum recursion depth exceeded"),
        MemoryError(),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        KeyError("\ud800"),
        PlanError("plan-grid", "too many CTAs"),
        NotImplementedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_candidate_brings_out_is_an_answer(error):
    said, code = answers(Raises(error), encode(request()))
    [reply] = [decode_reply(encode(one).strip()) for one in said]
    assert isinstance(reply, Failed)
    assert (reply.kind, code) == ("internal", 1)
    assert type(error).__name__ in reply.reason
    assert "Traceback" in reply.log


def test_a_candidate_that_broke_the_backend_is_blamed_first():
    crashed = Done(evaluation=Crashed(stage="verify", message="CUDA_ERROR_ILLEGAL_ADDRESS"), healthy=False)
    assert answers(Raises(ValueError(), crashed), encode(request())) == ([crashed], 1)


def test_a_machine_that_failed_is_told_as_such():
    with pytest.raises(MachineError, match="off the bus"):
        answers(Raises(MachineError("off the bus")), encode(request()))
    [reply], _ = answers(Raises(ValueError(), MachineError("off the bus")), encode(request()))
    assert reply == Failed(kind="machine", reason="off the bus")


def test_two_errors_are_told_by_the_first():
    [reply], code = answers(Raises(ValueError("first"), KeyError("second")), encode(request()))
    assert (reply.kind, reply.reason, code) == ("internal", "ValueError: first", 1)
    assert "second" in reply.log


def test_an_answer_that_cannot_be_sent_is_an_error_of_this_candidate():
    class Mute(Raises):
        def evaluate(self, _request):
            return NotExecuted.model_construct(message="not_executed", reason="\ud800")

    [reply], _ = answers(Mute(None), encode(request()))
    assert isinstance(reply, Failed)
    assert reply.kind == "internal"


def test_a_request_that_cannot_be_read_is_an_error_of_this_candidate():
    [reply], _ = answers(Raises(None), b"{}")
    assert isinstance(reply, Failed)
    assert reply.kind == "internal"


@pytest.mark.skipif(driver_present(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_the_real_worker_says_so(monkeypatch):
    monkeypatch.setattr(pool_module, "BACK_OFF_S", 0.01)
    pool = WorkerPool([WorkerOptions()])
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        pool.ready()
    pool.close()
