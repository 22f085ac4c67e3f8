"""Timed launches of gated products on numpy's memory: `up` in the pools, and drawn rows and columns of both sums."""

import random

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.guard.placement import PAGE_BYTES
from cudal2_agent.sandbox.cuda.timing.operand_pools import JOINED, OperandPools
from cudal2_agent.sandbox.cuda.timing.outputs import error_limit
from cudal2_agent.sandbox.cuda.timing.sample_plan import set_bytes
from cudal2_agent.sandbox.verification.activations import activated
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.cuda.timing.test_drawn_lines import judged, numpy_for_cupy  # noqa: F401
from tests.sandbox.cuda.timing.test_operand_pools import Mapping, Trusted
from tests.sandbox.verification.test_gated import FORMULAS

COUNT = 3
JOINED_SHAPE, ALONE = (24, 40, 64), (24, 40, 56 - 1)


def task_of(shape=JOINED_SHAPE, **fields):
    m, n, k = shape
    return GemmTask(**{"m": m, "n": n, "k": k, "layout": "tn", "activation": "silu", "gated": True} | fields)


def made(task):
    Mapping.made.clear()
    pools = OperandPools(task, COUNT, 0, Trusted(), random.Random(5))
    pools.renew(random.Random(1))
    return pools


@pytest.mark.parametrize("shape", [JOINED_SHAPE, ALONE])
@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("layout", Layout)
def test_all_layouts_of_up_hold_the_same_numbers(layout, element, shape):
    task = task_of(shape, layout=layout, element=element)
    pools = made(task)
    for pair in ((0, 1), (2, 2)):
        held, again = pools.operands(pair), pools.made_again(pair)
        wanted = {"a": again.a, "b_tn": again.b.T, "up_tn": again.up.T}
        wanted |= {"a_nt": again.a.T} if layout.transposes_a else {}
        wanted |= {} if layout.transposes_b else {"b_nn": again.b, "up_nn": again.up}
        wanted |= {"joined": np.concatenate([again.b.T, again.up.T])} if shape is JOINED_SHAPE else {}
        assert {name for name, array in held.items() if array is not None} == wanted.keys()
        for name, values in wanted.items():
            assert held[name].flags.c_contiguous
            assert held[name].view(np.uint16).tolist() == values.tolist()
        assert (again.b != again.up).mean() > 0.9
        assert (
            Operands(**held, d=None).third(task).view(np.uint16).tolist()
            == (again.up.T if layout.transposes_b else again.up).tolist()
        )
    sizes = [size for _, size in Mapping.made]
    assert 0 <= sum(sizes) - COUNT * set_bytes(task) <= COUNT * PAGE_BYTES * len(sizes)


def test_a_candidate_has_both_weights_apart_and_baselines_have_them_joined():
    """In tests each lies in a mapping of its own, so that `up` behind B would tell a timed launch."""
    held = made(task_of()).operands((1, 2))
    joined = held["joined"].reshape(-1)
    assert not any(np.shares_memory(joined, held[name]) for name in ("b_tn", "up_tn"))
    assert not np.shares_memory(held["b_tn"].base, held["up_tn"].base)


def test_a_change_of_joined_weights_is_seen():
    pools = made(task_of())
    pools.operands((0, 1))["joined"].view(np.uint16)[-1, -1] ^= 1
    assert pools.changed() == f"input {JOINED} was changed"


@pytest.mark.parametrize("shape", [JOINED_SHAPE, ALONE])
def test_a_change_of_up_is_seen_and_it_comes_late_as_b_does(shape):
    task = task_of(shape)
    pools = made(task)
    up = Operands(**pools.operands((1, 2)), d=None).third(task).view(np.uint16)
    before = up.copy()
    up[-1, -1] ^= 1
    assert pools.changed() == "input up was changed"
    up[-1, -1] ^= 1
    assert pools.changed() is None
    pools.make_old((1, 2), random.Random(4))
    assert (up != before).mean() > 0.3
    restored = []
    pools._trusted.late_operands = lambda inputs, *_: restored.extend(inputs)
    pools.renew_late((1, 2), None, None, None, 0)
    assert [matrices.rows for matrices, _, _ in restored] == [task.m, task.n, task.n]
    matrices, numbers, index = restored[2]
    Trusted().fill_operands(type(matrices)(matrices.memory, [matrices.starts[index]], task.n, task.k), numbers, first=index)
    assert (up == before).all()


def both(task, inputs):
    return tuple(
        decode(np, inputs.a, task.element).astype(np.float64) @ decode(np, weights, task.element).astype(np.float64)
        for weights in (inputs.b, inputs.up)
    )


def kernel(formula):
    def computed(task, inputs):
        return encode(np, formula(lambda x: activated(np, task.activation, x), *both(task, inputs)), task.element)

    return computed


honest = kernel(lambda f, gate, up: f(gate) * up)


def rounded_first(task, inputs):
    gate, up = (decode(np, encode(np, total, task.element), task.element).astype(np.float64) for total in both(task, inputs))
    return encode(np, activated(np, task.activation, gate) * up, task.element)


@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("shape", [(24, 40, 64), (1, 1, 1), (1, 257, 3), (300, 2, 2048)])
def test_outputs_rounded_once_pass(activation, element, shape):
    task = task_of(shape, activation=activation, element=element)
    found = judged(task, honest)
    assert found.fault is None
    assert 0 <= found.error_rms <= error_limit(task, found, 0.0)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("formula", FORMULAS)
def test_another_formula_is_seen_from_a_library_too(formula, activation):
    task = task_of(activation=activation)
    for library in (False, True):
        found = judged(task, kernel(FORMULAS[formula]), library=library)
        assert f"are not {activation}(A·B) · (A·up) of their operands" in found.fault


@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("activation", Activation)
def test_a_library_may_round_both_sums_first(activation, element):
    assert judged(task_of(activation=activation, element=element), rounded_first, library=True).fault is None


def test_a_candidate_may_not_round_sums_to_bf16_first():
    assert judged(task_of(element=ElementType.BF16), rounded_first).fault is not None


def test_up_of_another_launch_is_seen():
    def fault(launches, ring):
        ring.slot(launches[4].slot)[...] = ring.slot(launches[0].slot)

    for seed in range(5):
        assert "of launch 4" in judged(task_of(), honest, seed, fault=fault).fault
