"""Products of a task on a GPU: random operands, and samples as CUDA graphs, so that none of the host's time is in them."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from cudal2.launcher.loaded_kernel import ALIGNMENT
from cudal2.torch.inductor.gated_linear import joined_weight
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2.torch.matrix_signature import DTYPE_OF
from cudal2_agent.contract.records.evaluation import Timing
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from cudal2_agent.sandbox.cuda.baselines.torch_tensors import activate

Operands = tuple[torch.Tensor, ...]  # A and B, and behind them the third one of the task, if any
# Writes D: A, B and D as M×K, K×N and M×N matrices, and behind them a bias of N elements, or `up` as a K×N matrix.
Multiply = Callable[..., object]

SETS, MAX_SET_BYTES = 8, 2**30  # several sets keep the cache from holding a product's operands
MIN_LAUNCHES, MAX_LAUNCHES = 2, 32  # products of a graph
# Graphs of each contender, which take turns: equal kernels differ by up to 2 % in where their memory lies (log/).
COPIES, MAX_OUT_BYTES = 5, 2**33
# Each sample of a long product follows products of its own: half of what such products gain by turns is lost then (log/).
# Supposed, not shown: a long product draws so much power that the clock falls, and its rival's next sample pays for it.
LONG_US, WARM_US = 500.0, 50_000.0


def drawn(task: GemmTask, seed: int, device: str) -> Operands:
    """Random operands in the layout of the task, as M×K and K×N matrices. A bias is as large as the products.

    Products that go into an activation have a deviation of 1, where it bends. Weights of a gated task are halves of one matrix
    where the layout allows it, as most models have them.
    """
    dtype, scale = DTYPE_OF[task.element], 1.0 if task.activation is None else task.k**-0.5
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator, device=device) * scale).to(dtype)

    a = normal(task.k, task.m, scale).t() if task.layout is Layout.NT else normal(task.m, task.k, scale)
    if task.gated and task.layout is Layout.TN and 2 * task.n * task.k % ALIGNMENT == 0:
        gate, up = normal(2 * task.n, task.k).chunk(2)
        return a, gate.t(), up.t()
    b, *up = (normal(task.n, task.k).t() if task.layout is Layout.TN else normal(task.k, task.n) for _ in range(task.products))
    if task.gated:
        return a, b, *up
    return (a, b, normal(1, task.n, scale * task.k**0.5).reshape(-1)) if task.bias else (a, b)


def operand_sets(task: GemmTask, device: str = "cuda:0") -> list[Operands]:
    """As many sets as graphs of a task take in turn."""
    bytes_per_set = 2 * (task.m * task.k + task.products * task.k * task.n + task.m * task.n)
    return [drawn(task, seed, device) for seed in range(max(1, min(SETS, MAX_SET_BYTES // bytes_per_set)))]


def launches_in(sample_us: float, product_us: float) -> int:
    """Products of a graph that takes about `sample_us`."""
    return max(MIN_LAUNCHES, min(MAX_LAUNCHES, round(sample_us / product_us)))


def warm_us_for(product_us: float) -> float:
    """How long a product's own kernel runs before each of its samples."""
    return WARM_US if product_us >= LONG_US else 0.0


class ProductGraph:
    """`launches` products as one graph, over the operand sets in turn, with an output of its own."""

    def __init__(self, multiply: Multiply, sets: Sequence[Operands], launches: int) -> None:
        self._launches = launches
        a, b, *third = sets[0]
        self._out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        multiply(a, b, self._out, *third)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for index in range(launches):
                a, b, *third = sets[index % len(sets)]
                multiply(a, b, self._out, *third)
        self._graph.replay()

    def sample_us(self, replays_before: int = 0) -> float:
        """Time of one product, after replays that are not timed. Unit: microseconds."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(replays_before):
            self._graph.replay()
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / self._launches


def race(
    contenders: Mapping[str, Multiply], sets: Sequence[Operands], *, launches: int, rounds: int, product_us: float
) -> dict[str, Timing]:
    """A sample of each contender in every round, in random order; new graphs, so that memory lies elsewhere than before.

    `launches`: products of a graph. `product_us`: time of one, roughly; a long one runs for a while before each sample.
    """
    replays = round(warm_us_for(product_us) / (product_us * launches))
    a, b, *_ = sets[0]
    out_bytes = 2 * a.shape[0] * b.shape[1]
    copies = max(1, min(COPIES, MAX_OUT_BYTES // (out_bytes * len(contenders))))
    graphs = {name: [ProductGraph(one, sets, launches) for _ in range(copies)] for name, one in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    rng = random.Random(rounds)
    for round_ in range(rounds):
        for name in rng.sample(sorted(graphs), len(graphs)):
            samples[name].append(graphs[name][round_ % copies].sample_us(replays))
    return {name: Timing(name=name, samples_us=tuple(taken)) for name, taken in samples.items()}


def by_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    if bias is None:
        torch.mm(a, b, out=out)
    else:
        torch.addmm(bias, a, b, out=out)


def by_torch_for(task: GemmTask) -> Multiply:
    """What PyTorch runs for a task: its product, and then its activation in place, which takes no longer than one beside it.

    For a gated task that is what a compiled program runs: the joined product, or two of weights that lie apart, and one
    elementwise kernel of Inductor's. The first call compiles that.
    """
    activation = task.activation
    if activation is None:
        return by_torch
    if task.gated:
        return _gated_by_torch(activation)

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        by_torch(a, b, out, bias)
        activate(torch, activation, out)

    return multiply


def _gated_by_torch(activation: Activation) -> Multiply:
    finish = _gate_kernel(activation)

    def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, up: torch.Tensor) -> None:
        found = joined_weight(b.t(), up.t())
        if found is None:
            finish(torch.mm(a, b), torch.mm(a, up), out)
            return
        weight, gate_first = found
        halves = torch.mm(a, weight.t()).chunk(2, -1)
        finish(*(halves if gate_first else reversed(halves)), out)

    return multiply


@cache
def _gate_kernel(activation: Activation) -> Any:
    """Writes activation(gate) · up, by one kernel for matrices of any size."""

    def finish(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(APPLIED[activation](gate) * up)

    return torch.compile(finish, dynamic=True)
