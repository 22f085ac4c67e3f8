"""The baselines of a task: their contenders, their availability on this machine, and the autotuning of cuBLASLt.

cuBLAS and cuBLASLt multiply the same numbers in the layouts `nn`, `tn` and the task's own, and the fastest counts
(`competing_layouts`). So a kernel for `nt` is compared with products whose operands are stored more conveniently, too.
torch.matmul has the task's own layout only. Of a gated task all multiply with B and `up` by columns (`gated.py`).

Tuning narrows the library's suggestions down in three passes: all of them by one brief sample, the best `SHORTLIST` by two,
the best `FINALISTS` by whole samples. The winner is decided by whole samples only, so that no brief one that happened to be
short makes a baseline.
"""

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, CUBLAS, HEURISTIC, TORCH
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.baselines.cublas import CublasGemm
from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtGemm, LtProduct
from cudal2_agent.sandbox.cuda.baselines.gated import Gate, GatedBaseline, GatedLt, library_task
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable, WrongProduct, competing_layouts
from cudal2_agent.sandbox.cuda.baselines.torch_matmul import TorchMatmul
from cudal2_agent.sandbox.cuda.timing.operand_pools import are_joined
from cudal2_agent.sandbox.cuda.timing.sample_plan import brief_launches

SHORTLIST, FINALISTS = 16, 4
LONG_SHORTLIST = 6  # where a launch takes long, and one brief sample says enough
FINAL_SAMPLES = 5
BRIEF_US, MIDDLE_US = 200.0, 1000.0  # of a sample in the first and in the second pass
MAX_BRIEF_LAUNCHES = 32

# Times one sample of a contender, in microseconds per launch.
Sample = Callable[[LibraryContender], float]
# The same with that many launches.
BriefSample = Callable[[LibraryContender, int], float]
Suggestion = LtGemm | GatedLt


@dataclass(frozen=True)
class Baselines:
    """Contenders to time, by their baseline (of several, the best median counts); notes on missing ones."""

    contenders: dict[str, tuple[LibraryContender, ...]]
    notes: tuple[str, ...]


class LibraryBaselines:
    """Opens a task's baselines on first use and keeps them; cuBLASLt is tuned once.

    `environment`: its key, under which a tuned baseline is kept. `floor_us`: minimum time of a launch. `known`: the tuned
    baseline of an earlier process; it is tuned anew where that does not run. `tuned`: what this process tuned, once it has.
    A sample raises `WrongProduct` for what computes something else; the next right suggestion takes its place, and detail and
    notes say so.
    """

    def __init__(
        self,
        task: GemmTask,
        sample: Sample,
        brief: BriefSample | None = None,
        *,
        environment: str = "",
        floor_us: float = 1.0,
    ) -> None:
        self._task, self._sample, self._environment, self._floor_us = task, sample, environment, floor_us
        self._gate = Gate(task, joined=are_joined(task)) if task.gated else None
        self._product = library_task(task, joined=are_joined(task)) if task.gated else task  # what the libraries compute
        self._layouts = (Layout.TN,) if task.gated else competing_layouts(task)
        self._brief: BriefSample = brief or (lambda contender, _launches: sample(contender))
        self.known: TunedBaseline | None = None
        self.tuned: TunedBaseline | None = None
        self._wrong: dict[str, str] = {}  # what is wrong, in words, by the contender's own
        self._opened: dict[str, tuple[LibraryContender, ...] | Unavailable] = {}
        self._makers: dict[str, Callable[[], tuple[LibraryContender, ...]]] = {
            TORCH: self._torch,
            CUBLAS: self._cublas,
            HEURISTIC: self._first_suggestions,
            AUTOTUNED: self._tuned,
        }

    @staticmethod
    def wanted(options: TimeOptions) -> tuple[str, ...]:
        """Names of the baselines that the options ask for."""
        if options.all_baselines:
            return BASELINES
        return (HEURISTIC, AUTOTUNED) if options.heuristic else (AUTOTUNED,)

    def open(self, names: Sequence[str]) -> Baselines:
        """The baselines of these names that can be had here, each with at least one contender that ran; notes on the rest."""
        for name in names:
            if name not in self._opened:
                self._opened[name] = self._open(name)
        opened = {name: self._opened[name] for name in names}
        return Baselines(
            contenders={name: found for name, found in opened.items() if isinstance(found, tuple)},
            notes=(
                *(f"baseline {name} left out: {why}" for name, why in opened.items() if isinstance(why, Unavailable)),
                *(f"not a baseline: {why}" for why in self._wrong.values()),
            ),
        )

    def forget(self, name: str) -> None:
        """Open a baseline anew the next time, and without what was tuned before."""
        self._opened.pop(name, None)
        self.known = None

    def _open(self, name: str) -> tuple[LibraryContender, ...] | Unavailable:
        try:
            return self._makers[name]()
        except Unavailable as exc:
            return exc

    def _torch(self) -> tuple[LibraryContender, ...]:
        return self._running([self._gated(TorchMatmul(self._product))])

    def _cublas(self) -> tuple[LibraryContender, ...]:
        if self._task.bias:
            raise Unavailable("cuBLAS adds no bias; cuBLASLt does")
        if self._product.activation is not None:
            raise Unavailable("cuBLAS computes no activation; cuBLASLt does")
        return self._running([self._gated(CublasGemm(self._product, layout)) for layout in self._layouts])

    def _gated(self, product: LibraryContender) -> LibraryContender:
        """With the kernel that gates behind it, of a gated task."""
        return product if self._gate is None else GatedBaseline(self._gate, product)

    def _suggestion(self, name: str, product: LtProduct, algorithm: int) -> Suggestion:
        found = LtGemm(name, product, algorithm)
        return found if self._gate is None else GatedLt(self._gate, found)

    def _first_suggestions(self) -> tuple[LibraryContender, ...]:
        """For each layout the first suggestion that is right."""
        found: list[LibraryContender] = []
        refusals: list[Unavailable] = []
        for product in self._lt_products:
            for algorithm in product.suggestions:
                try:
                    found += self._running([self._suggestion(HEURISTIC, product, algorithm)])
                except WrongProduct as exc:
                    refusals.append(exc)
                    continue
                except Unavailable as exc:
                    refusals.append(exc)
                break
        if not found:
            raise refusals[0]
        return tuple(found)

    def _tuned(self) -> tuple[LibraryContender, ...]:
        """The fastest of all suggestions of all layouts: that of an earlier process, or found now."""
        if self.known is not None:
            with contextlib.suppress(Unavailable):
                return self._running([self._restored(self.known)])
        suggestions = [
            self._suggestion(AUTOTUNED, product, algorithm)
            for product in self._lt_products
            for algorithm in product.suggestions
        ]
        narrowed, ranked, wrong = self._narrowed(suggestions), [], len(self._wrong)
        for start in range(0, len(narrowed), FINALISTS):  # the first ones, unless all of them are wrong
            ranked = self._fastest(narrowed[start : start + FINALISTS], FINAL_SAMPLES, self._sample)
            if ranked:
                break
        if not ranked:
            raise Unavailable(f"none of cuBLASLt's {len(suggestions)} suggestions runs")
        best, time_us = ranked[0]
        detail = f"{best.detail}; best of {len(suggestions)} suggestions"
        if wrong := len(self._wrong) - wrong:
            detail += f", but for {wrong} with a wrong product"
        self.tuned = TunedBaseline(
            task=self._task,
            environment=self._environment,
            layout=best.layout,
            algorithm=best.record(),
            detail=detail,
            suggestions=len(suggestions),
            time_us=time_us,
        )
        best.detail = detail
        return (best,)

    def _narrowed(self, suggestions: Sequence[Suggestion]) -> list[Suggestion]:
        """The suggestions that run, the fastest of brief samples first."""
        launches = max(1, min(MAX_BRIEF_LAUNCHES, round(BRIEF_US / self._floor_us)))
        first = self._fastest(suggestions, 1, lambda one: self._brief(one, launches))
        if not first:
            return []
        best_us = first[0][1]
        shortlist = [one for one, _ in first[: LONG_SHORTLIST if best_us > MIDDLE_US else SHORTLIST]]
        again = brief_launches(best_us, MIDDLE_US)
        return [one for one, _ in self._fastest(shortlist, 2, lambda one: self._brief(one, again))]

    def _restored(self, known: TunedBaseline) -> Suggestion:
        """Raises: Unavailable where the record is not of this library."""
        product = LtProduct(self._product, Layout(known.layout))
        gemm = self._suggestion(AUTOTUNED, product, product.restore(known.algorithm))
        gemm.detail = known.detail
        return gemm

    @cached_property
    def _lt_products(self) -> list[LtProduct]:
        """Products of the layouts with suggestions. Raises: Unavailable where none has one."""
        products, refusal = [], None
        for layout in self._layouts:
            try:
                product = LtProduct(self._product, layout)
                if product.suggestions:
                    products.append(product)
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
                self._note(contender, exc)
                refusal = exc
        if refusal is not None and not running:
            raise refusal
        return tuple(running)

    def _note(self, contender: LibraryContender, why: Unavailable) -> None:
        if isinstance(why, WrongProduct):
            self._wrong[f"{contender.name}: {contender.detail}"] = f"{contender.name}: {why}"

    def _fastest(
        self, suggestions: Sequence[Suggestion], samples: int, sample: Callable[[Suggestion], float]
    ) -> list[tuple[Suggestion, float]]:
        """The suggestions that run with their medians, fastest first; sampled in turns, so that drift affects all alike."""
        times: dict[Suggestion, list[float]] = {suggestion: [] for suggestion in suggestions}
        for _ in range(samples):
            for suggestion in list(times):
                try:
                    times[suggestion].append(sample(suggestion))
                except Unavailable as exc:
                    self._note(suggestion, exc)
                    del times[suggestion]
        medians = [(suggestion, statistics.median(values)) for suggestion, values in times.items()]
        return sorted(medians, key=lambda each: each[1])


def open_reference_library(task: GemmTask) -> CublasGemm | None:
    """cuBLAS as verification's yardstick: the task's layout, no sums in half precision, no activation. None without cuBLAS."""
    try:
        return CublasGemm(task, task.layout, strict=True)
    except Unavailable:
        return None
