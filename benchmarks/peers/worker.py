"""The worker of a run: compares the peers on one shape after another, and tells what it does as JSON lines."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.comparing import Bench, Peer, compare_peers, in_one_line
from benchmarks.peers.deep_gemm_peer import DeepGemmPeer
from benchmarks.peers.library_peers import CutlassPeer, PaperPeer
from benchmarks.peers.lt_search import AutoTuned, BeyondSuggestions
from benchmarks.peers.own_peer import OwnPeer, schedules_of
from benchmarks.peers.supervision import START, ShapeJob
from benchmarks.peers.triton_peer import TritonPeer
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, parse_shape


def work(request: dict[str, Any], answers: TextIO) -> None:
    """All jobs of the request, as long as its time lasts."""

    def tell(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    until = time.monotonic() + request["seconds_left"]
    jobs = [ShapeJob.model_validate(job) for job in request["jobs"]]
    tell(begins=START)
    peers = open_peers(request, [task_of(job) for job in jobs])
    from cudal2_agent.sandbox.cuda.device import Device

    device = Device(0)
    tell(environment=device.environment.model_dump() | {"key": device.environment.key})
    for job in jobs:
        if time.monotonic() > until:
            return
        bench = Bench(task_of(job), device, request["search_seconds"])
        asked = [peer for peer in peers if peer.name not in job.without and wanted(peer.name, request["peers"])]
        row = compare_peers(bench, asked, lambda peer: tell(begins=peer))
        bench.close()
        tell(row=row.model_copy(update={"failures": row.failures | job.without}).model_dump())


def open_peers(request: dict[str, Any], tasks: list[GemmTask]) -> list[Peer]:
    """All peers; each says by itself where it has no kernel. AutoTuning is the first, because the search starts from it."""
    folder = Path(request["libraries"]) if request["libraries"] else None
    tuned = AutoTuned()
    rows = [Path(file) for file in request["rows"]]
    own = [OwnPeer(schedules_of(rows, plain=plain) if rows else {}, plain=plain) for plain in (False, True)]
    for peer in own:
        peer.build(tasks)
    deep_gemm = DeepGemmPeer(Path(request["deepgemm"]) if request["deepgemm"] else None)
    return [tuned, BeyondSuggestions(tuned), TritonPeer(), CutlassPeer(folder), *own, deep_gemm, PaperPeer(folder)]


def wanted(peer: str, peers: Sequence[str]) -> bool:
    """AutoTuning is what all are compared with, so it is never left out. `peers`: empty for all."""
    return not peers or peer in peers or peer == AUTOTUNED


def task_of(job: ShapeJob) -> GemmTask:
    m, n, k = parse_shape(job.shape)
    return GemmTask(m=m, n=n, k=k, element=ElementType(job.element), arch=Arch.SM_90A)


def main() -> None:
    """Peers may print: what was stdout carries only the answers, and everything else goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        work(json.loads(sys.stdin.readline()), answers)
    except BaseException as exc:
        print(json.dumps({"failed": in_one_line(exc)}), file=answers, flush=True)
        raise


if __name__ == "__main__":
    main()
