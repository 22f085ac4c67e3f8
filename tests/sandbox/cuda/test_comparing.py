"""The GPU executor's bookkeeping on numpy buffers: loading, poison, kept data and reports of a run."""

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda import verifier as module
from cudal2_agent.sandbox.cuda.guard import buffers
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded, GuardedOperands, address
from cudal2_agent.sandbox.cuda.guard.placement import PAGE_BYTES, room_bytes
from cudal2_agent.sandbox.cuda.verifier import CudaExecutor
from cudal2_agent.sandbox.verification.cases import CaseStore
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.executor import SLOTS, Fill, Traits
from cudal2_agent.sandbox.verification.inputs import gaussian
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof
from tests.sandbox.verification.in_memory import product


class Contender:
    """A contender whose kernel is a function of its bound operands."""

    name, atomics, altered = "double", False, staticmethod(lambda: ())

    def __init__(self, kernel, *, workspace_bytes=0, zero=False, zero_bytes=0, programmatic=False):
        self.kernel, self.programmatic = kernel, programmatic
        self.workspace_bytes, self.zero, self.zero_bytes = workspace_bytes, zero, zero_bytes

    def bind(self, operands):
        return SimpleNamespace(enqueue=lambda _stream: self.kernel(operands))


class Bystanders:
    """A producer that writes the operands before or after the candidate runs, and a consumer."""

    def __init__(self, *, late=False):
        self._late, self._pending = late, None

    def compile(self):
        pass

    def produce(self, late, operands, _d, _d_old, early_writes):
        self._pending = (late, operands)
        if self._late:
            early_writes[0] = 3
        else:
            self._put()

    def consume(self, d, seen, _stream):
        self._put()
        seen[...] = d

    def _put(self):
        for new, place in zip(*self._pending, strict=True):
            place[...] = new


@pytest.fixture(params=[("f16", "nn"), ("f16", "tn"), ("bf16", "tn"), ("f16", "nt"), ("bf16", "nt")], ids="-".join)
def task(request):
    element, layout = request.param
    return GemmTask(m=24, n=40, k=48, element=element, layout=layout)


@pytest.fixture(autouse=True)
def numpy_for_cupy(monkeypatch):
    monkeypatch.setattr(module, "cupy", np)
    monkeypatch.setattr(module, "map_guarded", lambda *_, **__: lambda _name, size_bytes: Guarded(size_bytes, np))
    monkeypatch.setattr(CudaExecutor, "xp", np)


def verify(task, contender, bystanders=None):
    device = SimpleNamespace(index=0, stream=SimpleNamespace(ptr=0), synchronize=lambda: None)
    slots = tuple(GuardedOperands(task, xp=np) for _ in range(SLOTS))
    executor = CudaExecutor(task, device, contender, slots, None, bystanders or Bystanders(), random.Random(3))
    traits = Traits(programmatic=contender.programmatic)
    return run_until_failure(Proof(executor, task, traits, CaseStore(np, task, 2**26), VerifyOptions()).tests())


def compute(task, operands):
    a, b = (array.view(np.uint16) for array in operands.stored(task.layout))
    a, b = a.T if task.layout.transposes_a else a, b.T if task.layout.transposes_b else b
    operands.d.view(np.uint16)[...] = product(task, a, b)


def test_honest_contender_passes(task):
    tests = verify(task, Contender(partial(compute, task), programmatic=True))
    assert all(test.passed for test in tests), tests[-1]
    assert tests[-1].tier == "programmatic"


def test_writing_d_before_the_producer_is_done_fails(task):
    tests = verify(task, Contender(partial(compute, task), programmatic=True), Bystanders(late=True))
    assert (tests[-1].passed, tests[-1].tier, tests[-1].name) == (False, "programmatic", "order")


def test_a_dependent_run_finds_poison_or_the_right_product_of_the_old_operands(task):
    found = set()

    def kernel(operands):
        found.add(len(np.unique(operands.d.view(np.uint16))) == 1)
        compute(task, operands)

    device = SimpleNamespace(index=0, stream=SimpleNamespace(ptr=0), synchronize=lambda: None)
    slots = tuple(GuardedOperands(task, xp=np) for _ in range(SLOTS))
    contender = Contender(kernel, programmatic=True)
    executor = CudaExecutor(task, device, contender, slots, None, Bystanders(), random.Random(3))
    new, old = (gaussian(Draws(np, seed), task) for seed in (1, 2))
    for _ in range(12):
        run = executor.run_dependent(new, old)
        assert run.output.tolist() == product(task, new.a, new.b).tolist()
        assert not run.violations
    assert found == {True, False}


@pytest.mark.parametrize("mapped", [False, True])
def test_a_run_moves_its_buffers_unless_it_is_to_find_what_the_last_one_left(monkeypatch, mapped):
    task, addresses = GemmTask(m=24, n=40, k=48), []

    def made(_name, size):
        memory = np.zeros(room_bytes(size), np.uint8)
        return Guarded(size, np, mapping=SimpleNamespace(bytes=lambda: memory, writer=lambda: memory) if mapped else None)

    def kernel(operands):
        addresses.append(tuple(address(array) for array in (operands.a, operands.b_nn, operands.d, operands.workspace)))
        compute(task, operands)

    monkeypatch.setattr(module, "map_guarded", lambda *_: made)
    device = SimpleNamespace(index=0, stream=SimpleNamespace(ptr=0), synchronize=lambda: None)
    slots = tuple(GuardedOperands(task, xp=np, make=made) for _ in range(SLOTS))
    contender = Contender(kernel, workspace_bytes=256)
    executor = CudaExecutor(task, device, contender, slots, None, Bystanders(), random.Random(3))
    inputs = gaussian(Draws(np, 1), task)
    for fill, fresh in ((Fill.POISON, True), (Fill.STALE, False), (Fill.ZERO, False), (Fill.POISON, True)):
        assert not executor.run(inputs, fill=fill, fresh_workspace=fresh).violations
    first, kept, moved, again = addresses
    assert first == kept
    assert (moved[3] == first[3], moved[:3] != first[:3]) == (True, mapped)
    assert (len(set(addresses)) == 3) is mapped
    assert (again[3] != moved[3]) is mapped


@pytest.mark.parametrize("shape", [(24, 40, 48), (48, 40, 48)], ids=["oblong", "M = K"])
def test_reading_a_as_if_it_lay_by_rows_fails(shape):
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, layout="nt")

    def kernel(operands):
        a, b = (array.view(np.uint16) for array in operands.stored(task.layout))
        operands.d.view(np.uint16)[...] = product(task, a.reshape(m, k), b)

    tests = verify(task, Contender(kernel))
    assert (tests[-1].passed, tests[-1].tier) == (False, "exact")


def test_stray_write_is_told_with_its_distance(task, monkeypatch):
    monkeypatch.setattr(buffers, "_drawn_bytes", lambda xp: xp.full(3 * PAGE_BYTES, 0xA5, dtype=xp.uint8))  # no byte of it is 0

    def kernel(operands):
        compute(task, operands)
        outside = np.lib.stride_tricks.as_strided(operands.d.view(np.uint16), (task.m * task.n + 1,), (2,), writeable=True)
        outside[-1] = 0

    tests = verify(task, Contender(kernel))
    assert (tests[-1].tier, tests[-1].name) == ("guards", "canary")
    assert "1 byte(s) past its end" in tests[-1].message


def test_changed_input_is_told(task):
    def kernel(operands):
        compute(task, operands)
        operands.stored(task.layout)[0].view(np.uint16)[0, 0] ^= 1

    assert verify(task, Contender(kernel))[-1].name == "input"


def test_workspace_is_poisoned_unless_zero_was_promised(task):
    def kernel(operands):
        assert (operands.workspace[:64] == 0).all()
        assert (operands.workspace[64:] == 0xFF).all()
        compute(task, operands)

    assert verify(task, Contender(kernel, workspace_bytes=256, zero="restored", zero_bytes=64))[-1].passed


def test_workspace_left_dirty_fails_where_zero_was_promised_back(task):
    def kernel(operands):
        compute(task, operands)
        operands.workspace[5] = 1

    tests = verify(task, Contender(kernel, workspace_bytes=256, zero="restored", zero_bytes=64))
    assert (tests[-1].tier, tests[-1].name) == ("guards", "workspace")


def test_result_kept_in_the_workspace_fails(task):
    def kernel(operands):
        if (operands.workspace == 0xFF).all():
            compute(task, operands)
            operands.workspace[:] = operands.d.view(np.uint8).ravel()
        operands.d.view(np.uint8).ravel()[:] = operands.workspace

    tests = verify(task, Contender(kernel, workspace_bytes=2 * task.m * task.n))
    assert tests[-1].tier == "freshness"
