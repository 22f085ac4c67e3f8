"""The library in PyTorch, measured. Needs a GPU that the library was measured on.

    cudal2-agent library prepare
    python -m benchmarks.library all --out FOLDER

FOLDER gets host.json, blocks.json and shapes.json. The same command goes on from the rows that are there; with --minutes, a
part stops in between. Products that the library serves are measured first. slower.txt gets those that were slower than
PyTorch's own, for `cudal2-agent library build --without`.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import cudal2
from benchmarks.harness import ResultFile, execute, result_arguments, script, stamp, write_text
from benchmarks.library.dispatched_shapes import (
    CalledProduct,
    library_products,
    measure_products,
    products_of,
    random_shapes,
    served_first,
    slower_products,
    summary,
)
from benchmarks.library.host_costs import host_costs
from benchmarks.library.transformer_block import MODES, BlockSize, measure_block
from benchmarks.speed.grid import grid_shapes
from cudal2.torch import torch_session
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2_agent.agent.bench.proposals.bench_shapes import read_part
from cudal2_agent.contract.records.task import ElementType, Layout

PARTS = ("host", "blocks", "shapes")
HIDDEN, BATCHES, SEQUENCE = (1024, 2048, 4096, 8192), (1, 4, 16, 64), 512
HUGGING_FACE = 2048  # hidden size of the Hugging Face model
_SERVED, _LEFT = "64x64x64", "72x72x72"  # the H200's library has an entry for the first, and none for the second


def main() -> int:
    options = _parser().parse_args()
    options.share, options.shapes = read_part(options.share), products_of(options.shapes, options.layout, options.element)
    if not torch.cuda.is_available():
        print(f"error: no GPU; {cudal2.status()}", file=sys.stderr)
        return 2
    if options.library:
        cudal2.configure(options.library)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in PARTS if options.part == "all" else (options.part,):
        _measure(part, options)
    print(cudal2.status())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = script(__file__, __doc__)
    result_arguments(parser)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--library", type=Path, help="a library of your own; default: the shipped one")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no row of a part begins later")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--shapes", nargs="*", default=[], help="M x N x K; default: the grid and random ones")
    wanted.add_argument("--entries", action="store_true", help="every product of the library instead, in all layouts")
    parser.add_argument("--layout", type=Layout, choices=tuple(Layout), default=Layout.NN, help="of the shapes")
    elements = tuple(ElementType)
    parser.add_argument("--element", type=ElementType, choices=elements, default=ElementType.F16, help="of all operands")
    parser.add_argument("--part", dest="share", help="I/N: the I-th of N processes that share the products")
    parser.add_argument("--hidden", type=int, nargs="*", default=HIDDEN, help="sizes of the transformer block")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES, help=f"its batches, of {SEQUENCE} tokens each")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES, help="how its steps are run")
    return parser


def _measure(part: str, options: argparse.Namespace) -> None:
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    file = ResultFile(options.out / f"{part}.json", {**stamp(__file__, options.commit), **gpu}, resume=True)
    end_s = time.monotonic() + options.minutes * 60
    for row in _rows(part, options, {row["name"] for row in file.rows}):
        file.add(row)
        if part == "shapes":
            file.write(summary=summary(file.rows))
            write_text(options.out / "slower.txt", slower_products(file.rows))
        print(json.dumps(row), file=sys.stderr, flush=True)
        if time.monotonic() > end_s:
            print(f"{part}: no time left; run the same command again", file=sys.stderr)
            break


def _rows(part: str, options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    if part == "host" and "host" not in done:
        pairs = [_operands(shape) for shape in (_SERVED, _LEFT)]
        torch.mm(*pairs[0])
        compiled = torch_session.compiled_kernels(torch_session.service())
        yield {"name": "host", "costs_us": host_costs("cuda", pairs[0], pairs[1], compiled)}
    if part == "blocks":
        for size, mode, model in _steps(options):
            element = "" if options.element is ElementType.F16 else f" {options.element}"
            name = f"{model} {size.hidden} {size.batch} {mode}{element}"
            if name not in done:
                yield {"name": name, **measure_block(size, mode, "cuda", options.rounds, model, options.element)}
    if part == "shapes":
        wanted = [product for product in _products(options) if product.words not in done]
        yield from measure_products(wanted, "cuda", options.rounds)


def _products(options: argparse.Namespace) -> list[CalledProduct]:
    if options.entries:
        found = torch_session.service().devices.find(0)
        products = served_first(library_products(found.library, options.element)) if isinstance(found, DeviceDispatch) else []
    elif options.shapes:
        products = options.shapes
    else:
        products = served_first(products_of([*grid_shapes(), *random_shapes()], options.layout, options.element))
    place, step = options.share
    return products[place::step]


def _steps(options: argparse.Namespace) -> Iterator[tuple[BlockSize, str, str]]:
    """Every size of the block, and one of a Hugging Face model."""
    for mode in options.modes:
        sizes = [BlockSize(hidden, batch, SEQUENCE) for hidden in options.hidden for batch in options.batches]
        yield from ((size, mode, "block") for size in sizes)
        yield BlockSize(HUGGING_FACE, 4, SEQUENCE), mode, "llama"


def _operands(shape: str) -> tuple[torch.Tensor, torch.Tensor]:
    m, n, k = (int(size) for size in shape.split("x"))
    return torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()


if __name__ == "__main__":
    execute(main)
