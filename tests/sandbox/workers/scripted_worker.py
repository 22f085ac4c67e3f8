"""A worker that speaks the protocol without a GPU and misbehaves as each candidate's source says.

`python scripted_worker.py START --device N`; START is `ready` or a way to fail at start. Each line of the candidate's source
is one act. `state-file` (an environment variable) lets an act happen once.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Crashed, Environment, Measured, TestResult, Timing, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode
from cudal2_agent.sandbox.workers.messages import (
    BatchEnded,
    CandidateBatch,
    Done,
    Evaluate,
    Failed,
    Ready,
    StageEntered,
    Tuned,
    Verified,
    decode_request,
    encode,
)

ENVIRONMENT = Environment(
    gpu="scripted", arch="sm_90a", sms=132, l2_bytes=1, memory_bytes=1, driver="0", cuda="13", nvrtc="13", cublas="13",
    python="3", platform="test",
)  # fmt: skip


TUNED = TunedBaseline(
    task=GemmTask(m=1, n=1, k=1), environment=ENVIRONMENT.key, layout="nn", algorithm="00" * 64, detail="scripted",
    suggestions=1, time_us=1.0,
)  # fmt: skip


def say(record, end=None):
    sys.stdout.buffer.write(encode(record)[:end])
    sys.stdout.buffer.flush()


def once():
    """Whether this is the first time, over all workers of the test."""
    try:
        Path(os.environ["STATE_FILE"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def start(how):
    ready = Ready(environment=ENVIRONMENT, chip=REFERENCE_CHIPS[Arch.SM_90A])
    match how:
        case "no-gpu":
            say(Failed(kind="device", reason="no GPU in this script"))
            sys.exit(1)
        case "no-core":
            say(Failed(kind="machine", reason="no core in this script"))
            sys.exit(1)
        case "exit":
            sys.exit("this worker exits")
        case "garbage":
            print("hello, I am not JSON", flush=True)
        case "silent":
            time.sleep(600)
        case "wrong-message":
            say(StageEntered(stage="load"))
        case "exit-once" if once():
            sys.exit("exits the first time")
        case "slow":
            time.sleep(1.0)
    say(ready)


def measured(request: Evaluate):
    return Measured(
        mode=TimingMode.OFFLINE,
        tests=(TestResult(tier="exact", name="zero-one", passed=True),),
        timing=Timing(name=request.built.candidate.id, samples_us=(float(os.getpid()),)),
        baselines=(Timing(name=AUTOTUNED, samples_us=(float((request.verify.seed or 0) + 1),)),),
        environment=ENVIRONMENT,
        inspection=request.built.inspection,
    )


def act(what, request: Evaluate, position=0):
    inspection = request.built.inspection
    match what.split():
        case ["stage", name]:
            say(StageEntered(stage=name, position=position))
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["measured"]:
            say(Done(evaluation=measured(request), position=position))
        case ["tuned"]:
            say(Tuned(baseline=TUNED.model_copy(update={"task": request.task})))
        case ["ended"]:
            say(BatchEnded())
        case ["verified"]:
            say(Verified(tests=(TestResult(tier="exact", name="zero-one", passed=True),)))
        case ["wrong"]:
            test = TestResult(tier="exact", name="zero-one", passed=False)
            say(Done(evaluation=Wrong(test=test, tests=(test,), inspection=inspection), position=position))
        case ["poisoned"]:
            crashed = Crashed(stage="verify", message="CUDA_ERROR_ILLEGAL_ADDRESS")
            say(Done(evaluation=crashed, healthy=False, position=position))
            time.sleep(600)  # hangs at exit
        case ["failed"]:
            say(Failed(kind="machine", reason="out of memory", log="a long log"))
        case ["internal", what]:
            say(Failed(kind="internal", reason=f"ValueError: {what}", log="Traceback of ours"))
            sys.exit(1)
        case ["exit"]:
            sys.exit("fell over its own feet")
        case ["exit-once"] if once():
            sys.exit("fell over once")
        case ["segfault"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case ["half-a-line"]:
            say(Done(evaluation=measured(request)), end=100)
            os._exit(0)
        case ["garbage"]:
            print("printf from a kernel", flush=True)
        case ["ready"]:
            say(Ready(environment=ENVIRONMENT, chip=REFERENCE_CHIPS[Arch.SM_90A]))
        case ["hang"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        case ["flood-stderr"]:
            for _ in range(200):
                os.write(2, b"x" * 65536)
        case ["flood-stdout-forever"]:
            while True:
                os.write(1, b"y" * 65536)
        case ["drip"]:
            while True:  # never a whole line, never silent
                os.write(1, b"z")
                time.sleep(0.02)
        case ["close-stdout"]:
            os.close(1)
            time.sleep(600)
        case ["grandchild"]:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(os.environ["STATE_FILE"]).write_text(str(child.pid))


def main():
    start(sys.argv[1])
    for line in sys.stdin.buffer:
        request = decode_request(line)
        if isinstance(request, CandidateBatch):
            act_in_turn(request)
            continue
        for what in request.built.candidate.source.splitlines():
            act(what, request)


def act_in_turn(batch: CandidateBatch):
    for position, built in enumerate(batch.built):
        request = Evaluate(built=built, task=batch.task, verify=batch.verify, time=batch.time)
        for what in built.candidate.source.splitlines():
            act(what, request, position)
    say(BatchEnded())


if __name__ == "__main__":
    main()
