"""The seven tiers of a matrix product, as tests over an `Executor` (`tiered_proof.py`).

Covered: wrong sums, wrong positions, narrow accumulators, unwritten and overwritten memory, changed inputs, results kept
between runs, results that differ between runs, missing dependency waits.
Not covered: a kernel that compares *all* of its inputs with those of its last run and keeps the result; a data race that
this GPU never shows (the emulator detects those).
"""

from collections.abc import Iterable, Iterator
from itertools import cycle, groupby, islice

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.bounds import rounding_floor
from cudal2_agent.sandbox.verification.cases import (
    GAUSSIAN,
    SPARSE,
    UNEVEN,
    Case,
    CaseStore,
    PreparedCase,
    cases_for,
    caveat,
    not_promised,
)
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_exact, compare_patterns
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, encode
from cudal2_agent.sandbox.verification.executor import Executor, Fill, Run, Traits
from cudal2_agent.sandbox.verification.flips import Flip, FlippedOperand, flip_one
from cudal2_agent.sandbox.verification.inputs import Inputs, gaussian, sparse_ones
from cudal2_agent.sandbox.verification.reference import Reference
from cudal2_agent.sandbox.verification.tiered_proof import REPEATS, TieredProof

TIERS = ("exact", "accuracy", "special", "guards", "freshness", "repeatability", "programmatic")


class Proof(TieredProof[Case, Run, Comparison]):
    """One contender's tests. The fixed cases are the store's where the options give no seed."""

    def __init__(
        self,
        executor: Executor,
        task: GemmTask,
        traits: Traits,
        store: CaseStore,
        options: VerifyOptions,
    ) -> None:
        super().__init__(traits, options)
        self._executor, self._task, self._store = executor, task, store
        self._gaussian: Array | None = None  # the output that was verified, for the repeatability tier

    def _order(self) -> Iterator[Case]:
        """The fixed cases tier by tier: the exact ones, which reveal most about a wrong kernel, then the others in drawn
        order.
        """
        for name, tier in groupby(cases_for(self._task), key=lambda case: case.tier):
            cases = list(tier)
            yield from cases if name == SPARSE.tier else self._random.sample(cases, len(cases))

    def _fresh_rounds(self, name: str, rounds: int) -> TestResult:
        """One of the first two rounds has uneven rows."""
        worst, first_slot = 0.0, self._slot()
        first = self._random.sample((UNEVEN, self._random.choice((SPARSE, GAUSSIAN))), 2)
        for index in range(rounds):
            case = first[index] if index < 2 else self._random.choice((SPARSE, GAUSSIAN, UNEVEN))
            prepared = PreparedCase(self._executor.xp, self._task, case, self._draw(), keep=False)
            # The first two runs share buffers and workspace, as timed launches do; the others are drawn.
            slot = first_slot if index < 2 else self._slot()
            fill, fresh = self._round_fill(index)
            failed, comparison = self._verdict_on("freshness", f"round-{index}", prepared, slot, fill, fresh=fresh)
            if failed is not None:
                return failed
            worst = max(worst, comparison.worst)
        return TestResult(tier="freshness", name=name, passed=True, worst=worst)

    def _fixed(self, case: Case) -> TestResult:
        """One fixed case, in a drawn slot."""
        prepared = self._store.prepare(case, self._options.seed)
        return self._judged(case, prepared).model_copy(update={"seed": prepared.seed})

    def _judged(self, case: Case, prepared: PreparedCase) -> TestResult:
        if reason := not_promised(self._task, case, atomics=self._traits.atomics):
            return TestResult(tier=case.tier, name=case.name, passed=True, message=reason)
        library = self._library_on(prepared)
        if case.library_vouches and library is not None and library.mismatches:
            message = f"not applicable: cuBLAS itself differs here ({library.describe()})"
            return TestResult(tier=case.tier, name=case.name, passed=True, message=message)
        failed, comparison = self._verdict_on(case.tier, case.name, prepared, self._slot(), library=library)
        if failed is not None:
            return failed
        if case.against_library and (excess := self._excess(comparison, library)):
            return TestResult(tier=case.tier, name=case.name, passed=False, worst=comparison.worst, message=excess)
        return TestResult(tier=case.tier, name=case.name, passed=True, worst=comparison.worst, message=caveat(case, self._task))

    def _excess(self, comparison: Comparison, library: Comparison | None) -> str:
        """Why the RMS error is too large; empty where it is not."""
        floor = rounding_floor(self._task, comparison.reference_rms, comparison.finite)
        judged = library is not None and not library.mismatches and self._task.activation is None  # its sums have other sizes
        own = library.error_rms if library is not None and judged else 0.0
        limit = max(self._options.error_ratio * own, floor)
        if comparison.error_rms <= limit:
            return ""
        against = (
            f"{self._options.error_ratio:g} times cuBLAS's {own:.3g}" if limit > floor else f"{floor:.3g} for rounding alone"
        )
        return (
            f"RMS error {comparison.error_rms:.3g} exceeds {against}; "
            f"does every sum accumulate in {self._task.accumulate} and is the result rounded once?"
        )

    def _one_element(self) -> TestResult:
        """The same buffers with one element of each operand changed in turn, D and workspace left as they were."""
        xp, slot, name = self._executor.xp, self._slot(), "one-element-changed"
        prepared = PreparedCase(xp, self._task, SPARSE, self._draw(), keep=False)
        fill = self._random.choice(list(Fill))
        run = self._run(prepared.inputs, slot, fill, fresh=self._random.random() < 0.5)
        failed = self._failure("freshness", name, run, prepared.compare(run.output, poison=run.poison))
        inputs, source, sums = prepared.inputs, Draws(xp, self._draw()), run.output
        if self._task.activation is not None and not self._task.gated:
            sums = encode(xp, prepared.reference.whole().product, self._task.element)
        more: list[FlippedOperand] = ["bias"] if self._task.bias else ["up"] if self._task.gated else []
        operands: list[FlippedOperand] = ["a", "b", *more]
        for operand in self._random.sample(operands, len(operands)):
            if failed is not None:
                return failed
            changed = flip_one(source, self._task, inputs, sums, operand)
            run = self._run(changed.inputs, slot, Fill.STALE, fresh=False)
            inputs, sums = changed.inputs, run.output if self._task.gated else changed.d
            failed = self._failure("freshness", name, run, self._compared_flip(run, changed))
        return failed or TestResult(tier="freshness", name=name, passed=True)

    def _compared_flip(self, run: Run, flip: Flip) -> Comparison:
        xp, task = self._executor.xp, self._task
        if not task.gated:
            return compare_patterns(xp, task, run.output, flip.d)
        return compare_exact(xp, task, run.output, Reference(xp, task, flip.inputs, keep=False), poison=run.poison)

    def _equal_runs(self) -> Iterator[tuple[Run, int, int]]:
        prepared = self._store.prepare(GAUSSIAN, self._options.seed)
        first = self._gaussian  # None where the case was skipped, or runs for the first time here
        for _ in range(REPEATS if first is not None else REPEATS + 1):
            run = self._run(prepared.inputs, self._slot(), fresh=False)
            first = run.output.copy() if first is None else first
            yield run, first.size, int((first != run.output).sum())

    def _dependency(self) -> TestResult:
        """Old and new operands are whole numbers or normal ones, in all four combinations, so that no look at the data tells
        whether they are there yet.
        """
        source = Draws(self._executor.xp, self._draw())
        whole = PreparedCase(self._executor.xp, self._task, SPARSE, self._draw(), keep=True)
        normal = self._store.prepare(GAUSSIAN, self._options.seed)
        decoys = {SPARSE: sparse_ones(source, self._task), GAUSSIAN: gaussian(source, self._task)}
        alike = self._random.sample([(whole, SPARSE), (normal, GAUSSIAN)], 2)
        unlike = self._random.sample([(whole, GAUSSIAN), (normal, SPARSE)], 2)
        for prepared, old in islice(cycle((*alike, *unlike)), self._traits.dependent_runs):
            self._runs += 1
            run = self._executor.run_dependent(prepared.inputs, decoys[old])
            comparison = prepared.compare(run.output, self._slack(self._library_on(prepared)), run.poison)
            failed = self._failure("programmatic", "late-producer", run, comparison)
            if failed is not None:
                return failed
        return TestResult(tier="programmatic", name="late-producer", passed=True)

    def _run(self, inputs: Inputs, slot: int, fill: Fill = Fill.POISON, *, fresh: bool = True) -> Run:
        self._runs += 1
        return self._executor.run(inputs, slot=slot, fill=fill, fresh_workspace=fresh)

    def _verdict_on(
        self,
        tier: str,
        name: str,
        prepared: PreparedCase,
        slot: int,
        fill: Fill = Fill.POISON,
        *,
        fresh: bool = True,
        library: Comparison | None = None,
    ) -> tuple[TestResult | None, Comparison]:
        """Run a case, and judge the run."""
        slack = self._slack(library)
        run, comparison = self._settled(
            lambda: self._run(prepared.inputs, slot, fill, fresh=fresh),
            lambda run: prepared.compare(run.output, slack, run.poison),
        )
        if prepared.case is GAUSSIAN and tier == GAUSSIAN.tier and not self._traits.atomics:
            self._gaussian = run.output.copy()
        return self._failure(tier, name, run, comparison), comparison

    def _library_on(self, prepared: PreparedCase) -> Comparison | None:
        """cuBLAS's result on a case, compared, where the case asks for it."""
        return prepared.library_comparison(self._executor.library) if prepared.case.asks_library else None

    def _slack(self, library: Comparison | None) -> float:
        """The multiple of its bound by which an element may differ."""
        return 1.0 if library is None else max(1.0, self._options.error_ratio * library.worst)


def tiers_not_run(tests: Iterable[TestResult], *, programmatic: bool) -> list[str]:
    """The tiers of which no test ran, in order. `programmatic`: whether the plan has the last one."""
    ran = {test.tier for test in tests}
    return [tier for tier in TIERS if tier not in ran and (programmatic or tier != "programmatic")]
