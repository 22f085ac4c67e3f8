"""cuBLASLt beyond its suggestions: configurations of its algorithms that it accepts but does not suggest.

From AutoTuning's choice on, one attribute at a time is changed (tile, stages, cluster, split K and its reduction, swizzle,
custom option, inner shape); what is faster becomes the next start. Then other algorithms start from their capabilities.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.comparing import Bench, Offer
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtGemm, LtProduct
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable, competing_layouts, compute_type, data_type, scale_type
from cudal2_agent.sandbox.cuda.baselines.library_baselines import LibraryBaselines

# A configuration: the values of an algorithm's attributes, `ID` first.
LtConfiguration = Mapping[str, int]
ATTRIBUTES = (
    "ID", "TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CTA_SWIZZLING", "CUSTOM_OPTION", "INNER_SHAPE_ID",
    "CLUSTER_SHAPE_ID",
)  # fmt: skip
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
SCHEMES = (1, 2, 4)  # in place, in the type of computation, in the type of the output
CLUSTERS = 20  # shapes that are tried, in the library's numbering
CUSTOM_OPTIONS = 8
MAX_ALGORITHMS = 32
FINALISTS, FINAL_SAMPLES = 5, 5

# A product, a configuration of it, and its time in microseconds.
Found = tuple[Any, LtConfiguration, float]


class AutoTuned:
    """The baseline itself: the fastest of the library's suggestions in all layouts that compete."""

    name = AUTOTUNED

    def __init__(self) -> None:
        self.choice: LtGemm | None = None

    def offer(self, bench: Bench) -> Offer:
        self.choice = None
        opened = LibraryBaselines(bench.task, bench.baseline_us).open((AUTOTUNED,))
        bench.forget_baselines()
        if AUTOTUNED not in opened.contenders:
            raise Unavailable("; ".join(opened.notes))
        (best,) = opened.contenders[AUTOTUNED]
        assert isinstance(best, LtGemm)
        self.choice = best
        return Offer(contender=best, tried=1, detail=best.detail)


class BeyondSuggestions:
    """The fastest configuration of any algorithm that a search of limited time finds. The best few are timed once more."""

    name = "cublaslt-searched"

    def __init__(self, tuned: AutoTuned, seed: int = 0) -> None:
        self._tuned, self._draw = tuned, random.Random(seed)

    def offer(self, bench: Bench) -> Offer:
        if self._tuned.choice is None:
            raise Unavailable("AutoTuning has no choice to start from")
        products = {layout: ConfigurableProduct(bench.task, layout) for layout in competing_layouts(bench.task)}
        start = products[self._tuned.choice._product.layout]
        search = Descent(lambda product, chosen: _time_us(bench, product, chosen), bench.seconds, self._draw)
        first = start.configuration(self._tuned.choice._algorithm)
        found = search.run([(start, first), *_openings(list(products.values()), self._draw)])
        finalists = [LtGemm(self.name, product, product.algorithm(chosen)) for product, chosen, _ in found[:FINALISTS]]
        best, _ = bench.fastest(finalists, FINAL_SAMPLES)
        assert isinstance(best, LtGemm)
        return Offer(contender=best, tried=search.tried, detail=best.detail)


class ConfigurableProduct(LtProduct):
    """A product whose algorithms can be configured by attributes. Algorithms live as long as the product."""

    def __init__(self, task: GemmTask, layout: Layout) -> None:
        super().__init__(task, layout)
        self._kept: dict[tuple[tuple[str, int], ...], Any] = {}
        kind = data_type(task.element)
        self._types = (compute_type(task.accumulate), scale_type(task.accumulate), kind, kind, kind, kind)

    def ids(self) -> list[int]:
        """The library's algorithms for these types; none where it does not list them."""
        try:
            found = self._lt.matmul_algo_get_ids(self._handle, *self._types, MAX_ALGORITHMS)
        except self._lt.cuBLASLtError:
            return []
        listed, count = found if len(found) == 2 and not isinstance(found[0], int) else (found, len(found))
        return [int(one) for one in list(listed)[: int(count)]]

    def configuration(self, algorithm: int) -> LtConfiguration:
        return {name: self._configuration(algorithm, getattr(self._lt.MatmulAlgoConfigAttribute, name)) for name in ATTRIBUTES}

    def algorithm(self, chosen: LtConfiguration) -> int:
        """The address of an algorithm with this configuration. Raises: Unavailable where the library refuses it."""
        key = tuple(chosen.items())
        if key not in self._kept:
            try:
                self._kept[key] = self._made(chosen)
            except self._lt.cuBLASLtError as exc:
                raise Unavailable(f"cuBLASLt refuses {dict(chosen)}: {exc}") from exc
        return int(self._kept[key].ctypes.data)

    def capability(self, algorithm_id: int, name: str) -> list[int]:
        """The values that an algorithm lists for `TILE_IDS` or `STAGES_IDS`; empty where it lists none."""
        attribute = int(getattr(self._lt.MatmulAlgoCapAttribute, name))
        found, written = np.zeros(1024, dtype=np.uint32), np.zeros(1, dtype=np.uint64)
        try:
            record = self._initial(algorithm_id)
            self._lt.matmul_algo_cap_get_attribute(
                record.ctypes.data, attribute, found.ctypes.data, found.nbytes, written.ctypes.data
            )
        except self._lt.cuBLASLtError:
            return []
        return [int(value) for value in found[: int(written[0]) // found.itemsize]]

    def _initial(self, algorithm_id: int) -> Any:
        record = np.zeros(8, dtype=np.uint64)
        self._lt.matmul_algo_init(self._handle, *self._types, algorithm_id, record.ctypes.data)
        return record

    def _made(self, chosen: LtConfiguration) -> Any:
        """An algorithm's record, checked by the library."""
        record = self._initial(chosen["ID"])
        for name, value in chosen.items():
            if name != "ID":
                attribute = int(getattr(self._lt.MatmulAlgoConfigAttribute, name))
                content = np.array([value], dtype=self._lt.get_matmul_algo_config_attribute_dtype(attribute))
                self._lt.matmul_algo_config_set_attribute(record.ctypes.data, attribute, content.ctypes.data, content.nbytes)
        result = self._lt.MatmulHeuristicResult()
        layouts = (self._left, self._right, self._out, self._out)
        self._lt.matmul_algo_check(self._handle, self._operation, *layouts, record.ctypes.data, result.ptr)
        return record


class Descent:
    """Coordinate descent over configurations within a time. `tried`: configurations that were timed."""

    def __init__(self, time_us: Callable[[Any, LtConfiguration], float], seconds: float, draw: random.Random) -> None:
        self._time_us, self._until, self._draw = time_us, time.monotonic() + seconds, draw
        self._found: dict[tuple[int, tuple[tuple[str, int], ...]], Found | None] = {}

    @property
    def tried(self) -> int:
        return sum(found is not None for found in self._found.values())

    def run(self, starts: Sequence[tuple[Any, LtConfiguration]]) -> list[Found]:
        """All configurations that ran, the fastest first. Raises: Unavailable where none did."""
        for product, start in starts:
            self._descend(self._timed(product, start))
        ranked = sorted((found for found in self._found.values() if found), key=lambda found: found[2])
        if not ranked:
            raise Unavailable("no configuration of cuBLASLt runs")
        return ranked

    def _descend(self, best: Found | None) -> None:
        improved = best is not None
        while improved and best is not None and time.monotonic() < self._until:
            improved = False
            for other in neighbours(best[1], best[0], self._draw):
                found = self._timed(best[0], other)
                if found is not None and found[2] < best[2]:
                    best, improved = found, True

    def _timed(self, product: Any, chosen: LtConfiguration) -> Found | None:
        """None where it was timed before, where it does not run, and where the time is over."""
        key = (id(product), tuple(chosen.items()))
        if key in self._found or (self._found and time.monotonic() > self._until):
            return None
        try:
            self._found[key] = (product, chosen, self._time_us(product, chosen))
        except Unavailable:
            self._found[key] = None
        return self._found[key]


def neighbours(chosen: LtConfiguration, product: Any, draw: random.Random) -> Iterator[LtConfiguration]:
    """Configurations of the same algorithm that differ in one attribute (a split and its reduction count as one)."""
    values = {
        "CLUSTER_SHAPE_ID": list(range(CLUSTERS)),
        "TILE_ID": product.capability(chosen["ID"], "TILE_IDS"),
        "STAGES_ID": product.capability(chosen["ID"], "STAGES_IDS"),
        "CTA_SWIZZLING": [0, 1, 2, 3],
        "CUSTOM_OPTION": list(range(CUSTOM_OPTIONS)),
        "INNER_SHAPE_ID": [0, 1, 2, 3],
    }
    others = [{**chosen, name: value} for name, listed in values.items() for value in listed if value != chosen[name]]
    for splits in SPLITS:
        for scheme in SCHEMES if splits > 1 else (0,):
            others.append({**chosen, "SPLITK_NUM": splits, "REDUCTION_SCHEME": scheme})
    yield from draw.sample(others, len(others))


def _openings(products: Sequence[Any], draw: random.Random) -> list[tuple[Any, LtConfiguration]]:
    """A few configurations of every algorithm, from what it says it can do."""
    found: list[tuple[Any, LtConfiguration]] = []
    for product in products:
        for algorithm_id in product.ids():
            tiles, stages = (product.capability(algorithm_id, name) or [0] for name in ("TILE_IDS", "STAGES_IDS"))
            for _ in range(4):
                chosen = dict.fromkeys(ATTRIBUTES, 0) | {"ID": algorithm_id, "SPLITK_NUM": 1}
                found.append((product, chosen | {"TILE_ID": draw.choice(tiles), "STAGES_ID": draw.choice(stages)}))
    return draw.sample(found, len(found))


def _time_us(bench: Bench, product: ConfigurableProduct, chosen: LtConfiguration) -> float:
    return bench.brief_us(LtGemm("searched", product, product.algorithm(chosen)))
