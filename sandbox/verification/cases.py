"""The fixed cases of tiers 1 to 3, and their inputs and references, kept between the candidates of a task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification import inputs as made
from cudal2_agent.sandbox.verification.bounds import Growth
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded, compare_exact
from cudal2_agent.sandbox.verification.draws import Draws, seed_of
from cudal2_agent.sandbox.verification.elements import Array
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference, kept_bytes

ONE_INSTRUCTION_K = 16


@dataclass(frozen=True)
class Case:
    """One kind of inputs and how its output is judged.

    `growth`: None where the result must be exact. `against_library`: the RMS error is compared with cuBLAS's.
    `library_vouches`: skipped where cuBLAS itself fails, because the chip then does not promise the property.
    """

    tier: str
    name: str
    make: Callable[[Draws, GemmTask], Inputs]
    growth: Growth | None = None
    against_library: bool = False
    library_vouches: bool = False

    @property
    def asks_library(self) -> bool:
        return self.against_library or self.library_vouches


SPARSE = Case("exact", "zero-one", made.sparse_ones)
WIDE = Case("exact", "wide-sums", made.wide)
UNEVEN = Case("exact", "uneven", made.uneven)  # of the freshness tier
GAUSSIAN = Case("accuracy", "gaussian", made.gaussian, Growth.WALK, against_library=True)
UNIFORM = Case("accuracy", "uniform", made.uniform, Growth.RAMP, against_library=True)
CANCELLATION = Case("special", "cancellation", made.cancellation, Growth.WALK)
LARGE = Case("special", "large", made.large, Growth.RAMP, library_vouches=True)
EXTREMES = Case("special", "extremes", made.extremes, library_vouches=True)
SUBNORMAL_RESULTS = Case("special", "subnormal-results", made.subnormal_results, library_vouches=True)
PATTERNS = Case("special", "patterns", made.patterns, library_vouches=True)
NONFINITE = Case("special", "nonfinite", made.nonfinite, Growth.WALK, library_vouches=True)
ZERO_TIMES = Case("special", "zero-times", made.zero_times, library_vouches=True)


def cases_for(task: GemmTask) -> tuple[Case, ...]:
    """The cases of a task, most informative tier first. An f16 accumulator cannot hold the wide sums, and need not."""
    wide = (WIDE,) if task.accumulate is AccumulatorType.F32 else ()
    special = (CANCELLATION, LARGE, EXTREMES, PATTERNS, SUBNORMAL_RESULTS, NONFINITE, ZERO_TIMES)
    return (SPARSE, *wide, GAUSSIAN, UNIFORM, *special)


def not_promised(task: GemmTask, case: Case, *, atomics: bool) -> str:
    """Why a case does not apply; empty where it does. A global `atom.add.f32` flushes subnormals, by the PTX ISA."""
    if atomics and task.element is ElementType.BF16 and case is SUBNORMAL_RESULTS:
        return "not applicable: the plan declares atomics, and global atomic additions in f32 flush subnormals"
    return ""


def caveat(case: Case, task: GemmTask) -> str:
    """What a case cannot show for this task; empty where it shows everything it is meant to."""
    if case is WIDE and task.k <= ONE_INSTRUCTION_K:
        return f"not applicable to accumulator width: one tensor-core instruction holds all of K={task.k}"
    return ""


class PreparedCase:
    """A case's inputs and reference on the device, drawn from `seed`; cuBLAS's own output is judged once."""

    def __init__(self, xp: Any, task: GemmTask, case: Case, seed: int, *, keep: bool) -> None:
        self.case, self.seed = case, seed
        self._xp, self._task = xp, task
        self.inputs = case.make(Draws(xp, int(digest([seed, task.id, case.name], 15), 16)), task)
        self.reference = Reference(xp, task, self.inputs, keep=keep)
        self._library: Comparison | None = None

    def compare(self, output: Array, slack: float = 1.0, poison: int | None = None) -> Comparison:
        """`poison`: what D held before the run that gave the output, where every element held it."""
        return self._compared(self._task, output, slack, poison)

    def _compared(self, task: GemmTask, output: Array, slack: float = 1.0, poison: int | None = None) -> Comparison:
        if self.case.growth is None:
            return compare_exact(self._xp, task, output, self.reference, poison=poison)
        return compare_bounded(self._xp, task, output, self.reference, self.case.growth, slack, poison=poison)

    def library_comparison(self, run: Callable[[Inputs], Array | None]) -> Comparison | None:
        """cuBLAS's sums A·B on these inputs, without an activation, compared; None where there is no cuBLAS."""
        if self._library is None:
            output = run(self.inputs)
            plain = self._task.model_copy(update={"activation": None, "gated": False})
            self._library = None if output is None else self._compared(plain, output)
        return self._library


class CaseStore:
    """Prepared cases of one task. They are kept up to `budget_bytes` of device memory, and made anew beyond it.

    Their seed is drawn once per store, so that no author of a kernel can predict them. They are the same for every
    candidate. What a candidate could learn of them does not help it, because the freshness tier draws new data for each.
    """

    def __init__(self, xp: Any, task: GemmTask, budget_bytes: int) -> None:
        self._xp, self._task = xp, task
        self._capacity = budget_bytes // kept_bytes(task)
        self._drawn = seed_of(VerifyOptions())
        self._kept: dict[str, PreparedCase] = {}

    def prepare(self, case: Case, seed: int | None = None) -> PreparedCase:
        """`seed`: the seed of the case where the user gives one; the store's own by default."""
        wanted = self._drawn if seed is None else seed
        kept = self._kept.get(case.name)
        if kept is not None and kept.seed == wanted:
            return kept
        self._kept.pop(case.name, None)
        keep = len(self._kept) < self._capacity
        prepared = PreparedCase(self._xp, self._task, case, wanted, keep=keep)
        if keep:
            self._kept[case.name] = prepared
        return prepared

    def fill(self, cases: Sequence[Case], seed: int | None, library: Callable[[Inputs], Array | None]) -> None:
        """Prepare cases ahead, as many as are kept, with their references and cuBLAS's results."""
        for case in cases[: self._capacity]:
            prepared = self.prepare(case, seed)
            prepared.reference.compute()
            if case.asks_library:
                prepared.library_comparison(library)
