"""A worker on stdin and stdout, for a near side that has started it through ssh, srun, kubectl exec or a container.

Covered: several calls at once; a sign of life while any of them takes long; a near side that is gone, whose worker ends within
seconds, in the middle of a kernel too.
"""

import os
import sys
import threading
import time
from contextlib import suppress

from cudal2_agent.contract.base import Record
from cudal2_agent.sandbox.remote.call_service import CallService
from cudal2_agent.sandbox.remote.calls import TO_WORKER, FarCall
from cudal2_agent.sandbox.remote.far_answers import CallAnswer, FarAnswer, WorkerHello, WorkingAnswer
from cudal2_agent.sandbox.remote.frames import MAX_FRAME_BYTES, BrokenFrame, framed, framed_text, record_of
from cudal2_agent.sandbox.workers.worker import ORPHAN_GRACE_S, Say, claim_pipes

BEAT_S = 2.0


def serve_stream(hello: WorkerHello, service: CallService) -> int:
    """Answer calls until stdin ends. The exit code is 0, or 1 where the near side sends what is no call."""
    requests, say_one = claim_pipes(framed)
    speaking, ended = threading.Lock(), threading.Event()

    def say(record: Record) -> None:
        with speaking, suppress(OSError):  # the near side is gone, as the end of stdin will tell
            say_one(record)

    def beat() -> None:
        while not ended.wait(BEAT_S):
            say(WorkingAnswer(worked_s=service.worked_s()))

    say(hello)
    threading.Thread(target=beat, name="beat", daemon=True).start()
    cancels: dict[str, threading.Event] = {}
    try:
        while line := requests.readline(MAX_FRAME_BYTES):
            if (text := framed_text(line)) is None:
                continue
            asked = record_of(TO_WORKER, text)
            if isinstance(asked, FarCall):
                cancel = cancels[asked.id] = threading.Event()
                threading.Thread(target=_answer, args=(service, asked, say, cancel, cancels), daemon=True).start()
            elif asked.id in cancels:
                cancels[asked.id].set()
        return 0
    except BrokenFrame as exc:
        print(f"what the near side sends is no call: {exc}", file=sys.stderr)
        return 1
    finally:
        ended.set()
        threading.Thread(target=end_for_sure, daemon=True).start()
        for cancel in list(cancels.values()):
            cancel.set()
        service.close()


def _answer(
    service: CallService, call: FarCall, say: Say, cancel: threading.Event, cancels: dict[str, threading.Event]
) -> None:
    def tell(answer: FarAnswer) -> None:
        say(CallAnswer(id=call.id, answer=answer))

    try:
        service.answer(call, tell, cancel)
    finally:
        cancels.pop(call.id, None)


def end_for_sure() -> None:
    """Nobody waits for what a hung kernel would answer. Its worker ends with this process, whose pipe it reads."""
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)
