"""The projection of outputs, with numpy instead of kernels: rounding passes, omitted work does not."""

import random

import numpy as np
import pytest

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.cuda.timing import outputs as module
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge, error_limit
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.cuda.timing.trusted_timing import Projected
from cudal2_agent.sandbox.verification.elements import decode, encode
from cudal2_agent.sandbox.verification.inputs import normal_scale

SETS, SLOTS = 3, 4
LAUNCHES = [TimedLaunch(0, 1, 3), TimedLaunch(1, 2, 1), TimedLaunch(2, 0, 0), TimedLaunch(0, 2, 2)]


class Trusted:
    """`TrustedTiming` in numpy."""

    def project(self, pool, factors, chosen, applied, *, bf16):
        element = ElementType.BF16 if bf16 else ElementType.F16
        chosen = range(len(pool)) if chosen is None else chosen
        applied = [0] * len(chosen) if applied is None else applied
        with np.errstate(invalid="ignore", over="ignore"):
            sums = [decode(np, pool[i], element) @ factors[j] for i, j in zip(chosen, applied, strict=True)]
        return np.stack(sums).astype(np.float32)

    def apart(self, got, wanted, tolerance):
        with np.errstate(invalid="ignore"):
            apart = ~(np.abs(got - wanted) <= tolerance)
            squares = [float((array.astype(np.float64) ** 2).sum()) for array in (got - wanted, wanted)]
        return Projected(int(apart.sum()), int(np.flatnonzero(apart)[0]) if apart.any() else -1, *squares)


@pytest.fixture(params=[("f16", "f32"), ("bf16", "f32"), ("f16", "f16")], ids="-".join)
def task(request):
    element, accumulate = request.param
    return GemmTask(m=16, n=256, k=512, element=element, accumulate=accumulate)


def judged(monkeypatch, task, outputs, seed=0):
    """The judgement of the outputs that a function computes in float64 from Gaussian operands."""
    return judge_of(monkeypatch, task, outputs, seed).project(LAUNCHES, random.Random(seed))


def judge_of(monkeypatch, task, outputs, seed=0):
    monkeypatch.setattr(module, "cupy", np)
    rng, scale = np.random.default_rng(seed), normal_scale(task.k)
    a = encode(np, scale * rng.standard_normal((SETS, task.m, task.k)), task.element)
    b = encode(np, scale * rng.standard_normal((SETS, task.k, task.n)), task.element)
    bits = np.zeros((SLOTS, task.m, task.n), np.uint16)
    for launch in LAUNCHES:
        d = outputs(decode(np, a[launch.a], task.element), decode(np, b[launch.b], task.element))
        bits[launch.slot] = d if d.dtype == np.uint16 else encode(np, d, task.element)
    monkeypatch.setattr(module, "Matrices", lambda *_: bits)
    pools = type("Pools", (), {"a": a, "b_nn": b, "bias": None})()
    ring = type("Ring", (), {"memory": None, "starts": ()})()
    return OutputJudge(task, pools, ring, Trusted())


def judge(monkeypatch, task, outputs, seed=0):
    return judged(monkeypatch, task, outputs, seed).fault


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("shape", [(16, 256, 512), (1, 1, 1), (7, 3, 5), (64, 64, 64), (4, 2048, 64), (3, 64, 4096)])
@pytest.mark.parametrize("seed", range(3))
def test_rounded_products_pass(monkeypatch, task, shape, seed):
    m, n, k = shape
    assert judge(monkeypatch, task.model_copy(update={"m": m, "n": n, "k": k}), product, seed) is None


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_a_share_of_k_left_out_is_seen(monkeypatch, task, share):
    if (task.accumulate.value, task.element.value) != ("f32", "f16") and share < 0.1:
        pytest.skip("rounding to bf16, or in an f16 sum, is as large")
    kept = int(task.k * (1 - share))
    told = judge(monkeypatch, task, lambda a, b: product(a[:, :kept], b[:kept]))
    assert "are not the matrix products of their operands" in told


def test_columns_left_out_are_seen(monkeypatch, task):
    def outputs(a, b):
        d = product(a, b)
        d[:, 32:48] = 0
        return d

    told = judge(monkeypatch, task, outputs)  # rows whose terms cancel show nothing
    assert int(told.split()[0]) > 32


def test_one_row_of_one_launch_is_named(monkeypatch, task):
    seen = []

    def outputs(a, b):
        d = product(a, b)
        seen.append(None)
        if len(seen) == 3:
            d[5] = -d[5]
        return d

    told = judge(monkeypatch, task, outputs)
    assert told.startswith("1 of 64 rows of 4 outputs")
    assert told.endswith("the first is row 5 of launch 2")


def test_outputs_that_were_never_written_are_seen(monkeypatch, task):
    rng = np.random.default_rng(1)
    told = judge(monkeypatch, task, lambda a, b: rng.integers(0, 2**16, (len(a), b.shape[1])).astype(np.uint16))
    assert int(told.split()[0]) > 60


def test_the_product_of_another_pair_is_seen(monkeypatch, task):
    first = []

    def outputs(a, b):
        first.append(product(a, b))
        return first[0]

    assert int(judge(monkeypatch, task, outputs).split()[0]) > 36


def test_not_a_number_is_seen(monkeypatch, task):
    def outputs(a, b):
        d = product(a, b)
        d[0, 0] = np.nan
        return d

    assert judge(monkeypatch, task, outputs).startswith("4 of 64 rows")


NARROW = GemmTask(m=16, n=64, k=131072, accumulate="f16")


def narrow_product(a, b):
    """An f16 sum of products of 16 in f32, one after another, as one instruction adds to its accumulator."""
    total = np.zeros((len(a), b.shape[1]), np.float16)
    for start in range(0, a.shape[1], 128):
        total = (total + a[:, start : start + 128] @ b[start : start + 128]).astype(np.float16)
    return total.astype(np.float64)


def test_a_fifth_of_a_large_k_left_out_with_f16_sums_is_larger_than_rounding(monkeypatch):
    """The bound of the projection grows with K, and what is left out with its root: only its error beside others shows it."""
    honest = judged(monkeypatch, NARROW, narrow_product)
    kept = NARROW.k * 4 // 5
    left_out = judged(monkeypatch, NARROW, lambda a, b: narrow_product(a[:, :kept], b[:kept]))
    assert honest.error_rms <= error_limit(NARROW, honest, honest.error_rms)
    assert left_out.error_rms > error_limit(NARROW, left_out, honest.error_rms)


@pytest.mark.parametrize("share", [2.0, 0.5])
def test_a_kernel_may_err_twice_as_much_as_the_baselines_of_its_round(monkeypatch, share):
    task = NARROW.model_copy(update={"k": 2048})
    found = judged(monkeypatch, task, product)
    assert error_limit(task, found, 0.0) < error_limit(task, found, 1.0)
    assert 2 * share <= error_limit(task, found, share) <= 3.1 * share, "64 rows scatter"


def test_launches_that_are_judged_again_are_listed_once(monkeypatch, task):
    listed, of = [], module._Indices.of
    monkeypatch.setattr(module._Indices, "of", lambda launches: (listed.append(launches), of(launches))[1])
    found = judge_of(monkeypatch, task, product)
    other = LAUNCHES[:2]
    assert [found.project(each, random.Random(1)).rows for each in (LAUNCHES, LAUNCHES, other)] == [64, 64, 32]
    assert listed == [LAUNCHES, other]
