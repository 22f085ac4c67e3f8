"""The tiers on kernels in host memory: honest ones pass, each wrong one fails its tier."""

import numpy as np
import pytest

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.cases import CaseStore
from cudal2_agent.sandbox.verification.elements import decode, encode
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof
from tests.sandbox.verification.in_memory import InMemoryExecutor, Memory, honest, product, prove

TASK = GemmTask(m=40, n=56, k=96)


def _tier(tests):
    assert not tests[-1].passed, "no test failed"
    assert tests[-1].message
    return tests[-1].tier


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize(
    "task",
    [
        TASK,
        GemmTask(m=37, n=53, k=71),
        GemmTask(m=1, n=1, k=1),
        GemmTask(m=1, n=130, k=2),
        GemmTask(m=3, n=2, k=20000),
        GemmTask(m=33, n=17, k=4100, element="bf16"),
        GemmTask(m=33, n=17, k=71, element="bf16"),
        GemmTask(m=24, n=40, k=512, accumulate="f16"),
        GemmTask(m=24, n=40, k=4096, accumulate="f16"),
        GemmTask(m=40, n=56, k=96, bias=True),
        GemmTask(m=37, n=53, k=711, element="bf16", bias=True),
        GemmTask(m=3, n=1, k=20000, bias=True),
    ],
    ids=lambda value: getattr(value, "shape", str(value)),
)
def test_honest_kernel_passes_every_tier(task, library):
    tests = prove(task, honest, library=library, traits=Traits(programmatic=True))
    assert all(test.passed for test in tests), tests[-1]
    assert [test.tier for test in tests][-1] == "programmatic"


@pytest.mark.parametrize("seed", range(5))
def test_honest_kernel_passes_with_any_seed(seed):
    assert all(test.passed for test in prove(TASK, honest, seed=seed))


@pytest.mark.parametrize("chunk", [1, 7, 96])
def test_order_of_accumulation_does_not_matter(chunk):
    def kernel(task, memory: Memory):
        memory.d[:] = product(task, memory.a, memory.b, chunk=chunk)

    assert all(test.passed for test in prove(TASK, kernel))


@pytest.mark.parametrize("k", [17, 32, 64, 96, 1024])
@pytest.mark.parametrize("chunk", [1, 16])
def test_f16_accumulation_fails_the_wide_sums(k, chunk):
    def kernel(task, memory: Memory):
        memory.d[:] = product(task, memory.a, memory.b, chunk=chunk, dtype=np.float16)

    tests = prove(GemmTask(m=40, n=56, k=k), kernel)
    assert (tests[-1].tier, tests[-1].name) == ("exact", "wide-sums")


def test_f16_accumulation_over_interleaved_halves_fails_too():
    """Accumulates K from both ends, so that cancelling terms meet early."""

    def kernel(task, memory: Memory):
        order = np.stack([np.arange(task.k // 2), task.k - 1 - np.arange(task.k // 2)], axis=1).ravel()
        memory.d[:] = product(task, memory.a[:, order], memory.b[order], dtype=np.float16)

    assert prove(GemmTask(m=40, n=56, k=128), kernel)[-1].name == "wide-sums"


def test_split_k_with_f16_partial_sums_fails():
    def kernel(task, memory: Memory):
        half = task.k // 2
        parts = [product(task, memory.a[:, part], memory.b[part], chunk=half) for part in (slice(0, half), slice(half, task.k))]
        memory.d[:] = encode(np, sum(decode(np, part, task.element) for part in parts), task.element)

    assert prove(TASK, kernel)[-1].name == "wide-sums"


def test_wide_sums_say_where_they_cannot_tell():
    tests = prove(GemmTask(m=8, n=8, k=16), honest)
    wide = next(test for test in tests if test.name == "wide-sums")
    assert "not applicable" in wide.message


def test_f16_task_has_no_wide_sums():
    tests = prove(GemmTask(m=24, n=40, k=64, accumulate="f16"), honest)
    assert "wide-sums" not in [test.name for test in tests]


def _wrong_k(task, memory: Memory):
    memory.d[:] = product(task, memory.a[:, :-1], memory.b[:-1])


def _transposed(task, memory: Memory):
    memory.d.reshape(-1)[:] = product(task, memory.a, memory.b).T.reshape(-1)


def _one_wrong(task, memory: Memory):
    honest(task, memory)
    memory.d[task.m - 1, task.n - 1] ^= 0x0400


def _only_small_integers(task, memory: Memory):
    left, right = decode(np, memory.a, task.element), decode(np, memory.b, task.element)
    memory.d[:] = encode(np, (left != 0).astype(np.float32) @ (right != 0).astype(np.float32), task.element)


@pytest.mark.parametrize("kernel", [_wrong_k, _transposed, _one_wrong, _only_small_integers])
def test_wrong_sums_fall_at_the_exact_tier(kernel):
    assert _tier(prove(TASK, kernel)) == "exact"


def test_message_names_the_place():
    message = prove(TASK, _one_wrong)[-1].message
    assert "1 of 2240 outputs" in message
    assert "rows 39-39, columns 55-55" in message


def _unwritten(task, memory: Memory):
    memory.d[:-1] = product(task, memory.a[:-1], memory.b)


def _past_the_end(task, memory: Memory):
    honest(task, memory)
    memory.d_band[-1] = 0


def _before_the_start(task, memory: Memory):
    honest(task, memory)
    memory.d_band[0] = 0


def _mutates(task, memory: Memory):
    honest(task, memory)
    memory.a[0, 0] ^= 1


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(_unwritten, "unwritten"), (_past_the_end, "canary"), (_before_the_start, "canary"), (_mutates, "input")],
)
def test_memory_faults_fall_at_the_guards(kernel, name):
    tests = prove(TASK, kernel)
    assert (tests[-1].tier, tests[-1].name) == ("guards", name)


def test_accumulating_onto_d_fails():
    def kernel(task, memory: Memory):
        old = decode(np, memory.d, task.element)
        memory.d[:] = encode(np, old + decode(np, product(task, memory.a, memory.b), task.element), task.element)

    assert _tier(prove(TASK, kernel)) == "guards"


def test_accumulating_onto_d_unless_it_is_nan_fails():
    def kernel(task, memory: Memory):
        old = decode(np, memory.d, task.element)
        sums = product(task, memory.a, memory.b)
        added = encode(np, old + decode(np, sums, task.element), task.element)
        memory.d[:] = np.where(np.isnan(old), sums, added)

    assert _tier(prove(TASK, kernel)) == "freshness"


def test_skipping_work_when_d_looks_done_fails():
    def kernel(task, memory: Memory):
        if np.isnan(decode(np, memory.d, task.element)).any():
            honest(task, memory)

    assert _tier(prove(TASK, kernel)) == "freshness"


def test_result_kept_in_the_workspace_fails():
    def kernel(task, memory: Memory):
        if "kept" not in memory.workspace:
            memory.workspace["kept"] = product(task, memory.a, memory.b)
        memory.d[:] = memory.workspace["kept"]

    assert _tier(prove(TASK, kernel)) == "freshness"


def test_result_kept_under_a_sample_of_the_inputs_fails():
    def kernel(task, memory: Memory):
        key = (memory.a[::8, ::8].tobytes(), memory.b[::8, ::8].tobytes())
        if memory.workspace.get("key") != key:
            memory.workspace.update(key=key, kept=product(task, memory.a, memory.b))
        memory.d[:] = memory.workspace["kept"]

    tests = prove(TASK, kernel)
    assert (tests[-1].tier, tests[-1].name) == ("freshness", "one-element-changed")


def test_undeclared_nondeterminism_fails_and_declared_passes():
    rng = np.random.default_rng(7)

    def kernel(task, memory: Memory):
        order = rng.permutation(task.k)
        memory.d[:] = product(task, memory.a[:, order], memory.b[order], chunk=1)

    task = GemmTask(m=128, n=128, k=512)
    assert _tier(prove(task, kernel)) == "repeatability"
    assert all(test.passed for test in prove(task, kernel, traits=Traits(atomics=True)))


def test_a_fault_of_memory_in_any_run_fails():
    def proved(faulty: int) -> tuple[int, bool]:
        runs = 0

        def kernel(task, memory: Memory):
            nonlocal runs
            honest(task, memory)
            memory.a[0, 0] ^= runs == faulty
            runs += 1

        tests = prove(TASK, kernel, traits=Traits(programmatic=True))
        return runs, all(test.passed for test in tests)

    runs, passed = proved(-1)
    assert passed
    assert [index for index in range(runs) if proved(index)[1]] == []


def test_missing_dependency_wait_fails():
    tests = prove(TASK, honest, waits=False, traits=Traits(programmatic=True))
    assert _tier(tests) == "programmatic"


def _whole(inputs):
    a = decode(np, inputs.a, TASK.element)
    return bool((a == np.rint(a)).all())


@pytest.mark.parametrize("waits", [_whole, lambda inputs: not _whole(inputs)], ids=["for whole numbers", "for others"])
def test_a_wait_that_depends_on_the_old_data_fails(waits):
    """Two runs suffice: their old data are of both kinds, and so are the new ones."""
    tests = prove(TASK, honest, waits=waits, traits=Traits(programmatic=True))
    assert _tier(tests) == "programmatic"


def test_a_backend_may_ask_for_more_dependent_runs():
    met = []
    traits = Traits(programmatic=True, dependent_runs=12)
    assert all(test.passed for test in prove(TASK, honest, waits=lambda old: met.append(_whole(old)) or True, traits=traits))
    assert (len(met), met.count(True)) == (12, 6)


def _flushes_subnormals(task, memory: Memory):
    a = decode(np, memory.a, task.element)
    flushed = encode(np, np.where(np.abs(a) < 2.0**-14, 0, a), task.element)
    memory.d[:] = product(task, flushed, memory.b)


def test_a_property_that_cublas_lacks_is_not_asked():
    """The library flushes subnormals too: the chip does not guarantee them, and the message says so."""

    class Flushing(InMemoryExecutor):
        def library(self, inputs):
            memory = self._allocate()
            memory.a[:], memory.b[:] = inputs.a, inputs.b
            _flushes_subnormals(self._task, memory)
            return memory.d

    executor = Flushing(TASK, _flushes_subnormals)
    proof = Proof(executor, TASK, Traits(), CaseStore(np, TASK, 2**28), VerifyOptions())
    tests = run_until_failure(proof.tests())
    assert all(test.passed for test in tests), tests[-1]
    assert "not applicable" in next(test for test in tests if test.name == "extremes").message


def test_double_rounding_of_large_sums_fails_somewhere():
    """An epilogue that truncates instead of rounding is wrong."""

    def kernel(task, memory: Memory):
        total = decode(np, memory.a, task.element) @ decode(np, memory.b, task.element)
        nearest = total.astype(np.float16).astype(np.float32)
        nudged = np.where(np.abs(nearest) > np.abs(total), np.nextafter(np.float16(nearest), np.float16(0)), nearest)
        memory.d[:] = encode(np, nudged, task.element)

    assert _tier(prove(TASK, kernel)) == "accuracy"


def _briefly(kernel):
    executor = InMemoryExecutor(TASK, kernel)
    return run_until_failure(Proof(executor, TASK, Traits(), CaseStore(np, TASK, 2**28), VerifyOptions()).brief())


def test_a_brief_proof_is_one_exact_test_under_guard():
    assert [(test.tier, test.name) for test in _briefly(honest)] == [("exact", "zero-one"), ("guards", "all-runs")]
    for kernel, failed in ((_wrong_k, "exact"), (_transposed, "exact"), (_past_the_end, "guards"), (_mutates, "guards")):
        assert _tier(_briefly(kernel)) == failed
