"""The worker's protocol survives a round trip; any other text is refused."""

import math

import pytest

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, WorkerError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, TestResult, TimedOut, Wrong
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions
from cudal2_agent.sandbox.workers.messages import (
    LOAD_TIMEOUT_S,
    Done,
    Evaluate,
    Failed,
    ProtocolError,
    Ready,
    StageEntered,
    Verified,
    decode_reply,
    decode_request,
    encode,
)
from cudal2_agent.sandbox.workers.worker import failure
from tests.doubles import ENVIRONMENT, INSPECTION, PLAN, TASK, measured, unmeasured

ORIGIN = Origin(policy="test")
INFINITELY_WRONG = TestResult(tier="exact", name="zero-one", passed=False, worst=math.inf, message="D[0,0]\nis ∞")
REPLIES = [
    Ready(environment=ENVIRONMENT, chip=REFERENCE_CHIPS[Arch.SM_90A]),
    StageEntered(stage="verify"),
    Done(evaluation=measured(5.0)),
    Done(evaluation=unmeasured(5.0)),
    Done(evaluation=Crashed(stage="load", message="two\nlines"), healthy=False),
    Done(evaluation=TimedOut(stage="time", limit_s=0.5)),
    Done(evaluation=Wrong(test=INFINITELY_WRONG, tests=(INFINITELY_WRONG,), inspection=INSPECTION)),
    Verified(tests=(INFINITELY_WRONG,)),
    Failed(kind="machine", reason="why", log="a\nlong\nlog"),
]


def make_request(source: str, *, timed: bool = True, host: bool = False) -> Evaluate:
    candidate = HostCandidate(source=source, origin=ORIGIN) if host else Candidate(source=source, plan=PLAN, origin=ORIGIN)
    return Evaluate(
        built=Built(candidate=candidate, inspection=INSPECTION, artifact_path="k.cubin", cached=True, seconds=1.5),
        task=TASK,
        verify=VerifyOptions(timeout_s=7.0),
        time=TimeOptions(timeout_s=11.0) if timed else None,
    )


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_replies_survive_the_round_trip_on_one_line(reply):
    line = encode(reply)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_reply(line) == reply


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("source", ["plain", 'a "quoted"\n\r\n\t\\ line', "\x00\x1b[2J\u2028 ∑ 🙂", "x" * 1_000_000])
def test_requests_survive_the_round_trip_whatever_the_source(source, host):
    request = make_request(source, host=host)
    line = encode(request)
    assert line.count(b"\n") == 1
    assert decode_request(line) == request
    assert decode_request(line).built.candidate.id == request.built.candidate.id


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"printf from a kernel\n",
        b"{}\n",
        b'{"message": "done"}\n',
        b'{"message": "stage", "stage": "no-such-stage"}\n',
        b'{"message": "stage", "stage": "load", "extra": 1}\n',
        b'{"message": "unheard-of"}\n',
        b"\xff\xfe{}",
        b"[" * 100_000,
        encode(StageEntered(stage="load")) * 2,
        encode(Done(evaluation=measured(5.0)))[:-20],
    ],
)
def test_what_is_no_message_is_refused(line):
    with pytest.raises(ProtocolError):
        decode_reply(line)
    with pytest.raises(ProtocolError):
        decode_request(line)


def test_a_request_is_no_reply_and_a_reply_no_request():
    with pytest.raises(ProtocolError):
        decode_reply(encode(make_request("x")))
    with pytest.raises(ProtocolError):
        decode_request(encode(StageEntered(stage="load")))


def test_every_stage_has_a_limit():
    timed, untimed = make_request("x"), make_request("x", timed=False)
    assert timed.limit_s(None) == timed.limit_s("load") == LOAD_TIMEOUT_S
    assert timed.limit_s("verify") == timed.limit_s("recheck") == 7.0
    assert timed.limit_s("time") == 11.0
    assert untimed.limit_s("time") == LOAD_TIMEOUT_S


@pytest.mark.parametrize("error_type", [DeviceUnavailable, MachineError, WorkerError])
def test_errors_cross_the_pipe_as_what_they_are(error_type):
    reply = decode_reply(encode(failure(error_type("why", log="long"))))
    assert isinstance(reply, Failed)
    error = reply.error()
    assert type(error) is error_type
    assert (str(error), error.log) == ("why", "long")
