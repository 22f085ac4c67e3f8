"""Seeds: drawn from the system's entropy by default, recorded, and sufficient to reproduce a failure."""

import numpy as np
import pytest

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.cases import GAUSSIAN, CaseStore, cases_for
from cudal2_agent.sandbox.verification.draws import SEED_BITS, seed_of
from cudal2_agent.sandbox.verification.executor import Fill, Traits
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.tiers import Proof
from tests.sandbox.verification.in_memory import InMemoryExecutor, Memory, honest, prove

TASK = GemmTask(m=24, n=40, k=48)


class Watched(InMemoryExecutor):
    """Keeps the inputs of every run."""

    def __init__(self, task, kernel):
        super().__init__(task, kernel)
        self.runs: list[tuple[int, Fill, bytes, bytes]] = []

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True):
        self.runs.append((slot, fill, inputs.a.tobytes(), inputs.b.tobytes()))
        return super().run(inputs, slot=slot, fill=fill, fresh_workspace=fresh_workspace)


def proof(seed, kernel=honest, store=None):
    """The runs and results of one proof."""
    executor = Watched(TASK, kernel)
    made = Proof(executor, TASK, Traits(programmatic=True), store or CaseStore(np, TASK, 2**26), VerifyOptions(seed=seed))
    return executor.runs, list(made.tests()), made.freshness("after-timing")


def test_a_seed_repeats_every_run():
    assert proof(5) == proof(5)


@pytest.mark.parametrize("seeds", [(5, 6), (None, None)])
def test_without_it_nothing_is_the_same(seeds):
    (one, *_), (other, *_) = (proof(seed) for seed in seeds)
    assert not {run[2] for run in one} & {run[2] for run in other}
    assert [run[:2] for run in one] != [run[:2] for run in other] or len(one) != len(other)


def test_nothing_is_foreseen_from_the_task_or_the_candidates_name():
    prepared = [CaseStore(np, TASK, 2**26).prepare(GAUSSIAN) for _ in range(4)]
    assert len({each.inputs.a.tobytes() for each in prepared}) == 4
    assert len({seed_of(VerifyOptions()) for _ in range(100)}) == 100
    assert all(seed_of(VerifyOptions()) < 2**SEED_BITS for _ in range(100))
    assert seed_of(VerifyOptions(seed=0)) == 0


def test_fixed_cases_are_kept_between_candidates_and_fresh_data_is_not():
    store = CaseStore(np, TASK, 2**26)
    (one, tests, _), (other, again, _) = (proof(None, store=store) for _ in range(2))
    cases = len(cases_for(TASK))
    assert {run[2] for run in one[:cases]} == {run[2] for run in other[:cases]}
    later = [{run[2] for run in runs[cases:]} - {run[2] for run in runs[:cases]} for runs in (one, other)]
    assert not later[0] & later[1]
    assert {test.seed for test in tests[:cases]} == {test.seed for test in again[:cases]}
    assert {test.seed for test in tests[cases + 1 :]} != {test.seed for test in again[cases + 1 :]}


def test_a_given_seed_is_used_for_kept_cases_too():
    store = CaseStore(np, TASK, 2**26)
    proof(None, store=store)
    assert proof(9, store=store)[0] == proof(9)[0]


def test_the_order_of_the_cases_and_the_buffers_are_drawn():
    runs = [proof(seed) for seed in range(12)]
    assert len({tuple(test.name for test in tests) for _, tests, _ in runs}) > 6
    assert len({tuple(run[0] for run in one) for one, _, _ in runs}) > 6
    assert all([test.name for test in tests][:2] == ["zero-one", "wide-sums"] for _, tests, _ in runs)


def odd(task, memory: Memory):
    """Wrong on about one of eight input sets, depending on the data."""
    honest(task, memory)
    if int(memory.a.astype(np.int64).sum() + memory.b.astype(np.int64).sum()) % 8 == 3:
        memory.d[0, 0] ^= 0x0400


def test_a_failure_is_seen_again_with_the_seed_of_its_test():
    seen = 0
    for _ in range(12):
        last = prove(TASK, odd, seed=None)[-1]
        if last.passed:
            continue
        seen += 1
        executor = InMemoryExecutor(TASK, odd)
        again = Proof(executor, TASK, Traits(), CaseStore(np, TASK, 2**26), VerifyOptions(seed=last.seed))
        failed = [test for test in again.tests() if not test.passed]
        assert (last.tier, last.name) in [(test.tier, test.name) for test in failed]
    assert seen, "a kernel that is wrong one time in eight was never caught in 12 proofs"


def test_records_of_earlier_versions_load():
    assert TestResult.model_validate_json('{"tier": "exact", "name": "zero-one", "passed": true}').seed is None
    assert VerifyOptions.model_validate_json('{"seed": 0, "rounds": 3}').seed == 0
