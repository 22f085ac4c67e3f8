"""Drawn rows and columns of outputs with an activation, on numpy's memory: one rounding passes, faults do not."""

import math
import random
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask
from cudal2_agent.sandbox.cuda.timing import drawn_lines, operand_pools, outputs, trusted_timing
from cudal2_agent.sandbox.cuda.timing.drawn_lines import LEAST_DRAWS, Draws
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge, error_limit
from cudal2_agent.sandbox.cuda.timing.sample_plan import draw_launches
from cudal2_agent.sandbox.verification.activations import activated
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.cuda.timing.test_operand_pools import Mapping, Trusted

COUNT = 5


@pytest.fixture(autouse=True)
def numpy_for_cupy(monkeypatch):
    together = SimpleNamespace(
        concatenate=lambda sums: SimpleNamespace(get=lambda: np.concatenate(sums)),
        **{name: getattr(np, name) for name in ("empty", "zeros", "uint8", "asarray")},
    )
    monkeypatch.setattr(operand_pools, "cupy", together)
    monkeypatch.setattr(operand_pools, "Mapping", Mapping)
    for module in (drawn_lines, outputs, trusted_timing):
        monkeypatch.setattr(module, "cupy", np)


@pytest.fixture(params=Activation)
def task(request):
    return GemmTask(m=24, n=40, k=64, layout="tn", activation=request.param)


def sums(task, inputs):
    a, b = (decode(np, bits, task.element).astype(np.float64) for bits in (inputs.a, inputs.b))
    return a @ b + (0 if inputs.bias is None else decode(np, inputs.bias, task.element))


def honest(task, inputs):
    """Rounded once."""
    return encode(np, activated(np, task.activation, sums(task, inputs)), task.element)


def unfused(task, inputs):
    """Sums rounded to elements, then the activation."""
    rounded = decode(np, encode(np, sums(task, inputs), task.element), task.element).astype(np.float64)
    return encode(np, activated(np, task.activation, rounded), task.element)


def judged(task, kernel, seed=0, *, count=COUNT, library=False, fault=lambda _launches, _ring: None):
    """The judgement of what a kernel of (task, inputs) leaves in a sample's slots. `fault`: changes the ring afterwards."""
    trusted, draw = Trusted(), random.Random(seed)
    pools = OperandPools(task, COUNT, 0, trusted, random.Random(1))
    pools.renew(draw)
    ring = Ring("D", 2 * task.m * task.n, COUNT, 0, trusted, random.Random(2))
    ring.refill(7)
    launches = draw_launches(COUNT, COUNT, count, draw)
    for launch in launches:
        ring.slot(launch.slot).view(np.uint16).reshape(task.m, task.n)[...] = kernel(task, pools.made_again(launch[:2]))
    fault(launches, ring)
    return OutputJudge(task, pools, ring, trusted).project(launches, draw, library=library)


@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(24, 40, 64), (1, 1, 1), (1, 257, 3), (300, 2, 2048)])
def test_outputs_rounded_once_pass(task, element, bias, shape):
    m, n, k = shape
    task = task.model_copy(update={"element": element, "bias": bias, "m": m, "n": n, "k": k})
    found = judged(task, honest)
    assert found.fault is None
    assert found.rows == 7 * COUNT * (m + n), "32 rows and columns at least, each launch as often as the others"
    assert 0 < found.error_rms <= error_limit(task, found, 0.0)


def test_each_launch_is_drawn_once_where_there_are_many(task):
    many = np.arange(LEAST_DRAWS + 9)
    draws = Draws.of(task, many, many[::-1], many + 3, random.Random(1))
    assert draws.launch.tolist() == many.tolist()
    assert (draws.b.tolist(), draws.slot.tolist()) == (many[::-1].tolist(), (many + 3).tolist())
    assert len(set(draws.row.tolist())) > 10, "not the same row of each"


@pytest.mark.parametrize("element", ElementType)
def test_a_library_may_round_sums_first(task, element):
    assert judged(task.model_copy(update={"element": element}), unfused, library=True).fault is None


def test_a_candidate_may_not_round_sums_to_bf16_first(task):
    found = judged(task.model_copy(update={"element": ElementType.BF16}), unfused)
    assert (found.fault is None) is (task.activation is Activation.RELU), "that of rounded sums is the rounded one"


def test_a_missing_activation_is_seen_from_a_library_too(task):
    without = lambda task, inputs: encode(np, sums(task, inputs), task.element)  # noqa: E731
    for library in (False, True):
        found = judged(task, without, library=library)
        assert f"outputs in 35 drawn rows and columns of 5 launches are not {task.activation}(A·B) of their" in found.fault


def test_another_activation_is_seen(task):
    other = next(one for one in Activation if one is not task.activation)
    assert judged(task, lambda task, inputs: honest(task.model_copy(update={"activation": other}), inputs)).fault is not None


def test_a_bias_left_out_is_seen(task):
    task = task.model_copy(update={"bias": True})
    found = judged(task, lambda task, inputs: honest(task, inputs.__class__(inputs.a, inputs.b)))
    assert f"are not {task.activation}(A·B + bias) of their operands" in found.fault


def test_the_fault_names_a_place_that_is_wrong(task):
    """One output of one launch, which is met by its row or its column, and whole columns."""
    seen = []

    def fault(launches, ring):
        ring.slot(launches[3].slot).view(np.uint16).reshape(task.m, task.n)[5, :] = encode(np, np.array(777.0), task.element)

    for seed in range(4):
        found = judged(task, honest, seed, fault=fault)
        assert "launch 3: 777, should be" in found.fault, "a column meets every row"
        seen.append(found.fault.partition("the first is ")[2].partition(" ")[0])
    assert all(place.startswith("D[5,") for place in seen)
    assert len(set(seen)) > 1


@pytest.mark.parametrize("what", ["outputs of another launch", "nothing written"])
def test_one_launch_of_many_that_was_left_out_is_always_seen(task, what):
    def fault(launches, ring):
        last = ring.slot(launches[-1].slot)
        last[...] = ring.slot(launches[0].slot) if what == "outputs of another launch" else 0xFF

    for seed in range(5):
        assert "of launch 4" in judged(task, honest, seed, fault=fault).fault


def test_a_share_of_wrong_outputs_is_found_as_often_as_the_page_says():
    """A corner, which rows and columns meet least often."""
    task, side = GemmTask(m=100, n=100, k=16, activation="silu"), 10

    def fault(launches, ring):
        ring.slot(launches[0].slot).view(np.uint16).reshape(100, 100)[:side, :side] ^= 0x8000

    found = [judged(task, honest, seed, count=1, fault=fault).fault is not None for seed in range(12)]
    missed_by_one = 1 - (2 * math.sqrt(0.01) - 0.01)
    assert statistics.mean(found) >= 1 - missed_by_one**LEAST_DRAWS - 0.2


def test_lines_that_are_gathered_in_pieces_give_the_same(task, monkeypatch):
    whole = judged(task, honest)
    monkeypatch.setattr(drawn_lines, "GATHERED", 1000)
    monkeypatch.setattr(drawn_lines, "COMPARED", 100)
    pieces = judged(task, honest)
    assert (pieces.rows, pieces.fault) == (whole.rows, None)
    assert pieces.error_rms == pytest.approx(whole.error_rms)
