"""The pools of operands with numpy in place of cupy, and the trusted kernels written again after their comments."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.guard.placement import PAGE_BYTES
from cudal2_agent.sandbox.cuda.timing import operand_pools as module
from cudal2_agent.sandbox.cuda.timing import outputs
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch, set_bytes
from cudal2_agent.sandbox.cuda.timing.track import Track
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.cuda.timing.test_outputs import Trusted as Projecting
from tests.sandbox.verification.in_memory import product

COUNT = 3


class Mapping:
    made: list[tuple[str, int]] = []

    def __init__(self, size_bytes, _device, name, *, sealed=False):
        self.name, self.read_only, self.closed, self.size_bytes = name, sealed, False, size_bytes
        self._memory = np.zeros(size_bytes, np.uint8)
        self.made.append((name, size_bytes))

    def bytes(self):
        return self._memory

    writer = bytes

    def close(self):
        self.closed = True


class Trusted(Projecting):
    def fill_operands(self, matrices, numbers, first=0):
        for index in range(len(matrices)):
            matrix, rng = matrices[index], np.random.default_rng([numbers.key, first + index])
            rows, columns = matrix.shape[::-1] if numbers.transposed else matrix.shape
            values = rng.standard_normal((rows, columns)) * numbers.scale
            if numbers.ones:
                values = rng.random((rows, columns)) < numbers.ones
            bits = encode(np, values.astype(np.float32), ElementType.BF16 if numbers.bf16 else ElementType.F16)
            matrix[...] = bits.T if numbers.transposed else bits

    def fill_ring(self, data, key):
        data[...] = np.random.default_rng(key).integers(0, 256, data.size, np.uint8)

    def zero_slots(self, data, words, size_bytes):
        for start in words:
            data[8 * int(start) :][:size_bytes] = 0

    def count_nonzero(self, data, words, size_bytes):
        return sum(np.count_nonzero(data[8 * int(start) :][:size_bytes]) for start in words)

    def strays(self, data, key, owned):
        filled = np.empty_like(data)
        self.fill_ring(filled, key)
        changed = (filled != data).reshape(-1, 16).any(axis=1)
        return (changed & (np.repeat(owned, 16) == 0)).sum(keepdims=True, dtype=np.uint64)

    def checksum(self, data, key):
        return np.array([hash((data.tobytes(), key)) % 2**64], np.uint64)


@pytest.fixture(autouse=True)
def numpy_for_cupy(monkeypatch):
    class Sums(np.ndarray):
        def get(self):
            return self

    together = SimpleNamespace(
        concatenate=lambda sums: np.concatenate(sums).view(Sums),
        empty=np.empty,
        zeros=np.zeros,
        uint8=np.uint8,
        asarray=np.asarray,
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
    found = OperandPools(task, COUNT, 0, Trusted(), random.Random(5))
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
    assert 0 <= sum(sizes) - COUNT * set_bytes(task) <= COUNT * PAGE_BYTES * len(sizes), "but for the places' spread"
    assert [name for name, _ in Mapping.made] == ["A", "B", "B"] + (["A"] if task.layout is Layout.NT else [])


@pytest.mark.parametrize("layout", Layout)
def test_a_change_of_what_the_candidate_reads_is_seen(layout):
    pools = OperandPools(GemmTask(m=24, n=40, k=56, layout=layout), COUNT, 0, Trusted(), random.Random(5))
    pools.renew(random.Random(2))
    assert pools.changed() is None
    for array, name in zip(Operands(**pools.operands((1, 2)), d=None).stored(layout), "AB", strict=True):
        array.view(np.uint16)[-1, -1] ^= 1
        assert pools.changed() == f"input {name} was changed"
        array.view(np.uint16)[-1, -1] ^= 1
    pools.close()


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "reads A by rows"])
def test_the_judge_of_timed_outputs_follows_the_layout(task, pools, wrong):
    """A track binds pairs; a kernel reads its own layout only; the judge compares with the operands by rows."""
    launches = [TimedLaunch(0, 1, 2), TimedLaunch(1, 2, 0), TimedLaunch(2, 0, 1)]
    track = Track.__new__(Track)
    track.task, track.pools, track._outputs = task, pools, {}
    track.ring = Ring("D", 2 * task.m * task.n, len(launches), 0, Trusted(), random.Random(6))

    def kernel(operands):
        a, b = (array.view(np.uint16) for array in operands.stored(task.layout))
        if task.layout.transposes_a:
            a = a.reshape(task.m, task.k) if wrong else a.T
        elif wrong:
            a = a.reshape(task.k, task.m).T
        operands.d.view(np.uint16)[...] = product(task, a, b.T if task.layout.transposes_b else b)
        return operands

    bound = track.bind(SimpleNamespace(bind=kernel), launches, None)
    told = OutputJudge(task, pools, track.ring, Trusted()).project(launches, random.Random(3))
    assert (told.fault is not None) is wrong
    if not wrong:
        a, b = (decode(np, bits, task.element) for bits in (pools.a[1], pools.b_nn[2]))
        assert np.allclose(decode(np, bound[1].d.view(np.uint16), task.element), a @ b, rtol=0.02, atol=0.1)


def filled_ring(size_bytes=600, slots=5, zero_bytes=0):
    ring = Ring("workspace", size_bytes, slots, 0, Trusted(), random.Random(7), zero_bytes=zero_bytes)
    ring.refill(1)
    return ring


def test_all_of_a_ring_is_filled_anew():
    ring = filled_ring()
    ring.memory[...] = 0
    ring.refill(2)
    assert np.count_nonzero(ring.memory) > 0.99 * ring.memory.size, (
        "what lies between slots, and slots that no launch uses, too"
    )


def test_bytes_that_are_to_be_restored_are_zero_in_every_slot():
    ring = filled_ring(zero_bytes=24)
    assert all(not ring.slot(slot)[:24].any() and ring.slot(slot)[24:].any() for slot in range(ring.slots))
    assert ring.unrestored() == 0
    ring.slot(3)[23] = 9
    assert ring.unrestored() == 1


def test_a_write_into_the_slot_of_another_launch_is_seen():
    ring = filled_ring(zero_bytes=24)
    owned = ring.owned()
    ring.give(owned, 2)
    ring.slot(2)[...] ^= 0xFF
    assert ring.strays(owned) == 0
    ring.slot(4)[300] ^= 1
    assert ring.strays(owned) == 1
    ring.give(owned, 4)
    assert ring.strays(owned) == 0
    ring.memory[ring.starts[0] - 256] ^= 1
    assert ring.strays(owned) == 1, "between the slots"


def test_marks_of_a_ring_without_zeros_are_made_where_they_are_used(monkeypatch):
    ring = filled_ring()
    monkeypatch.setattr(module.cupy, "asarray", lambda _: pytest.fail("one byte of 256 of a ring of gigabytes, from the host"))
    assert ring.strays(ring.owned()) == 0


def test_old_operands_are_other_numbers_and_can_be_made_again(task, pools):
    pair, before = (1, 2), pools.changed()
    own = Operands(**pools.operands(pair), d=None).stored(task.layout)
    wanted = [array.copy() for array in own]
    kinds = set()
    for seed in range(8):
        pools.make_old(pair, random.Random(seed))
        assert all((now != then).mean() > 0.3 for now, then in zip(own, wanted, strict=True))
        kinds.add(set(np.unique(own[0].view(np.uint16))) <= {0, int(encode(np, np.ones(1), task.element)[0])})
    assert kinds == {True, False}, "whole numbers as in the tests, and normal ones as in the timer"
    assert (before, pools.changed() is None) == (None, False)
