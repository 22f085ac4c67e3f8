"""Elements, inputs, bounds and comparison, each by itself, in numpy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask
from cudal2_agent.sandbox.verification import inputs as made
from cudal2_agent.sandbox.verification.bounds import Growth, accumulation_factor, rounding_floor
from cudal2_agent.sandbox.verification.cases import SPARSE, CaseStore, cases_for
from cudal2_agent.sandbox.verification.comparison import compare_bounded, compare_exact
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import FORMATS, POISON, decode, decode_wide, encode
from cudal2_agent.sandbox.verification.flips import flip_one
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference, kept_bytes

TASK = GemmTask(m=24, n=20, k=80)
ELEMENTS = list(ElementType)


def _values(inputs, task):
    return decode(np, inputs.a, task.element).astype(np.float64), decode(np, inputs.b, task.element).astype(np.float64)


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_bit_pattern_survives_a_round_trip(element):
    bits = np.arange(2**16, dtype=np.uint16)
    values = decode(np, bits, element)
    again = encode(np, values, element)
    number = ~np.isnan(values)
    assert (again[number] == bits[number]).all()
    assert np.isnan(decode(np, again[~number], element)).all()


@given(st.floats(width=32, allow_nan=False))
def test_bf16_rounds_to_nearest_even(value):
    got = float(decode(np, encode(np, np.array([value], dtype=np.float32), ElementType.BF16), ElementType.BF16)[0])
    low = np.array([value], dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    below, above = float(low.view(np.float32)[0]), float((low + np.uint32(0x10000)).view(np.float32)[0])
    if math.isinf(value):
        assert got == value
    elif math.isinf(above):
        assert got in (below, above)
    else:
        assert abs(got - value) == min(abs(below - value), abs(above - value))


@pytest.mark.parametrize("element", ELEMENTS)
def test_format_constants_match_the_format(element):
    form = FORMATS[element]
    assert np.isinf(decode(np, encode(np, np.array([form.overflow], dtype=np.float64), element), element)).all()
    just_under = np.nextafter(np.float32(form.overflow), np.float32(0))
    assert np.isfinite(decode(np, encode(np, np.array([just_under]), element), element)).all()
    assert float(decode(np, np.array([1], dtype=np.uint16), element)[0]) == form.tiny
    one = int(encode(np, np.ones(1), element)[0])
    above_one = float(decode(np, np.array([one + 1], dtype=np.uint16), element)[0])
    assert (above_one - 1) / 2 == form.roundoff
    assert np.isnan(decode(np, np.array([POISON], dtype=np.uint16), element)).all()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("k", [1, 2, 3, 17, 80, 5000])
def test_zero_one_sums_stay_exact_in_every_accumulator(element, k):
    task = GemmTask(m=50, n=50, k=k, element=element)
    a, b = _values(made.sparse_ones(Draws(np, 5), task), task)
    assert set(np.unique(a)) <= {0, 1}
    assert (a @ b).max() <= 256
    assert (a @ b).any()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("k", [2, 3, 64, 5000])
def test_wide_sums_fit_f32_in_any_order_and_end_small(element, k):
    task = GemmTask(m=40, n=40, k=k, element=element)
    a, b = _values(made.wide(Draws(np, 5), task), task)
    assert np.array_equal(a, np.rint(a))
    assert np.array_equal(b, np.rint(b))
    assert (np.abs(a) @ np.abs(b)).max() < 2**23
    assert np.abs(a @ b).max() < 2048


def test_wide_sums_exceed_f16_after_any_instruction_sized_group():
    task = GemmTask(m=40, n=40, k=256)
    a, b = _values(made.wide(Draws(np, 5), task), task)
    for start in range(0, 256, 16):
        partial = a[:, start : start + 16] @ b[start : start + 16]
        inexact = partial != partial.astype(np.float16)
        assert inexact.any()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("k", [1, 2, 80, 3000])
def test_large_inputs_overflow_in_some_rows_only(element, k):
    task = GemmTask(m=60, n=16, k=k, element=element)
    a, b = _values(made.large(Draws(np, 5), task), task)
    overflow = np.abs(a @ b) >= FORMATS[element].overflow
    assert overflow.any(axis=1).sum() == overflow.all(axis=1).sum()
    assert 0 < overflow.sum() < overflow.size


@pytest.mark.parametrize("element", ELEMENTS)
def test_subnormal_results_are_multiples_of_the_smallest(element):
    task = GemmTask(m=30, n=30, k=80, element=element)
    a, b = _values(made.subnormal_results(Draws(np, 5), task), task)
    normal = FORMATS[element].tiny * (1024 if element is ElementType.F16 else 128)
    assert (np.abs(a[a != 0]) >= normal).all()
    assert (np.abs(b[b != 0]) >= normal).all()
    product = (a @ b) / FORMATS[element].tiny
    assert np.array_equal(8 * product, np.rint(8 * product))
    assert (product != np.rint(product)).any(), "some are rounded"
    assert ((np.abs(product) < 0.5) & (product < 0)).any(), "some are rounded to a negative zero"
    assert np.abs(product).max() < (1024 if element is ElementType.F16 else 128)


KINDS = [
    (ElementType.F16, AccumulatorType.F32),
    (ElementType.F16, AccumulatorType.F16),
    (ElementType.BF16, AccumulatorType.F32),
]


def _extremes(element, accumulate, shape=(60, 80, 80), seed=5):
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, element=element, accumulate=accumulate)
    return task, *_values(made.extremes(Draws(np, seed), task), task)


@pytest.mark.parametrize(("element", "accumulate"), KINDS)
@pytest.mark.parametrize("shape", [(60, 80, 80), (1, 40, 200), (70, 1, 33), (50, 60, 1), (9, 5, 2), (40, 50, 5000)])
@pytest.mark.parametrize("seed", range(3))
def test_extremes_have_exact_sums_in_every_accumulator_and_order(element, accumulate, shape, seed):
    _, a, b = _extremes(element, accumulate, shape, seed)
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    bits = 11 if accumulate is AccumulatorType.F16 else 24
    a, b = a[np.argsort(-(a != 0).sum(axis=1))[:8]], b[:, np.argsort(-(b != 0).sum(axis=0))[:8]]  # the longest sums
    unit = _units(a[:, :, None] * b[None]).min(axis=1)
    assert (np.abs(a) @ np.abs(b) <= unit * 2.0**bits).all(), "a sum in some order needs more bits"


def _units(values):
    """The power of two of the lowest bit of each number; infinite for zero."""
    mantissa, exponent = np.frexp(values)
    whole = np.where(values == 0, 1, np.abs(mantissa) * 2.0**53).astype(np.int64)
    return np.where(values == 0, np.inf, np.ldexp((whole & -whole).astype(np.float64), exponent - 53))


@pytest.mark.parametrize(("element", "accumulate"), KINDS)
def test_extremes_hold_the_largest_number_and_the_smallest_in_each_operand(element, accumulate):
    largest, tiny = (65504.0, 2.0**-24) if element is ElementType.F16 else ((2 - 2.0**-7) * 2.0**127, 2.0**-133)
    seen = [set(), set()]
    for seed in range(4):
        for values, operand in zip(seen, _extremes(element, accumulate, seed=seed)[1:], strict=True):
            values |= set(np.abs(operand[operand != 0]).tolist())
    for values in seen:
        assert {largest, tiny} <= values
        assert any(2.0**12 <= value < 2.0**15 for value in values) or element is ElementType.BF16


def _two_bits(x):
    return np.where(np.abs(x) > 2048, (x.astype(np.float16).view(np.uint16) & np.uint16(0xFF00)).view(np.float16), x)


WRONG = {
    "clamped at 3000": lambda x: np.clip(x, -3000, 3000),
    "clamped at 2^15": lambda x: np.clip(x, -(2.0**15), 2.0**15),
    "clamped below the largest": lambda x: np.clip(x, -65472, 65472),
    "times 16 in half": lambda x: (x.astype(np.float16) * np.float16(16)).astype(np.float64) / 16,
    "by way of a saturating s16": lambda x: np.where(np.abs(x) > 1024, np.clip(np.rint(x), -32768, 32767), x),
    "by way of e4m3": lambda x: np.clip(x, -448, 448),
    "two bits of large ones": _two_bits,
    "flushed below 2^-14": lambda x: np.where(np.abs(x) < 2.0**-14, 0, x),
    "flushed below 2^-23": lambda x: np.where(np.abs(x) < 2.0**-23, 0, x),
}


@pytest.mark.parametrize("accumulate", list(AccumulatorType))
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("seed", range(3))
def test_an_operand_of_a_narrower_range_shows_in_many_outputs(accumulate, wrong, seed):
    _, a, b = _extremes(ElementType.F16, accumulate, seed=seed)
    with np.errstate(over="ignore", invalid="ignore"):
        for left, right in ((WRONG[wrong](a), b), (a, WRONG[wrong](b))):
            assert ((left @ right) != a @ b).mean() > 0.005


@pytest.mark.parametrize("element", ELEMENTS)
def test_extremes_need_the_subnormals_of_both_operands(element):
    _, a, b = _extremes(element, AccumulatorType.F32)
    normal = FORMATS[element].tiny * (1024 if element is ElementType.F16 else 128)
    for left, right in ((np.where(np.abs(a) < normal, 0, a), b), (a, np.where(np.abs(b) < normal, 0, b))):
        assert ((left @ right) != a @ b).mean() > 0.3


def test_zeros_meet_nan_and_infinity_in_both_operands():
    task = GemmTask(m=30, n=40, k=80)
    a, b = _values(made.zero_times(Draws(np, 5), task), task)
    with np.errstate(invalid="ignore"):
        product = a @ b
    assert set(np.unique(np.where(np.isnan(product), 7, product))) == {0, 7}
    assert (a == 0).all(axis=0).sum() == (b == 0).all(axis=1).sum() == 40
    assert (a == 0).all(axis=1).sum() >= 15
    assert (b == 0).all(axis=0).sum() >= 20
    assert 0 < np.isnan(product).all(axis=1).sum() < 15
    assert 0 < np.isnan(product).all(axis=0).sum() < 20


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (24, 20, 80)])
def test_nonfinite_inputs_hold_something_nonfinite(shape):
    m, n, k = shape
    inputs = made.nonfinite(Draws(np, 5), GemmTask(m=m, n=n, k=k))
    a, b = _values(inputs, GemmTask(m=m, n=n, k=k))
    assert not np.isfinite(a).all()
    if m > 4 and n > 4:
        with np.errstate(invalid="ignore"):
            product = a @ b
        assert np.isnan(product).any()
        assert np.isinf(product).any()
        assert np.isfinite(product).any()


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_one_turned_element_changes_the_product(seed, element, operand):
    task = TASK.model_copy(update={"element": element})
    source = Draws(np, seed)
    before = made.sparse_ones(source, task)
    a, b = _values(before, task)
    d = encode(np, a @ b, element)
    flip = flip_one(source, task, before, d, operand)
    assert (before.a != flip.inputs.a).sum() == (operand == "a")
    assert (before.b != flip.inputs.b).sum() == (operand == "b")
    a, b = _values(flip.inputs, task)
    assert (decode(np, flip.d, element) == a @ b).all()
    assert (decode(np, flip.d, element) != decode(np, d, element)).any()


def test_pairs_are_disjoint_and_within_range():
    plus, minus = Draws(np, 1).pairs(101, 1000)
    assert len(plus) == len(minus) == 50
    assert len({*plus.tolist(), *minus.tolist()}) == 100


@pytest.mark.parametrize("accumulate", list(AccumulatorType))
@pytest.mark.parametrize("growth", list(Growth))
def test_bounds_grow_with_k_and_never_pass_the_worst_case(accumulate, growth):
    factors = [accumulation_factor(GemmTask(m=1, n=1, k=k, accumulate=accumulate), growth) for k in (1, 16, 256, 4096, 16384)]
    unit = 2.0**-23 if accumulate is AccumulatorType.F32 else 2.0**-10
    assert all(factor <= unit * k for factor, k in zip(factors, (1, 16, 256, 4096, 16384), strict=True))
    assert factors == sorted(factors)


def test_f32_bound_stays_far_under_an_f16_chain():
    """At K = 4096 the f32 bound with random signs must refuse an f16 accumulator's typical error."""
    task = GemmTask(m=64, n=64, k=4096)
    bound = accumulation_factor(task, Growth.WALK) * task.k  # |a_i| |b_j| of unit Gaussians
    typical_f16 = 2.0**-11 * math.sqrt(task.k) * math.sqrt(task.k / 16 / 2) / math.sqrt(3)
    assert bound < typical_f16


def test_rounding_floor_allows_few_elements_to_scatter():
    assert rounding_floor(TASK, 1.0, 1) > rounding_floor(TASK, 1.0, 10**6) > 0


def _reference(task, inputs):
    return Reference(np, task, inputs, keep=False)


def test_both_zeros_count_as_one():
    inputs = Inputs(np.zeros((24, 80), dtype=np.uint16), np.zeros((80, 20), dtype=np.uint16))
    output = np.full((24, 20), 0x8000, dtype=np.uint16)
    assert compare_exact(np, TASK, output, _reference(TASK, inputs)).mismatches == 0


def test_an_infinity_of_the_wrong_sign_is_wrong():
    inputs = made.large(Draws(np, 2), TASK)
    right = encode(np, _reference_product(inputs), TASK.element)
    assert compare_bounded(np, TASK, right, _reference(TASK, inputs), Growth.RAMP).mismatches == 0
    infinite = np.isinf(decode(np, right, TASK.element))
    wrong = np.where(infinite, right ^ 0x8000, right).astype(np.uint16)
    assert compare_bounded(np, TASK, wrong, _reference(TASK, inputs), Growth.RAMP).mismatches == infinite.sum() > 0


def _reference_product(inputs):
    a, b = _values(inputs, TASK)
    return a @ b


def test_nan_where_a_number_belongs_is_wrong():
    inputs = made.gaussian(Draws(np, 2), TASK)
    output = encode(np, _reference_product(inputs), TASK.element)
    output[3, 4] = 0x7E00
    found = compare_bounded(np, TASK, output, _reference(TASK, inputs), Growth.WALK)
    assert (found.mismatches, found.unwritten, found.first[:2]) == (1, 0, (3, 4))


def test_a_product_of_several_blocks_is_joined_whole(monkeypatch):
    """A sample of a task with long K: a proof once ended in an internal error where its few rows were several blocks."""
    inputs = made.gaussian(Draws(np, 2), TASK)
    [one] = _reference(TASK, inputs).blocks()
    monkeypatch.setattr("cudal2_agent.sandbox.verification.reference.BLOCK_ELEMENTS", 80 * 5)
    assert len(list(_reference(TASK, inputs).blocks())) > 1
    joined = _reference(TASK, inputs).whole()
    assert joined.start == 0
    np.testing.assert_allclose(joined.product, one.product, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(joined.row_norms, one.row_norms)
    np.testing.assert_array_equal(joined.column_norms, one.column_norms)


def test_box_spans_all_blocks(monkeypatch):
    monkeypatch.setattr("cudal2_agent.sandbox.verification.reference.BLOCK_ELEMENTS", 80 * 5)
    inputs = made.sparse_ones(Draws(np, 2), TASK)
    output = encode(np, _reference_product(inputs), TASK.element)
    output[2, 9] ^= 1
    output[23, 3] ^= 1
    found = compare_exact(np, TASK, output, _reference(TASK, inputs))
    assert found.elements == output.size
    assert (found.mismatches, found.box) == (2, [2, 23, 3, 9])


def test_two_ulps_are_too_many():
    inputs = made.gaussian(Draws(np, 2), TASK)
    output = encode(np, _reference_product(inputs), TASK.element)
    assert compare_bounded(np, TASK, output, _reference(TASK, inputs), Growth.WALK).worst <= 1
    assert compare_bounded(np, TASK, output + np.uint16(2), _reference(TASK, inputs), Growth.WALK).mismatches > 400


def test_cases_are_kept_within_the_budget_and_made_anew_beyond_it():
    store = CaseStore(np, TASK, budget_bytes=2 * kept_bytes(TASK))
    first, second, third = cases_for(TASK)[:3]
    assert store.prepare(first) is store.prepare(first)
    assert store.prepare(second) is store.prepare(second)
    assert store.prepare(third) is not store.prepare(third)
    assert np.array_equal(store.prepare(third).inputs.a, store.prepare(third).inputs.a)


def test_a_budget_of_nothing_still_works():
    prepared = CaseStore(np, TASK, budget_bytes=0).prepare(SPARSE)
    output = encode(np, _reference_product(prepared.inputs), TASK.element)
    assert prepared.compare(output).mismatches == 0


def test_subnormals_of_bf16_need_no_f32_arithmetic():
    """As on a GPU, where cupy's kernels flush subnormals of f32."""
    patterns = np.arange(0x0080, dtype=np.uint16)
    patterns = np.concatenate([patterns, patterns | 0x8000])
    wide = decode_wide(np, patterns, ElementType.BF16)
    assert wide[1] == 2.0**-133
    assert wide[0x80 + 3] == -3 * 2.0**-133
    assert (encode(np, wide, ElementType.BF16) == patterns).all()
    flushed = np.where(np.abs(decode(np, patterns, ElementType.BF16)) < 2.0**-126, 0, 1)
    assert not flushed.any(), "none of them is normal"
    between = encode(np, np.array([1.5 * 2.0**-133, 2.5 * 2.0**-133, 127.5 * 2.0**-133, -0.5 * 2.0**-133]), ElementType.BF16)
    assert between.tolist() == [2, 2, 0x80, 0x8000]


@pytest.mark.parametrize(("element", "accumulate"), [("f16", "f16"), ("f16", "f32"), ("bf16", "f32")])
@pytest.mark.parametrize("shape", [(40, 24, 48), (1, 7, 3), (8, 16, 4096)])
def test_uneven_rows_and_patterns_are_exact_in_any_order(element, accumulate, shape):
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, element=element, accumulate=accumulate)
    for seed, make in itertools.product(range(5), (made.uneven, made.patterns)):
        found = make(Draws(np, seed), task)
        a, b = decode_wide(np, found.a, task.element), decode_wide(np, found.b, task.element)
        assert np.isfinite(a).all()
        assert np.isfinite(b).all()
        products = a.T[:, :, None] * b[:, None, :]
        partial = np.cumsum(products[np.random.default_rng(seed).permutation(k)], axis=0)
        with np.errstate(over="ignore"):
            kept = partial.astype(np.float16 if accumulate == "f16" else np.float32)
        assert np.array_equal(kept, partial)


def test_patterns_copy_elements_of_both_operands():
    task = GemmTask(m=96, n=80, k=128)
    found = made.patterns(Draws(np, 1), task)
    d = decode_wide(np, found.a, task.element) @ decode_wide(np, found.b, task.element)
    assert len(np.unique(np.abs(d[d != 0]))) > 0.9 * task.m * task.n / 2 * (1 - 2**-4)
    assert np.abs(d).max() > 32768
    assert np.any((d != 0) & (np.abs(d) < 2.0**-14))
    assert np.any((np.abs(d) >= 1024) & (np.abs(d) < 2048) & (d % 2 == 1))


@pytest.mark.parametrize("operand", ["a", "b"])
def test_small_elements_behind_a_large_one_count(operand):
    task = GemmTask(m=8, n=16, k=4096, accumulate="f16")
    for seed in range(5):
        found = made.uneven(Draws(np, seed), task)
        lines = decode_wide(np, found.a if operand == "a" else found.b.T, task.element)
        other = decode_wide(np, found.b if operand == "a" else found.a.T, task.element)
        beside = np.where(np.abs(lines) < np.abs(lines[:, :1]) / 128, 0, lines)
        assert (np.abs(lines[:, 0]) >= 1.5).any()
        assert not np.array_equal(beside @ other, lines @ other)


@pytest.mark.parametrize("seed", range(5))
def test_nan_lies_at_nearly_every_position_of_an_instruction_and_infinities_meet(seed):
    task = GemmTask(m=40, n=38, k=48)
    found = made.nonfinite(Draws(np, seed), task)
    a, b = decode_wide(np, found.a, task.element), decode_wide(np, found.b, task.element)
    assert len({k % 16 for k in np.argwhere(np.isnan(a))[:, 1]}) == 16
    assert len({k % 16 for k in np.argwhere(np.isnan(b))[:, 0]}) == 16
    with np.errstate(invalid="ignore"):
        d = a @ b
    assert np.isinf(d).sum() >= 1
    assert any((np.isinf(a[:, k]).sum() >= 2) and (np.isinf(b[k]).sum() >= 2) for k in range(task.k))
