"""The pools of operands with numpy in place of cupy, and the trusted kernels written again after their comments."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.timing import operand_pools as module
from cudal2_agent.sandbox.cuda.timing import outputs
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge
from cudal2_agent.sandbox.cuda.timing.sample_plan import set_bytes
from cudal2_agent.sandbox.cuda.timing.track import Track
from cudal2_agent.sandbox.verification.elements import decode
from tests.sandbox.cuda.timing.test_outputs import Trusted as Projecting
from tests.sandbox.verification.in_memory import product

COUNT = 3


class Mapping:
    made: list[tuple[str, int]] = []

    def __init__(self, size_bytes, _device, name, *, sealed):
        assert sealed
        self.name, self.read_only, self.closed = name, True, False
        self._memory = np.zeros(size_bytes, np.uint8)
        self.made.append((name, size_bytes))

    def bytes(self):
        return self._memory

    writer = bytes

    def close(self):
        self.closed = True


class Trusted(Projecting):
    def fill_operands(self, pool, key, *, transposed, bf16, first=0):
        for index, matrix in enumerate(pool, first):
            rng = np.random.default_rng([key, index])
            rows, columns = matrix.shape[::-1] if transposed else matrix.shape
            numbers = rng.standard_normal((rows, columns)).astype(np.float32)
            bits = (numbers.view(np.uint32) >> 16).astype(np.uint16) if bf16 else numbers.astype(np.float16).view(np.uint16)
            matrix[...] = bits.T if transposed else bits

    def checksum(self, data, key):
        return np.array([hash((data.tobytes(), key)) % 2**64], np.uint64)


@pytest.fixture(autouse=True)
def numpy_for_cupy(monkeypatch):
    class Sums(np.ndarray):
        def get(self):
            return self

    together = SimpleNamespace(
        concatenate=lambda sums: np.concatenate(sums).view(Sums), lib=np.lib, empty=np.empty, uint16=np.uint16
    )
    Mapping.made.clear()
    monkeypatch.setattr(module, "cupy", together)
    monkeypatch.setattr(module, "Mapping", Mapping)
    monkeypatch.setattr(outputs, "cupy", np)


@pytest.fixture(params=[(layout, element) for layout in Layout for element in ElementType], ids="-".join)
def task(request):
    layout, element = request.param
    return GemmTask(m=24, n=40, k=56, layout=layout, element=element)


@pytest.fixture
def pools(task):
    found = OperandPools(task, COUNT, 0, Trusted())
    found.renew(random.Random(1))
    return found


def test_all_layouts_of_an_operand_hold_the_same_numbers(task, pools):
    for pair in ((0, 1), (2, 2)):
        held, again = pools.operands(pair), pools.made_again(pair)
        wanted = {"a": again.a, "b_nn": again.b, "b_tn": again.b.T} | ({"a_nt": again.a.T} if task.layout is Layout.NT else {})
        assert held.keys() == wanted.keys()
        for name, array in held.items():
            assert array.flags.c_contiguous, "a kernel reads it without strides"
            assert array.view(np.uint16).tolist() == wanted[name].tolist()


@pytest.mark.usefixtures("pools")
def test_the_pools_take_the_memory_that_was_planned(task):
    sizes = [size for _, size in Mapping.made]
    assert 0 <= sum(sizes) - COUNT * set_bytes(task) < COUNT * 256 * len(sizes), "but for the slots' alignment"
    assert [name for name, _ in Mapping.made] == ["A", "B", "B"] + (["A"] if task.layout is Layout.NT else [])


@pytest.mark.parametrize("layout", Layout)
def test_a_change_of_what_the_candidate_reads_is_seen(layout):
    pools = OperandPools(GemmTask(m=24, n=40, k=56, layout=layout), COUNT, 0, Trusted())
    pools.renew(random.Random(2))
    assert pools.changed() is None
    for array, name in zip(Operands(**pools.operands((1, 2)), d=None).stored(layout), "AB", strict=True):
        array.view(np.uint16)[-1, -1] ^= 1
        assert pools.changed() == f"input {name} was changed"
        array.view(np.uint16)[-1, -1] ^= 1
    pools.close()


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "reads A by rows"])
def test_the_judge_of_timed_outputs_follows_the_layout(monkeypatch, task, pools, wrong):
    """A track binds pairs; a kernel reads its own layout only; the judge compares with the operands by rows."""
    pairs = [(0, 1), (1, 2), (2, 0)]
    track = Track.__new__(Track)
    track.task, track.pools, track._outputs = task, pools, {}
    ring = np.zeros((len(pairs), task.m, task.n), np.uint16)
    track.ring = SimpleNamespace(slot=lambda slot: ring[slot].reshape(-1).view(np.uint8), memory=None, slots=len(pairs))

    def kernel(operands):
        a, b = (array.view(np.uint16) for array in operands.stored(task.layout))
        if task.layout.transposes_a:
            a = a.reshape(task.m, task.k) if wrong else a.T
        elif wrong:
            a = a.reshape(task.k, task.m).T
        operands.d.view(np.uint16)[...] = product(task, a, b.T if task.layout.transposes_b else b)
        return operands

    bound = track.bind(SimpleNamespace(bind=kernel), pairs, None)
    assert [one.d.view(np.uint16).tolist() for one in bound] == ring.tolist()
    monkeypatch.setattr(outputs, "matrices", lambda *_: ring)
    told = OutputJudge(task, pools, track.ring, Trusted()).project(pairs, random.Random(3))
    assert (told is not None) is wrong
    if not wrong:
        a, b = (decode(np, bits, task.element) for bits in (pools.a[1], pools.b_nn[2]))
        assert np.allclose(decode(np, ring[1], task.element), a @ b, rtol=0.02, atol=0.1)
