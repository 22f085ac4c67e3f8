"""The tests of a module over a `ModuleExecutor` (`sandbox/verification/tiered_proof.py`), and the cases that they share.

Covered: wrong results on every case, within bounds; unwritten and overwritten memory, changed inputs; results kept between
runs, inputs and parameters drawn anew in each; results that differ between runs; missing dependency waits; states after a run.
Not covered: what `sandbox/verification/tiers.py` does not cover.
"""

from collections.abc import Iterator

import torch

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.modules.bounds import Verdict
from cudal2_agent.sandbox.modules.cases import CASES, NORMAL, OWN, TIES, UNEVEN, WHOLE, Case, Inputs, draw
from cudal2_agent.sandbox.modules.executor import ModuleExecutor, Run, differing
from cudal2_agent.sandbox.modules.pieces import judge_of
from cudal2_agent.sandbox.modules.prepared import DrawnCase, prepare
from cudal2_agent.sandbox.verification.draws import seed_of
from cudal2_agent.sandbox.verification.executor import Fill, Traits
from cudal2_agent.sandbox.verification.tiered_proof import REPEATS, TieredProof

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


class ModuleProof(TieredProof[Case, Run, Verdict]):
    """One contender's tests."""

    _draw_bits = 48

    def __init__(self, executor: ModuleExecutor, cases: PreparedCases, traits: Traits, options: VerifyOptions) -> None:
        super().__init__(traits, options)
        self._executor, self._cases, self._task = executor, cases, cases.task

    def _order(self) -> Iterator[Case]:
        yield CASES[0]
        yield from self._random.sample(CASES[1:], len(CASES) - 1)

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
            fill, fresh = self._round_fill(index)
            failed, verdict = self._verdict_on("freshness", f"round-{index}", prepared, slot, fill, fresh=fresh)
            if failed is not None:
                return failed
            worst = max(worst, verdict.worst)
        return TestResult(tier="freshness", name=name, passed=True, worst=worst)

    def _any_case(self) -> DrawnCase | None:
        """A case of the freshness tier on data of its own."""
        found = (self._cases.fresh(case, self._draw()) for case in self._random.sample(_FRESH, len(_FRESH)))
        return next((prepared for prepared in found if prepared is not None), None)

    def _one_element(self) -> TestResult:
        """One element of one input is changed, then one of one parameter.

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
                failed = self._failure("freshness", name, run, changed.judge.judge(run))
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

    def _equal_runs(self) -> Iterator[tuple[Run, int, int]]:
        prepared, _ = self._cases.prepare(NORMAL, self._options.seed)
        values = prepared.values if prepared is not None else draw(self._task, OWN, self.seed, self._executor.device)
        first: dict[str, torch.Tensor] = {}
        for _ in range(REPEATS + 1):
            run = self._run(values, self._slot(), fresh=False)
            first = first or {name: each.clone() for name, each in run.outputs.items()}
            different = sum(differing(first[name], each) for name, each in run.outputs.items())
            yield run, sum(each.numel() for each in first.values()), different

    def _dependency(self) -> TestResult:
        for _ in range(self._traits.dependent_runs):
            prepared = self._any_case()
            if prepared is None:
                break
            decoy = draw(self._task, self._random.choice(_FRESH), self._draw(), self._executor.device)
            self._runs += 1
            run = self._executor.run_dependent(prepared.values, decoy)
            failed = self._failure("programmatic", "late-producer", run, prepared.judge.judge(run))
            if failed is not None:
                return failed
        return TestResult(tier="programmatic", name="late-producer", passed=True)

    def _run(self, values: Inputs, slot: int, fill: Fill = Fill.POISON, *, fresh: bool = True) -> Run:
        self._runs += 1
        return self._executor.run(values, slot=slot, fill=fill, fresh_scratch=fresh)

    def _verdict_on(
        self, tier: str, name: str, prepared: DrawnCase, slot: int, fill: Fill = Fill.POISON, *, fresh: bool = True
    ) -> tuple[TestResult | None, Verdict]:
        """Run a case, and judge the run."""
        run, verdict = self._settled(lambda: self._run(prepared.values, slot, fill, fresh=fresh), prepared.judge.judge)
        return self._failure(tier, name, run, verdict), verdict
