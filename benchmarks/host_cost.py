"""Processor seconds of the host per candidate, by part: real searches as in a campaign, with a scripted GPU that costs nothing.

The compiler, the inspection, the policy and the store are real. Not in it: the process that launches kernels on the GPU. A part
is the CPU time of the threads that run it; children are those of the compiler and of nvdisasm.

Run from the repository's root: OPENBLAS_NUM_THREADS=1 python -m benchmarks.host_cost [--shapes 256x256x256,...] [--budget 48]
Prints a table. Unit: milliseconds per candidate.
"""

import argparse
import gc
import resource
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from cudal2_agent.agent.campaign import shape_search
from cudal2_agent.agent.campaign.campaign_process import RARE_COLLECTIONS
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.contract.events import Emit, ignore
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.baseline import BaselineBook
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.backend import Backend
from cudal2_agent.sandbox.building import builder
from cudal2_agent.sandbox.building.compiler import Compiler
from cudal2_agent.sandbox.local import LocalSandbox
from cudal2_agent.sandbox.profiling.profiler import Profiler
from cudal2_agent.sandbox.workers.messages import CandidateBatch, Done, decode_reply, encode
from cudal2_agent.store.store import Store, open_store
from tests.doubles import ENVIRONMENT, measured

SHAPES = "1024x512x1024,256x256x256,4096x4096x512"
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("propose: space, prior, surrogate, writing", SchedulePolicy, "propose"),
    ("static check", builder, "check"),
    ("compile: cache and waiting for the child", Compiler, "compile"),
    ("inspection of PTX and cubin", builder, "inspect"),
    ("record in the store", Store, "record_step"),
)


class ScriptedGpu:
    """A pool whose GPU is always at the predicted time. Messages are encoded and decoded as for a real one."""

    class Turn:
        waited_s = 0.0

    turn = Turn()

    def batch(self, request: CandidateBatch, _keep: object) -> Iterator[tuple[int, Evaluation]]:
        encode(request)
        for position, built in enumerate(request.built):
            time_us = predict(built.candidate, request.task, built.inspection).predicted_us
            evaluation = measured(time_us, baseline_us=1.1 * time_us, effort=request.effort)
            evaluation = evaluation.model_copy(update={"inspection": built.inspection})
            answer = decode_reply(encode(Done(evaluation=evaluation, position=position)))
            assert isinstance(answer, Done)
            yield position, answer.evaluation

    def close(self) -> None:
        pass


class ScriptedReady:
    chip, environment = REFERENCE_CHIPS[Arch.SM_90A], ENVIRONMENT


@contextmanager
def scripted_sandbox(
    arch: Arch, settings: Settings, _emit: Emit, *, baselines: BaselineBook | None = None
) -> Iterator[LocalSandbox]:
    backend: Any = Backend(ScriptedGpu(), ScriptedReady(), emulates=False)  # type: ignore[arg-type]
    with closing(
        LocalSandbox(
            arch,
            compile_options=settings.compile_options(),
            verify_options=settings.verify_options(),
            quick=settings.time_options(full=False),
            full=settings.time_options(full=True),
            predict=predict,
            profiler=Profiler(settings.profiler, settings.worker_options(), {}),
            backend=backend,
            rewrite=rewrite,
            race=settings.race_options(),
            baselines=baselines,
        )
    ) as sandbox:
        yield sandbox


def timed(
    function: Callable[..., Any], part: str, spent_s: defaultdict[str, float], lock: threading.Lock
) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        begin_s = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            with lock:
                spent_s[part] += time.thread_time() - begin_s

    return call


def cpu_s(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def cost(shapes: list[str], budget: int, home: Path) -> tuple[defaultdict[str, float], int]:
    """Seconds by part, and the number of candidates."""
    spent_s: defaultdict[str, float] = defaultdict(float)
    lock, candidates = threading.Lock(), 0
    settings = Settings(home=home, budget=budget, use_knowledge=False, profile="off")
    own_s, children_s = cpu_s(resource.RUSAGE_SELF), cpu_s(resource.RUSAGE_CHILDREN)
    with mock.patch.object(shape_search, "open_sandbox_of", scripted_sandbox):
        for part, owner, name in PARTS:
            setattr(owner, name, timed(getattr(owner, name), part, spent_s, lock))
        with open_store(settings.store_url) as store, open_search(settings, store, ignore) as search:
            for shape in shapes:
                m, n, k = map(int, shape.split("x"))
                candidates += search.search(GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A)).candidates
    all_s = cpu_s(resource.RUSAGE_SELF) - own_s
    spent_s["rest of the search's process"] = all_s - sum(spent_s.values())
    spent_s["children: compilers, nvdisasm of finalists"] = cpu_s(resource.RUSAGE_CHILDREN) - children_s
    return spent_s, candidates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--budget", type=int, default=48)
    given = parser.parse_args()
    gc.set_threshold(*RARE_COLLECTIONS)  # as in the process of a campaign
    with tempfile.TemporaryDirectory() as home:
        spent_s, candidates = cost(given.shapes.split(","), given.budget, Path(home))
    print(f"| part | ms per candidate, of {candidates} |\n|---|---|")
    for part, seconds in spent_s.items():
        print(f"| {part} | {1000 * seconds / candidates:.1f} |")
    print(f"| all | {1000 * sum(spent_s.values()) / candidates:.1f} |")


if __name__ == "__main__":
    main()
