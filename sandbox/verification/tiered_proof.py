"""The tests of one contender as a sequence, the same for every kind of task: order, seeds, and how a run is reported.

Covered: that each test has draws of its own, which its recorded seed repeats; that faults of memory are reported before wrong
results; that a NaN of the right kind is not taken for memory that was never written.
Not covered: what a kind of task draws, runs and compares; its own class does that.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Traits, Violation

REPEATS = 3
WAITS_ROUNDS = 4  # of that tier, where it is run alone: every bit of an address is then set in some run, and clear in another


class GuardedRun(Protocol):
    """What is known of a run besides its outputs."""

    @property
    def violations(self) -> tuple[Violation, ...]: ...


class RunVerdict(Protocol):
    """What a comparison found. `worst`: the largest error over its bound. `unwritten`: wrong elements that hold the poison.

    `in_doubt`: whether all that is wrong should be NaN and holds the poison, which is a NaN too.
    """

    @property
    def worst(self) -> float: ...
    @property
    def unwritten(self) -> int: ...
    @property
    def right(self) -> bool: ...
    @property
    def in_doubt(self) -> bool: ...
    def describe(self) -> str: ...


CaseT = TypeVar("CaseT")
RunT = TypeVar("RunT", bound=GuardedRun)
VerdictT = TypeVar("VerdictT", bound=RunVerdict)


class TieredProof(ABC, Generic[CaseT, RunT, VerdictT]):
    """One contender's tests. All data, orders and buffers follow from `seed`: the options' own, else one from the system's
    entropy. Each test records the seed that repeats it.
    """

    _draw_bits = 63

    def __init__(self, traits: Traits, options: VerifyOptions) -> None:
        self._traits, self._options = traits, options
        self.seed = seed_of(options)
        self._random = random.Random(self.seed)
        self._runs = 0

    def tests(self) -> Iterator[TestResult]:
        """All tests, or one tier's. The caller stops at the first that failed; later ones would run on a broken kernel."""
        if self._options.tier == "waits":
            for index in range(WAITS_ROUNDS):
                yield self._seeded(f"programmatic/{index}", self._dependency)
            return
        for case in self._order():
            yield self._fixed(case)
        yield self._kept_to_buffers()
        yield self.freshness(rounds=self._options.rounds - 1)
        yield self._seeded("one-element", self._one_element)
        yield self._seeded("repeatability", self._repeatability)
        if self._traits.programmatic:
            yield self._seeded("programmatic", self._dependency)

    def brief(self) -> Iterator[TestResult]:
        """The first case and its guards, for a kernel of a trusted writer that is verified in full later."""
        yield self._fixed(next(iter(self._order())))
        yield self._kept_to_buffers()

    def freshness(self, name: str = "fresh-data", rounds: int | None = None) -> TestResult:
        """Data drawn anew, in an order of buffers, fills and states of scratch that no kernel can predict."""
        count = max(self._options.rounds if rounds is None else rounds, 2)
        return self._seeded(name, lambda: self._fresh_rounds(name, count))

    @abstractmethod
    def _order(self) -> Iterator[CaseT]:
        """The fixed cases; first the one that shows most about a wrong kernel, the others in drawn order."""

    @abstractmethod
    def _fixed(self, case: CaseT) -> TestResult: ...
    @abstractmethod
    def _fresh_rounds(self, name: str, rounds: int) -> TestResult: ...
    @abstractmethod
    def _one_element(self) -> TestResult:
        """The same buffers with one element changed, outputs and scratch left as they were."""

    @abstractmethod
    def _equal_runs(self) -> Iterator[tuple[RunT, int, int]]:
        """Runs on equal inputs, REPEATS and perhaps one before them, outputs poisoned between: each with how many elements its
        outputs have, and how many of them differ from the first's.
        """

    @abstractmethod
    def _dependency(self) -> TestResult:
        """Between a producer that triggers early and writes late, and a consumer that reads as soon as it may."""

    def _seeded(self, name: str, test: Callable[[], TestResult]) -> TestResult:
        """A test with its own draws, independent of the tests before it, and with the seed that repeats it."""
        self._random = random.Random(f"{self.seed}/{name}")
        return test().model_copy(update={"seed": self.seed})

    def _repeatability(self) -> TestResult:
        """Bitwise equal results on equal inputs; sums in arrival order must be declared."""
        passed = TestResult(tier="repeatability", name="bitwise", passed=True)
        if self._traits.atomics:
            return passed.model_copy(update={"message": "not applicable: the plan declares atomics"})
        for run, elements, differing in self._equal_runs():
            if (fault := self._fault(passed.tier, passed.name, run)) is not None:
                return fault
            if differing:
                message = (
                    f"{differing} of {elements} outputs differ between two runs on equal inputs; "
                    "declare atomics in the plan if sums are combined in arrival order, or fix a data race"
                )
                return passed.model_copy(update={"passed": False, "worst": float(differing), "message": message})
        return passed

    def _settled(self, run_once: Callable[[], RunT], judge: Callable[[RunT], VerdictT]) -> tuple[RunT, VerdictT]:
        """A run, judged. An output that should be NaN and holds the poison counts as unwritten if it holds the next run's
        poison too: a computed value does not follow the poison.
        """
        run = run_once()
        found = judge(run)
        if found.in_doubt and not run.violations:
            run = run_once()
            found = judge(run)
        return run, found

    def _failure(self, tier: Any, name: str, run: RunT, found: VerdictT) -> TestResult | None:
        """What a run shows, None where it shows nothing. Faults of memory are reported before wrong results."""
        if (fault := self._fault(tier, name, run)) is not None:
            return fault
        if found.unwritten and tier != "programmatic":
            return TestResult(tier="guards", name="unwritten", passed=False, message=f"{found.describe()} (in {tier} {name})")
        if not found.right:
            return TestResult(tier=tier, name=name, passed=False, worst=found.worst, message=found.describe())
        return None

    @staticmethod
    def _fault(tier: str, name: str, run: GuardedRun) -> TestResult | None:
        """A run's first fault of memory."""
        if not run.violations:
            return None
        first = run.violations[0]
        message, symptoms = f"{first.message} (in {tier} {name})", Symptoms(waits=first.waits) if first.waits else None
        return TestResult(tier=first.tier, name=first.kind, passed=False, message=message, symptoms=symptoms)

    def _round_fill(self, index: int) -> tuple[Fill, bool]:
        """Of a freshness round: what outputs hold before it, and whether scratch is fresh."""
        return (Fill.POISON, Fill.STALE)[index] if index < 2 else self._random.choice(list(Fill)), index == 0

    def _kept_to_buffers(self) -> TestResult:
        return TestResult(tier="guards", name="all-runs", passed=True, message=f"{self._runs} runs kept to their buffers")

    def _slot(self) -> int:
        return self._random.randrange(SLOTS)

    def _draw(self) -> int:
        return self._random.getrandbits(self._draw_bits)


def run_until_failure(tests: Iterator[TestResult]) -> tuple[TestResult, ...]:
    """The tests up to and including the first that failed."""
    done = []
    for test in tests:
        done.append(test)
        if not test.passed:
            break
    return tuple(done)
