"""Products behind a plain kernel that triggers nothing early, as in an eager program, by several libraries and by PyTorch.

Run on a GPU, from the repository's root:
  python -m benchmarks.library.preceded_products LIBRARY... --out ROWS [--minutes 2]
Each program is a CUDA graph of pairs over operand sets that together exceed the L2 cache: a kernel that writes A, then the
product. The kernel that writes A is also timed alone. A row per product of the first library is added to ROWS at once.
Unit: microseconds per pair.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cudal2
from benchmarks.library.dispatched_shapes import COPIES, MAX_SETS, SEED, SET_BYTES
from benchmarks.library.paired_rounds import Program, graph_of, paired_times, run_us
from cudal2.library.kernel_library import open_library
from cudal2.torch import torch_session
from cudal2_agent.agent.library.algorithms.product_graphs import drawn
from cudal2_agent.contract.records.library import LibraryEntry

Pair = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def measure(libraries: Sequence[Path], rounds: int) -> Iterator[dict[str, Any]]:
    """A row per product of the first library, in a random order that is always the same. `plain_us` of a library: PyTorch's."""
    entries = list(open_library(libraries[0]))
    for entry in random.Random(SEED).sample(entries, len(entries)):
        pairs, found = _operands(entry), list[torch.Tensor]()
        write, both = partial(_write, pairs), partial(_write_and_multiply, pairs, found)
        plain = [graph_of(both, "cuda") for _ in range(COPIES)]
        row: dict[str, Any] = {"shape": entry.task.shape, "layout": entry.task.layout.value, "sets": len(pairs)}
        row["before_us"] = _median(graph_of(write, "cuda"), rounds) / len(pairs)
        for library in libraries:
            cudal2.configure(library)
            served = list(_served(both))
            row[library.name] = paired_times(plain, served, calls=len(pairs), rounds=rounds, device="cuda").as_json()
            row[library.name]["served"] = sum(torch_session.service().counts.served().values()) > 0
            row[library.name]["right"] = _is_right(pairs, served[-1], found)
        yield row


def _operands(entry: LibraryEntry) -> list[Pair]:
    """Sets of the source of A, A and B, as they lie in memory."""
    task = entry.task
    bytes_ = 2 * (2 * task.m * task.k + task.k * task.n + task.m * task.n)
    draws = (drawn(task, seed, "cuda") for seed in range(max(1, min(MAX_SETS, SET_BYTES // bytes_))))
    return [(a, torch.empty_like(a), b) for a, b in draws]


def _write(pairs: Sequence[Pair]) -> None:
    for source, a, _ in pairs:
        torch.mul(source, 1.0, out=a)


def _write_and_multiply(pairs: Sequence[Pair], found: list[torch.Tensor]) -> None:
    """The products of the last call stay in `found`: those of a graph are written again by each replay."""
    found.clear()
    for source, a, b in pairs:
        torch.mul(source, 1.0, out=a)
        found.append(torch.mm(a, b))


def _served(program: Callable[[], object]) -> Iterator[Program]:
    with cudal2.enable(operators=("mm",)):
        program()
        torch_session.service().builds.wait(600)
        for _ in range(COPIES):
            yield graph_of(program, "cuda")


def _is_right(pairs: Sequence[Pair], served: Program, found: Sequence[torch.Tensor]) -> bool:
    """Whether the products of a replay are PyTorch's, where A holds zeros until the kernel before the product writes it."""
    for _, a, _ in pairs:
        a.zero_()
    served()
    torch.cuda.synchronize()
    return all(
        torch.allclose(product, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
        for (source, _, b), product in zip(pairs, found, strict=True)
        for expected in [torch.mm(source, b)]
    )


def _median(program: Program, rounds: int) -> float:
    return float(torch.tensor([run_us(program, "cuda") for _ in range(rounds)]).median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    end_s = time.monotonic() + options.minutes * 60
    with options.out.open("a", encoding="utf-8") as file:
        for row in measure(options.libraries, options.rounds):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if time.monotonic() > end_s:
                break


if __name__ == "__main__":
    main()
