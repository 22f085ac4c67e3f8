"""Two programs in turns of one process: the ratio of their times with its interval."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cudal2_agent.contract.records.evaluation import Timing
from cudal2_agent.contract.reward.speedup import median_us, paired_ratio, paired_speedup

Program = Callable[[], object]
# Two-sided 95 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
MAX_COPIES = len(STUDENT_T) + 1


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

    Several copies of each take turns: two programs with the same kernels differ by up to 2 % in where their memory lies. Rounds
    of one copy share that difference, so that the interval is taken over copies: see `over_copies`.
    `calls`: products or steps that one run of a program has. `around`: entered around the served program, outside its time.
    `warm_runs`: runs of a program right before each timed one, so that what is entered around it does not tell.
    Raises: ValueError for more copies than `MAX_COPIES`, unequal numbers of them, or fewer rounds than copies.
    """
    rng = random.Random(seed)
    samples: dict[str, list[float]] = {"plain": [], "served": []}
    copies = {"plain": _copies(plain), "served": _copies(served)}
    count = len(copies["plain"])
    if not 1 <= count <= min(MAX_COPIES, rounds) or count != len(copies["served"]):
        raise ValueError(f"{count} and {len(copies['served'])} copies in {rounds} rounds")
    for round_ in range(-count, rounds):
        for name in rng.sample(sorted(copies), 2):
            program = copies[name][round_ % len(copies[name])]
            with around() if name == "served" else nullcontext():
                for _ in range(warm_runs):
                    run_us(program, device)
                taken = run_us(program, device)
            if round_ >= 0:
                samples[name].append(taken / calls)
    ours, theirs = _timing(samples["served"]), _timing(samples["plain"])
    if count == 1:
        speedup = paired_speedup(ours, theirs)
        ratio, low, high = speedup.ratio, speedup.low, speedup.high
    else:
        turns = [slice(copy, None, count) for copy in range(count)]
        ratio, low, high = over_copies(
            [paired_ratio(_timing(samples["served"][turn]), _timing(samples["plain"][turn])) for turn in turns]
        )
    return PairedTimes(median_us(theirs), median_us(ours), ratio, low, high)


def over_copies(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the copies' ratios, and both ends of its 95 % interval by Student's t over their logarithms."""
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    half = STUDENT_T[len(ratios) - 2] * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _timing(samples_us: Sequence[float]) -> Timing:
    return Timing(name="", samples_us=tuple(samples_us))


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
