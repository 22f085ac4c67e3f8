"""The tests of a module as one sequence over a `ModuleExecutor`; it ends with the first that fails.

Covered: wrong results on every case, within bounds; unwritten and overwritten memory, changed inputs; results kept between
runs, inputs and parameters drawn anew in each; results that differ between runs; missing dependency waits; states after a run.
Not covered: what `sandbox/verification/tiers.py` does not cover.
"""

import random
from collections.abc import Callable, Iterator

import torch

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.modules.bounds import Verdict
from cudal2_agent.sandbox.modules.cases import CASES, NORMAL, OWN, TIES, UNEVEN, WHOLE, Case, Inputs, draw
from cudal2_agent.sandbox.modules.executor import ModuleExecutor, Run, differing
from cudal2_agent.sandbox.modules.pieces import judge_of
from cudal2_agent.sandbox.modules.prepared import DrawnCase, prepare
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Traits
from cudal2_agent.sandbox.verification.tiers import REPEATS, WAITS_ROUNDS

_FRESH = (NORMAL, OWN, WHOLE, UNEVEN, TIES)
_TRIES = 8  # elements that are changed until one is found that an output depends on


class PreparedCases:
    """Cases of one task with their references, kept between its candidates up to `budget_bytes` of device memory.

    Their seed is drawn once, so that no author of a kernel can predict them; the freshness tier draws new data for each.
    """

    def __init__(self, task: ModuleTask, device: torch.device, budget_bytes: int) -> None:
        self.task, self.device = task, device
        written = sum(buffer.elements for buffer in task.buffers if buffer.role.written)
        self.capacity = budget_bytes // max(task.operand_bytes + 24 * written, 1)
        self._drawn = seed_of(VerifyOptions())
        self._kept: dict[tuple[str, int], DrawnCase | None] = {}

    def prepare(self, case: Case, seed: int | None = None) -> tuple[DrawnCase | None, int]:
        """The case, None where the reference is finite on no domain of it, and its seed: the store's own by default."""
        wanted = self._drawn if seed is None else seed
        key = (case.name, wanted)
        if key in self._kept:
            return self._kept[key], wanted
        found = self.fresh(case, wanted)
        if len(self._kept) < self.capacity:
            self._kept[key] = found
        return found, wanted

    def fresh(self, case: Case, seed: int) -> DrawnCase | None:
        """The case, drawn now and not kept."""
        return prepare(self.task, case, seed, self.device)


class ModuleProof:
    """One contender's tests. Everything drawn follows from `seed`: the options' own, else one from the system's entropy."""

    def __init__(self, executor: ModuleExecutor, cases: PreparedCases, traits: Traits, options: VerifyOptions) -> None:
        self._executor, self._cases, self._task = executor, cases, cases.task
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
        for case in (*CASES[:1], *self._random.sample(CASES[1:], len(CASES) - 1)):
            yield self._fixed(case)
        yield TestResult(tier="guards", name="all-runs", passed=True, message=f"{self._runs} runs kept to their buffers")
        yield self.freshness(rounds=self._options.rounds - 1)
        yield self._seeded("one-element", self._one_element)
        yield self._seeded("repeatability", self._repeatability)
        if self._traits.programmatic:
            yield self._seeded("programmatic", self._dependency)

    def brief(self) -> Iterator[TestResult]:
        """The first case and its guards, for a kernel of a trusted writer that is verified in full later."""
        yield self._fixed(CASES[0])
        yield TestResult(tier="guards", name="all-runs", passed=True, message=f"{self._runs} runs kept to their buffers")

    def freshness(self, name: str = "fresh-data", rounds: int | None = None) -> TestResult:
        """Inputs, parameters and states drawn anew, in an order of buffers, fills and scratch that no kernel can predict."""
        count = max(self._options.rounds if rounds is None else rounds, 2)
        return self._seeded(name, lambda: self._fresh_rounds(name, count))

    def _seeded(self, name: str, test: Callable[[], TestResult]) -> TestResult:
        self._random = random.Random(f"{self.seed}/{name}")
        return test().model_copy(update={"seed": self.seed})

    def _fixed(self, case: Case) -> TestResult:
        prepared, seed = self._cases.prepare(case, self._options.seed)
        result = self._judged(case, prepared)
        return result.model_copy(update={"seed": seed})

    def _judged(self, case: Case, prepared: DrawnCase | None) -> TestResult:
        if prepared is None:
            message = "not applicable: the reference is finite on no such inputs"
            return TestResult(tier=case.tier, name=case.name, passed=True, message=message)
        failed, verdict = self._verdict_on(case.tier, case.name, prepared, self._slot())
        message = ("", "magnitudes only", "magnitudes, zeros in one input only", "on the problem's own inputs")[prepared.domain]
        return failed or TestResult(tier=case.tier, name=case.name, passed=True, worst=verdict.worst, message=message)

    def _fresh_rounds(self, name: str, rounds: int) -> TestResult:
        """The first two runs share buffers and scratch, as timed launches do; the others are drawn."""
        worst, first_slot = 0.0, self._slot()
        for index in range(rounds):
            prepared = self._any_case()
            if prepared is None:
                continue
            slot = first_slot if index < 2 else self._slot()
            fill = (Fill.POISON, Fill.STALE)[index] if index < 2 else self._random.choice(list(Fill))
            failed, verdict = self._verdict_on("freshness", f"round-{index}", prepared, slot, fill, fresh=index == 0)
            if failed is not None:
                return failed
            worst = max(worst, verdict.worst)
        return TestResult(tier="freshness", name=name, passed=True, worst=worst)

    def _any_case(self) -> DrawnCase | None:
        """A case of the freshness tier on data of its own."""
        found = (self._cases.fresh(case, self._draw()) for case in self._random.sample(_FRESH, len(_FRESH)))
        return next((prepared for prepared in found if prepared is not None), None)

    def _one_element(self) -> TestResult:
        """The same buffers with one element of one input changed, then one of one parameter; outputs and scratch as they were.

        A kernel that keeps a result and compares a sample of its inputs does not see the difference.
        """
        name, slot, prepared = "one-element-changed", self._slot(), self._any_case()
        if prepared is None:
            return TestResult(tier="freshness", name=name, passed=True, message="not applicable: no case is finite")
        failed, _ = self._verdict_on("freshness", name, prepared, slot)
        for roles in ((Role.INPUT,), (Role.PARAMETER, Role.STATE)):
            changed = None if failed is not None else self._changed(prepared, roles)
            if changed is not None:
                run = self._run(changed.values, slot, Fill.STALE, fresh=False)
                failed = self._verdict("freshness", name, run, changed.judge.judge(run))
                prepared = changed
        return failed or TestResult(tier="freshness", name=name, passed=True)

    def _changed(self, prepared: DrawnCase, roles: tuple[Role, ...]) -> DrawnCase | None:
        """With one element changed, in place, so that the outputs before would be refused; None where none was found."""
        names = [b.name for b in self._task.buffers if b.role in roles and b.elements and b.element.floating]
        before = prepared.judge.eager
        for _ in range(_TRIES if names else 0):
            name = self._random.choice(names)
            flat = prepared.values[name].view(-1)
            place = self._random.randrange(len(flat))
            old = flat[place].clone()
            flat[place] = 2 - old if float(old.abs()) < 1 else -old / 2
            judge = judge_of(self._task, prepared.values, self._draw())
            if not judge.accepts(before):
                return DrawnCase(prepared.case, prepared.values, judge)
            flat[place] = old
        return None

    def _repeatability(self) -> TestResult:
        """Bitwise equal results on equal inputs, outputs poisoned between; sums in arrival order must be declared."""
        if self._traits.atomics:
            message = "not applicable: the plan declares atomics"
            return TestResult(tier="repeatability", name="bitwise", passed=True, message=message)
        prepared, _ = self._cases.prepare(NORMAL, self._options.seed)
        values = prepared.values if prepared is not None else draw(self._task, OWN, self.seed, self._executor.device)
        first = {name: each.clone() for name, each in self._run(values, self._slot(), fresh=False).outputs.items()}
        for _ in range(REPEATS):
            again = self._run(values, self._slot(), fresh=False)
            apart = sum(differing(first[name], each) for name, each in again.outputs.items())
            if apart:
                message = (
                    f"{apart} of {sum(each.numel() for each in first.values())} outputs differ between two runs on equal "
                    "inputs; declare atomics in the plan if sums are combined in arrival order, or fix a data race"
                )
                return TestResult(tier="repeatability", name="bitwise", passed=False, worst=float(apart), message=message)
        return TestResult(tier="repeatability", name="bitwise", passed=True)

    def _dependency(self) -> TestResult:
        """Between a producer that triggers early and writes late, and a consumer that reads as soon as it may."""
        for _ in range(self._traits.dependent_runs):
            prepared = self._any_case()
            if prepared is None:
                break
            decoy = draw(self._task, self._random.choice(_FRESH), self._draw(), self._executor.device)
            self._runs += 1
            run = self._executor.run_dependent(prepared.values, decoy)
            failed = self._verdict("programmatic", "late-producer", run, prepared.judge.judge(run))
            if failed is not None:
                return failed
        return TestResult(tier="programmatic", name="late-producer", passed=True)

    def _run(self, values: Inputs, slot: int, fill: Fill = Fill.POISON, *, fresh: bool = True) -> Run:
        self._runs += 1
        return self._executor.run(values, slot=slot, fill=fill, fresh_scratch=fresh)

    def _verdict_on(
        self, tier: str, name: str, prepared: DrawnCase, slot: int, fill: Fill = Fill.POISON, *, fresh: bool = True
    ) -> tuple[TestResult | None, Verdict]:
        """Run a case, and judge the run. What should be NaN and holds the poison counts as unwritten if it holds the next run's
        poison too: a computed value does not follow the poison.
        """
        run = self._run(prepared.values, slot, fill, fresh=fresh)
        verdict = prepared.judge.judge(run)
        if not run.violations and verdict.wrong and verdict.wrong == verdict.unwritten_nan:
            run = self._run(prepared.values, slot, fill, fresh=fresh)
            verdict = prepared.judge.judge(run)
        return self._verdict(tier, name, run, verdict), verdict

    def _verdict(self, tier: str, name: str, run: Run, verdict: Verdict) -> TestResult | None:
        """The failure that a run shows, None where it shows none. Faults of memory are reported before wrong results."""
        if run.violations:
            first = run.violations[0]
            message, symptoms = f"{first.message} (in {tier} {name})", Symptoms(waits=first.waits) if first.waits else None
            return TestResult(tier=first.tier, name=first.kind, passed=False, message=message, symptoms=symptoms)
        if verdict.unwritten and tier != "programmatic":
            return TestResult(tier="guards", name="unwritten", passed=False, message=f"{verdict.describe()} (in {tier} {name})")
        if not verdict.right:
            return TestResult(tier=tier, name=name, passed=False, worst=verdict.worst, message=verdict.describe())
        return None

    def _slot(self) -> int:
        return self._random.randrange(SLOTS)

    def _draw(self) -> int:
        return self._random.getrandbits(48)
