"""The seven tiers as one sequence of tests over an `Executor`; it ends with the first test that fails.

Covered: wrong sums, wrong places, narrow accumulators, unwritten and overwritten memory, mutated inputs, results kept
between runs, results that differ between runs, missing dependency waits.
Not covered: a kernel that compares *all* of its inputs with those of its last run and keeps the result; a race that this GPU
never loses (the emulator's part).
"""

import random
from collections.abc import Iterator

from contract.evaluation import TestResult
from contract.options import VerifyOptions
from contract.task import GemmTask
from sandbox.verification.bounds import rounding_floor
from sandbox.verification.cases import GAUSSIAN, SPARSE, Case, CaseStore, Prepared, cases_for, caveat
from sandbox.verification.comparison import Comparison, compare_exact
from sandbox.verification.executor import SLOTS, Executor, Fill, Run, Traits
from sandbox.verification.inputs import flip_one, sparse_ones
from sandbox.verification.reference import Reference
from sandbox.verification.source import Source

REPEATS = 3
DEPENDENT_RUNS = 2


class Proof:
    """One contender's way through the tiers. `salt` makes the fresh data of one proof differ from those of the next."""

    def __init__(
        self, executor: Executor, task: GemmTask, traits: Traits, store: CaseStore, options: VerifyOptions, salt: str = ""
    ) -> None:
        self._executor, self._task, self._traits = executor, task, traits
        self._store, self._options = store, options
        self._random = random.Random(f"{options.seed}/{salt}")
        self._runs = 0

    def tests(self) -> Iterator[TestResult]:
        """All tests in order. The caller stops at the first that failed; later ones would run on a broken kernel."""
        for case in cases_for(self._task):
            yield self._fixed(case)
        yield TestResult(tier="guards", name="all-runs", passed=True, message=f"{self._runs} runs kept to their buffers")
        yield self.freshness()
        yield self._one_element()
        yield self._repeatability()
        if self._traits.programmatic:
            yield self._dependency()

    def freshness(self, name: str = "fresh-data") -> TestResult:
        """Fresh data in an order of buffers, fills and workspace states that the kernel cannot foresee."""
        worst = 0.0
        for index in range(max(self._options.rounds, 2)):
            case = self._random.choice((SPARSE, GAUSSIAN))
            prepared = Prepared(self._executor.xp, self._task, case, self._seed(), keep=False)
            # The first two share buffers and workspace, as timed launches do; the rest are drawn.
            slot = 0 if index < 2 else self._random.randrange(SLOTS)
            fill = (Fill.POISON, Fill.STALE)[index] if index < 2 else self._random.choice(list(Fill))
            run = self._run(prepared, slot=slot, fill=fill, fresh_workspace=index == 0)
            failed, comparison = self._judge("freshness", f"round-{index}", prepared, run)
            if failed is not None:
                return failed
            worst = max(worst, comparison.worst)
        return TestResult(tier="freshness", name=name, passed=True, worst=worst)

    def _fixed(self, case: Case) -> TestResult:
        prepared = self._store.prepare(case)
        library = prepared.library_comparison(self._executor.library) if _asks_library(case) else None
        if case.library_vouches and library is not None and library.mismatches:
            message = f"not applicable: cuBLAS itself differs here ({library.describe()})"
            return TestResult(tier=case.tier, name=case.name, passed=True, message=message)
        failed, comparison = self._judge(case.tier, case.name, prepared, self._run(prepared), library)
        if failed is not None:
            return failed
        if case.against_library and (excess := self._excess(comparison, library)):
            return TestResult(tier=case.tier, name=case.name, passed=False, worst=comparison.worst, message=excess)
        return TestResult(tier=case.tier, name=case.name, passed=True, worst=comparison.worst, message=caveat(case, self._task))

    def _excess(self, comparison: Comparison, library: Comparison | None) -> str:
        """Why the RMS error is too large; empty where it is not."""
        floor = rounding_floor(self._task, comparison.reference_rms, comparison.finite)
        own = library.error_rms if library is not None and not library.mismatches else 0.0
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
        """The same buffers with one element of A changed, D and workspace left as they were."""
        source = Source(self._executor.xp, self._seed())
        before = sparse_ones(source, self._task)
        after = flip_one(source, self._task, before)
        for inputs, fill in ((before, Fill.POISON), (after, Fill.STALE)):
            self._runs += 1
            run = self._executor.run(inputs, fill=fill, fresh_workspace=fill is Fill.POISON)
            reference = Reference(self._executor.xp, self._task, inputs, keep=False)
            comparison = compare_exact(self._executor.xp, self._task, run.output, reference)
            failed = self._verdict("freshness", "one-element-changed", run, comparison)
            if failed is not None:
                return failed
        return TestResult(tier="freshness", name="one-element-changed", passed=True)

    def _repeatability(self) -> TestResult:
        """Bitwise equal results on equal inputs, D poisoned between; sums in arrival order must be declared."""
        if self._traits.atomics:
            message = "not applicable: the plan declares atomics"
            return TestResult(tier="repeatability", name="bitwise", passed=True, message=message)
        prepared = self._store.prepare(GAUSSIAN)
        first = self._run(prepared, fresh_workspace=False).output.copy()
        for _ in range(REPEATS):
            again = self._run(prepared, fresh_workspace=False)
            differing = int((first != again.output).sum())
            if differing:
                message = (
                    f"{differing} of {first.size} outputs differ between two runs on equal inputs; "
                    "declare atomics in the plan if sums are combined in arrival order, or fix a race"
                )
                return TestResult(tier="repeatability", name="bitwise", passed=False, worst=float(differing), message=message)
        return TestResult(tier="repeatability", name="bitwise", passed=True)

    def _dependency(self) -> TestResult:
        """Behind a producer that triggers early and writes late, before a consumer that reads as soon as it may."""
        for _ in range(DEPENDENT_RUNS):
            prepared = Prepared(self._executor.xp, self._task, SPARSE, self._seed(), keep=False)
            decoy = sparse_ones(Source(self._executor.xp, self._seed()), self._task)
            self._runs += 1
            run = self._executor.run_dependent(prepared.inputs, decoy)
            failed, _ = self._judge("programmatic", "late-producer", prepared, run)
            if failed is not None:
                return failed
        return TestResult(tier="programmatic", name="late-producer", passed=True)

    def _run(self, prepared: Prepared, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        self._runs += 1
        return self._executor.run(prepared.inputs, slot=slot, fill=fill, fresh_workspace=fresh_workspace)

    def _judge(
        self, tier: str, name: str, prepared: Prepared, run: Run, library: Comparison | None = None
    ) -> tuple[TestResult | None, Comparison]:
        slack = 1.0 if library is None else max(1.0, self._options.error_ratio * library.worst)
        comparison = prepared.compare(run.output, slack)
        return self._verdict(tier, name, run, comparison), comparison

    def _verdict(self, tier: str, name: str, run: Run, comparison: Comparison) -> TestResult | None:
        """The failure that a run shows, None where it shows none. What was done to memory is told before what was computed."""
        if run.violations:
            first = run.violations[0]
            return TestResult(tier=first.tier, name=first.kind, passed=False, message=f"{first.message} (in {tier} {name})")
        if comparison.unwritten and tier != "programmatic":
            message = f"{comparison.describe()} (in {tier} {name})"
            return TestResult(tier="guards", name="unwritten", passed=False, message=message)
        if comparison.mismatches:
            return TestResult(tier=tier, name=name, passed=False, worst=comparison.worst, message=comparison.describe())
        return None

    def _seed(self) -> int:
        return self._random.getrandbits(63)


def _asks_library(case: Case) -> bool:
    return case.against_library or case.library_vouches


def run_until_failure(tests: Iterator[TestResult]) -> tuple[TestResult, ...]:
    """The tests up to and including the first that failed."""
    done = []
    for test in tests:
        done.append(test)
        if not test.passed:
            break
    return tuple(done)
