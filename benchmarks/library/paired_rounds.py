"""Two programs in turns of one process: the ratio of their times with its interval."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from contract.evaluation import Timing
from contract.speedup import median_us, paired_speedup

Program = Callable[[], object]


@dataclass(frozen=True)
class PairedTimes:
    """Medians in microseconds per call; the ratio plain over served with its 95 % interval, above 1 where serving is faster."""

    plain_us: float
    served_us: float
    ratio: float
    low: float
    high: float

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def paired_times(
    plain: Program | Sequence[Program],
    served: Program | Sequence[Program],
    *,
    calls: int,
    rounds: int,
    device: str,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    warm_runs: int = 0,
    seed: int = 18,
) -> PairedTimes:
    """Both programs in every round, in random order, after one round of each copy that does not count.

    Several copies of each take turns: two programs with the same kernels differ by up to 2 % in where their memory lies.
    `calls`: products or steps that one run of a program has. `around`: entered around the served program, outside its time.
    `warm_runs`: runs of a program right before each timed one, so that what is entered around it does not tell.

    """
    rng = random.Random(seed)
    samples: dict[str, list[float]] = {"plain": [], "served": []}
    copies = {"plain": _copies(plain), "served": _copies(served)}
    for round_ in range(-len(copies["plain"]), rounds):
        for name in rng.sample(sorted(copies), 2):
            program = copies[name][round_ % len(copies[name])]
            with around() if name == "served" else nullcontext():
                for _ in range(warm_runs):
                    run_us(program, device)
                taken = run_us(program, device)
            if round_ >= 0:
                samples[name].append(taken / calls)
    timings = {name: Timing(name=name, samples_us=tuple(taken)) for name, taken in samples.items()}
    speedup = paired_speedup(timings["served"], timings["plain"])
    return PairedTimes(median_us(timings["plain"]), median_us(timings["served"]), speedup.ratio, speedup.low, speedup.high)


def _copies(program: Program | Sequence[Program]) -> Sequence[Program]:
    return program if isinstance(program, Sequence) else [program]


def run_us(program: Program, device: str) -> float:
    """Time of one run: between two events on a GPU, by the clock elsewhere."""
    if device != "cuda":
        start = time.perf_counter()
        program()
        return (time.perf_counter() - start) * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    program()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def graph_of(program: Program, device: str) -> Program:
    """The program as a captured CUDA graph, after a warm-up on a stream of its own; on the CPU the program itself."""
    if device != "cuda":
        return program
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            program()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    replay: Program = graph.replay
    return replay
