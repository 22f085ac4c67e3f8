"""The baselines of a task: their contenders, their availability on this machine, and the autotuning of cuBLASLt."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from contract.evaluation import AUTOTUNED, CUBLAS, HEURISTIC, TORCH
from contract.task import GemmTask, Layout
from sandbox.cuda.baselines.cublas import CublasGemm
from sandbox.cuda.baselines.cublaslt import LtGemm, LtProduct
from sandbox.cuda.baselines.library import LibraryContender, Unavailable
from sandbox.cuda.baselines.torch_matmul import TorchMatmul

FINALISTS = 4
BRIEF_SAMPLES = 2
FINAL_SAMPLES = 5

# Times one sample of a contender, in microseconds per launch.
Sample = Callable[[LibraryContender], float]


@dataclass(frozen=True)
class Baselines:
    """Contenders to time, by their baseline (of several, the best median counts); notes on missing ones."""

    contenders: dict[str, tuple[LibraryContender, ...]]
    notes: tuple[str, ...]


class LibraryBaselines:
    """Opens a task's baselines on first use and keeps them; cuBLASLt is tuned once."""

    def __init__(self, task: GemmTask, sample: Sample) -> None:
        self._task, self._sample = task, sample
        self._opened: dict[str, tuple[LibraryContender, ...] | Unavailable] = {}
        self._makers: dict[str, Callable[[], tuple[LibraryContender, ...]]] = {
            TORCH: self._torch,
            CUBLAS: self._cublas,
            HEURISTIC: self._first_suggestions,
            AUTOTUNED: self._tuned,
        }

    def open(self, names: Sequence[str]) -> Baselines:
        """The baselines of these names that can be had here, each with at least one contender that ran; notes on the rest."""
        for name in names:
            if name not in self._opened:
                self._opened[name] = self._open(name)
        opened = {name: self._opened[name] for name in names}
        return Baselines(
            contenders={name: found for name, found in opened.items() if isinstance(found, tuple)},
            notes=tuple(f"baseline {name} left out: {why}" for name, why in opened.items() if isinstance(why, Unavailable)),
        )

    def _open(self, name: str) -> tuple[LibraryContender, ...] | Unavailable:
        try:
            return self._makers[name]()
        except Unavailable as exc:
            return exc

    def _torch(self) -> tuple[LibraryContender, ...]:
        return self._running([TorchMatmul(self._task)])

    def _cublas(self) -> tuple[LibraryContender, ...]:
        return self._running([CublasGemm(self._task, layout) for layout in Layout])

    def _first_suggestions(self) -> tuple[LibraryContender, ...]:
        return self._running([LtGemm(HEURISTIC, product, product.suggestions[0]) for product in self._lt_products])

    def _tuned(self) -> tuple[LibraryContender, ...]:
        """The fastest of all suggestions of both layouts: all timed briefly, the best few again."""
        suggestions = [
            LtGemm(AUTOTUNED, product, algorithm) for product in self._lt_products for algorithm in product.suggestions
        ]
        finalists = self._fastest(suggestions, BRIEF_SAMPLES)[:FINALISTS]
        if not finalists:
            raise Unavailable(f"none of cuBLASLt's {len(suggestions)} suggestions runs")
        best = self._fastest(finalists, FINAL_SAMPLES)[0]
        best.detail = f"{best.detail}; best of {len(suggestions)} suggestions"
        return (best,)

    @cached_property
    def _lt_products(self) -> list[LtProduct]:
        """Both layouts' products. Raises: Unavailable where neither has a suggestion."""
        products, refusal = [], None
        for layout in Layout:
            try:
                products.append(LtProduct(self._task, layout))
            except Unavailable as exc:
                refusal = exc
        if refusal is not None and not products:
            raise refusal
        return products

    def _running(self, contenders: Sequence[LibraryContender]) -> tuple[LibraryContender, ...]:
        """Those that ran once. Raises: Unavailable where none did."""
        running, refusal = [], None
        for contender in contenders:
            try:
                self._sample(contender)
                running.append(contender)
            except Unavailable as exc:
                refusal = exc
        if refusal is not None and not running:
            raise refusal
        return tuple(running)

    def _fastest(self, suggestions: Sequence[LtGemm], samples: int) -> list[LtGemm]:
        """The suggestions that run, fastest first; sampled in turns, so that drift affects all alike."""
        times: dict[LtGemm, list[float]] = {suggestion: [] for suggestion in suggestions}
        for _ in range(samples):
            for suggestion in list(times):
                try:
                    times[suggestion].append(self._sample(suggestion))
                except Unavailable:
                    del times[suggestion]
        return sorted(times, key=lambda suggestion: statistics.median(times[suggestion]))


def open_reference_library(task: GemmTask) -> CublasGemm | None:
    """cuBLAS as verification's yardstick: the task's layout, no sums in half precision; None where there is none."""
    try:
        return CublasGemm(task, task.layout, strict=True)
    except Unavailable:
        return None
