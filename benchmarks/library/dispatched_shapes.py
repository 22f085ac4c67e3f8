"""Products as a program calls them, with the library enabled and without: every grid shape and random ones, or all entries.

Each program is a CUDA graph of products over operand sets that together exceed the L2 cache; each product follows the one
before, which triggers nothing early. What the library leaves to PyTorch is the same kernel twice: its row shows the noise.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

import cudal2
from benchmarks.speed.grid import SIZES
from cudal2.dispatch.decision import Choice
from cudal2.dispatch.dispatcher import kind_code
from cudal2.library.kernel_library import KernelLibrary
from cudal2.torch import torch_session
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.matrix_signature import DTYPE_OF
from cudal2_agent.agent.library.paired_programs import Program, graph_of, paired_times
from cudal2_agent.agent.model_tuning.gpu_shares import served_calls
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, Layout, parse_shape

RANDOM_SHAPES, SEED = 200, 1811
SET_BYTES, MAX_SETS = 256 * 2**20, 32
COPIES = 8  # graphs of each program, which lie elsewhere in memory
_MULTIPLE = 8


class CalledProduct(NamedTuple):
    """D = A·B. `layout`: how the operands lie; those of `tn` and `nt` are transposed views."""

    m: int
    n: int
    k: int
    layout: Layout = Layout.NN
    element: ElementType = ElementType.F16

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def words(self) -> str:
        """As `cudal2-agent library build --without` reads it."""
        return f"{self.shape} {self.layout}" + (f" {self.element}" if self.element is not ElementType.F16 else "")

    def operands(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Random A (M, K) and B (K, N)."""
        return (
            self._drawn(self.m, self.k, device, transposed=self.layout is Layout.NT),
            self._drawn(self.k, self.n, device, transposed=self.layout is Layout.TN),
        )

    def _drawn(self, rows: int, columns: int, device: str, *, transposed: bool) -> torch.Tensor:
        """Shape: (rows, columns)."""
        size = (columns, rows) if transposed else (rows, columns)
        drawn = torch.randn(size, device=device, dtype=DTYPE_OF[self.element])
        return drawn.t() if transposed else drawn


def products_of(
    shapes: Sequence[str], layout: Layout = Layout.NN, element: ElementType = ElementType.F16
) -> list[CalledProduct]:
    """Raises: UsageError for a text that is no shape."""
    return [CalledProduct(*parse_shape(shape), layout, element) for shape in shapes]


def library_products(library: KernelLibrary, element: ElementType = ElementType.F16) -> list[CalledProduct]:
    """Every product of an element type that the library has an entry or algorithm for, in all layouts."""
    keys = {*library.keys(), *library.algorithm_keys()}
    return sorted(CalledProduct(key.m, key.n, key.k, Layout(key.layout), element) for key in keys if key.element == element)


def random_shapes(count: int = RANDOM_SHAPES, seed: int = SEED) -> list[str]:
    """Sizes between the smallest and the largest of the grid, log-uniform, multiples of 8."""
    rng = random.Random(seed)

    def size() -> int:
        drawn: float = SIZES[0] * (SIZES[-1] / SIZES[0]) ** rng.random()
        return max(_MULTIPLE, round(drawn / _MULTIPLE) * _MULTIPLE)

    return [f"{size()}x{size()}x{size()}" for _ in range(count)]


def served_first(products: Sequence[CalledProduct], device: int = 0) -> list[CalledProduct]:
    """The products that the library serves, then the others; both in a random order that is always the same."""
    found = torch_session.service().devices.find(device)
    if not isinstance(found, DeviceDispatch):
        return list(products)
    dispatcher = found.dispatcher

    def is_left(one: CalledProduct) -> bool:
        kind = kind_code(one.layout, one.element, AccumulatorType.F32)
        return dispatcher.decide(one.m, one.n, one.k, kind).choice is Choice.HEURISTIC

    return sorted(random.Random(SEED).sample(list(products), len(products)), key=is_left)


def measure_products(
    wanted: Sequence[CalledProduct], device: str, rounds: int, max_sets: int = MAX_SETS
) -> Iterator[dict[str, Any]]:
    """A row per product. `served`: whether the library ran it."""
    for product in wanted:
        m, n, k = product.m, product.n, product.k
        sets = max(1, min(max_sets, SET_BYTES // (2 * (m * k + k * n + m * n))))
        operands = [product.operands(device) for _ in range(sets)]

        def products(pairs: list[tuple[torch.Tensor, torch.Tensor]] = operands) -> None:
            for a, b in pairs:
                torch.mm(a, b)

        plain, served = list[Program](), list[Program]()
        calls = served_calls()
        with cudal2.enable(operators=("mm",)):
            products()
            torch_session.service().builds.wait(600)
        for copy in range(COPIES):  # neither program is always captured first
            for with_library in (copy % 2 == 0, copy % 2 != 0):
                if with_library:
                    with cudal2.enable(operators=("mm",)):
                        served.append(graph_of(products, device))
                else:
                    plain.append(graph_of(products, device))
        is_served = served_calls() > calls
        times = paired_times(plain, served, calls=sets, rounds=max(rounds, COPIES), device=device)
        named = {"name": product.words, "shape": product.shape, "layout": product.layout.value}
        yield {**named, "served": is_served, "sets": sets, **times.as_json()}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the library promises: how many shapes are slower, and by how much.

    Of all shapes, of those that the library serves, and of those that it leaves to PyTorch, which show the noise.
    """
    parts = {"served": [row for row in rows if row["served"]], "left": [row for row in rows if not row["served"]]}
    return _figures(rows) | {name: _figures(part) for name, part in parts.items() if part}


def slower_products(rows: Sequence[dict[str, Any]]) -> str:
    """The products that the library should not serve, as `cudal2-agent library build --without` reads them."""
    found = [row for row in rows if row["served"] and row["high"] < 1.0]
    return "".join(f"{row['name']}  # {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})\n" for row in found)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ratios = torch.tensor([row["ratio"] for row in rows], dtype=torch.float64)
    return {
        "shapes": len(rows),
        "geometric_mean": round(float(ratios.log().mean().exp()), 4),
        "interval_wholly_above_1": sum(row["low"] > 1.0 for row in rows),
        "interval_wholly_below_1": sum(row["high"] < 1.0 for row in rows),
        "below_0.98": [row["name"] for row in rows if row["ratio"] < 0.98],
    }
