"""Launches after the rounds, on numpy's memory: what a launch does to others, and what it does before its predecessor ends."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.timing import aftermath as module
from cudal2_agent.sandbox.cuda.timing import operand_pools, outputs
from cudal2_agent.sandbox.cuda.timing import track as track_module
from cudal2_agent.sandbox.cuda.timing.aftermath import LAUNCHES, Aftermath
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge
from cudal2_agent.sandbox.cuda.timing.sample_plan import draw_launches
from cudal2_agent.sandbox.cuda.timing.track import Track
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.cuda.timing.test_operand_pools import Mapping, Trusted

TASK = GemmTask(m=8, n=12, k=16, layout="tn")
COUNT = 20


class Late(Trusted):
    """A predecessor that writes when the consumer is enqueued: the launch between them sees what is old."""

    def __init__(self):
        self.pending = None

    def late_operands(self, inputs, d, before, early, _delay_ns):
        def write():
            early[0] = np.count_nonzero(d != before)
            for matrices, numbers, index in inputs:
                one = operand_pools.Matrices(matrices.memory, [matrices.starts[index]], matrices.rows, matrices.columns)
                self.fill_operands(one, numbers, first=index)

        self.pending = write


class Bystanders:
    def __init__(self, trusted, held):
        self._trusted, self._held = trusted, held

    def compile(self):
        pass

    def consume(self, d, seen, _stream):
        self._trusted.pending()
        while self._held:  # launches that wait for their predecessor
            self._held.pop()()
        seen[...] = d


@pytest.fixture
def bench(monkeypatch):
    """Runs a kernel of (operands, wait) after the rounds; `wait` postpones the rest until the predecessor has ended."""
    together = SimpleNamespace(
        empty=np.empty,
        zeros=np.zeros,
        uint8=np.uint8,
        asarray=np.asarray,
        concatenate=lambda sums: SimpleNamespace(get=lambda: np.concatenate(sums)),
    )
    monkeypatch.setattr(operand_pools, "cupy", together)
    monkeypatch.setattr(operand_pools, "Mapping", Mapping)
    monkeypatch.setattr(outputs, "cupy", np)
    monkeypatch.setattr(module, "cupy", np)
    monkeypatch.setattr(track_module, "cupy", np)

    def run(kernel, *, programmatic, seed=0):
        trusted, held, draw = Late(), [], random.Random(seed)
        track = Track.__new__(Track)
        track.task, track._outputs = TASK, {}
        waits = []
        track.device = SimpleNamespace(stream=SimpleNamespace(ptr=0), synchronize=lambda: waits.append(1))
        track.pools = OperandPools(TASK, COUNT, 0, trusted, random.Random(1))
        track.pools.renew(draw)
        track.ring = Ring("D", 2 * TASK.m * TASK.n, COUNT, 0, trusted, random.Random(2))
        track.__dict__["judge"] = OutputJudge(TASK, track.pools, track.ring, trusted)
        launches = draw_launches(COUNT, COUNT, COUNT, draw)
        workspaces = Ring("workspace", 512, COUNT, 0, trusted, random.Random(3))
        wait = held.append if programmatic else (lambda rest: rest())
        bind = lambda operands: SimpleNamespace(enqueue=lambda _stream: kernel(operands, wait))  # noqa: E731
        lane = SimpleNamespace(
            launches=launches,
            workspaces=workspaces,
            bounds=track.bind(SimpleNamespace(bind=bind), launches, workspaces),
        )
        contender = SimpleNamespace(programmatic=programmatic)
        found = Aftermath(track, contender, lane, Bystanders(trusted, held), draw).fault()
        assert found is not None or track.pools.changed() is None, "the operands are as they were"
        assert len(waits) <= (0 if programmatic else LAUNCHES), "the host waits for no single launch behind a predecessor"
        return found

    return run


def product(operands):
    a, b = (decode(np, array.view(np.uint16), TASK.element) for array in operands.stored(TASK.layout))
    return encode(np, a.astype(np.float64) @ b.T, TASK.element)


def write(operands):
    operands.d.view(np.uint16)[...] = product(operands)
    operands.workspace[...] = 7


def waits_first(operands, wait):
    wait(lambda: write(operands))


@pytest.mark.parametrize("programmatic", [True, False])
def test_an_honest_kernel_passes(bench, programmatic):
    assert bench(waits_first, programmatic=programmatic) is None


def whole(operands):
    a = decode(np, operands.a.view(np.uint16), TASK.element)
    return bool((a == np.rint(a)).all())


@pytest.mark.parametrize(
    "waits",
    [
        lambda _: False,
        whole,
        lambda operands: not whole(operands),
        lambda operands: operands.d.ctypes.data >> 8 & 1,
        lambda operands: operands.a.ctypes.data >> 9 & 3,
    ],
    ids=["never", "for whole numbers", "for others", "by a coin over D", "three times in four"],
)
def test_a_launch_that_reads_old_operands_is_refused(bench, waits):
    def kernel(operands, wait):
        wait(lambda: write(operands)) if waits(operands) else write(operands)

    check, why = bench(kernel, programmatic=True, seed=5)
    assert check == "order"
    assert "outputs" in why


def test_an_output_written_before_the_predecessor_has_ended_is_refused(bench):
    def kernel(operands, wait):
        operands.d.view(np.uint16)[...] = 0
        wait(lambda: write(operands))

    check, why = bench(kernel, programmatic=True)
    assert (check, "written before its predecessor had finished" in why) == ("order", True)


@pytest.mark.parametrize("programmatic", [True, False])
@pytest.mark.parametrize("name", ["d", "workspace"])
def test_a_launch_that_works_for_another_one_is_refused(bench, programmatic, name):
    first = []

    def kernel(operands, wait):
        first.append(operands)

        def rest():
            write(operands)
            whole_ring = getattr(operands, name).base
            while whole_ring.base is not None:
                whole_ring = whole_ring.base
            whole_ring[whole_ring.size // 2 :] = 0  # half of the ring, among it other launches' slots

        wait(rest)

    check, why = bench(kernel, programmatic=programmatic)
    assert check == "strays"
    assert ("outputs" if name == "d" else "workspaces") in why
    assert len(first) == LAUNCHES, "the counters are read once, behind the last launch"
