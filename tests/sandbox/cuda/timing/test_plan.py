"""The timer's decisions without a GPU: sets, launches, pairs, order, arrivals, throttling, and library arguments."""

import ctypes
import math
import random

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, HEURISTIC
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, Layout, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import RACE_TIME, SCREEN_TIME, TimeOptions
from cudal2_agent.sandbox.backend import driver_present
from cudal2_agent.sandbox.cuda.baselines.cublaslt import LtProduct
from cudal2_agent.sandbox.cuda.baselines.library import Scalars, Unavailable, WrongProduct, column_major
from cudal2_agent.sandbox.cuda.baselines.library_baselines import LibraryBaselines
from cudal2_agent.sandbox.cuda.timing.sample_plan import (
    L2_MULTIPLE,
    MAX_SETS,
    MIN_REQUESTS,
    RING_BYTES,
    arrival_intervals_us,
    brief_launches,
    count_launches,
    count_sets,
    count_slots,
    draw_launches,
    draw_pairs,
    launches_needed,
    reuse_bytes,
    set_bytes,
    shuffled_rounds,
    spread_bytes,
    stays_cold,
    throttled_apart,
    trimmed_mean,
)
from cudal2_agent.sandbox.cuda.timing.telemetry import name_reasons, open_sampler

L2 = 60 * 1024**2
MEMORY = 140 * 1024**3
GRID = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
ROUND_US = 4000.0


def test_every_grid_shape_fits_and_rotates_through_far_more_than_l2():
    for m in GRID:
        for n in GRID:
            for k in GRID:
                task = GemmTask(m=m, n=n, k=k)
                floor_us = roofline_us(task, REFERENCE_CHIPS[Arch.SM_90A])
                sets = count_sets(task, math.ceil(ROUND_US / floor_us), L2, MEMORY)
                slots = count_slots(task, 0, MEMORY)
                assert 4 <= sets <= MAX_SETS
                assert sets * set_bytes(task) <= max(2 * (L2_MULTIPLE * L2 + 4 * set_bytes(task)), 4 * set_bytes(task))
                assert slots * 2 * m * n <= RING_BYTES
                launches = count_launches(floor_us, ROUND_US, sets, slots)
                assert stays_cold(reuse_bytes(task, sets, launches), L2), task.shape


def test_little_memory_gives_fewer_sets_and_slots_but_one():
    task = GemmTask(m=4096, n=4096, k=4096)
    assert count_sets(task, 20, L2, 15 * set_bytes(task)) == 3
    assert count_sets(task, 20, L2, 1) == 1
    assert count_slots(task, 0, 1) == 1
    assert count_launches(200.0, ROUND_US, 1, 1) == 1


def test_launches_shrink_to_the_slots_that_a_large_output_and_workspace_leave():
    task = GemmTask(m=16384, n=16384, k=512)
    assert count_slots(task, 0, MEMORY) == 16
    assert count_slots(task, 4 * task.m * task.n, MEMORY) == 5
    assert count_launches(360.0, ROUND_US, 8, 5) == 5


@pytest.mark.parametrize(
    ("launch_us", "sets", "slots", "want"),
    [(10, 40, 4096, 400), (5000, 4, 4096, 4), (0.001, 4096, 5000, 4096), (2, 4096, 300, 300), (10, 7, 4096, 49)],
)
def test_a_sample_lasts_its_round_within_slots_and_pairs(launch_us, sets, slots, want):
    assert count_launches(launch_us, ROUND_US, sets, slots) == want


@pytest.mark.parametrize(("sets", "launches"), [(1, 1), (4, 16), (7, 30), (50, 50), (33, 1000), (64, 4096)])
def test_no_pair_is_multiplied_twice_and_matrices_come_back_late(sets, launches):
    pairs = draw_pairs(sets, launches, random.Random(5))
    assert len(set(pairs)) == launches
    for side in (0, 1):
        seen: dict[int, int] = {}
        for index, pair in enumerate(pairs):
            assert index - seen.get(pair[side], -sets) >= sets - 1
            seen[pair[side]] = index


def test_pairs_are_drawn():
    assert draw_pairs(64, 64, random.Random(1)) != draw_pairs(64, 64, random.Random(2))
    with pytest.raises(ValueError, match="9 pairs"):
        draw_pairs(3, 10, random.Random(0))


def test_every_launch_has_an_output_slot_of_its_own_in_drawn_order():
    launches = draw_launches(8, 60, 40, random.Random(1))
    slots = [launch.slot for launch in launches]
    assert len(set(slots)) == 40
    assert set(slots) <= set(range(60))
    assert slots != sorted(slots)
    assert len({launch[:2] for launch in launches}) == 40
    assert launches != draw_launches(8, 60, 40, random.Random(2))


def test_a_small_operand_is_spread_over_ten_times_the_cache_where_memory_suffices():
    assert spread_bytes(L2, MEMORY) == L2_MULTIPLE * L2
    assert spread_bytes(L2, 8 * 1024**3) < L2_MULTIPLE * L2


def test_a_sample_that_reuses_matrices_soon_is_not_called_cold():
    task = GemmTask(m=64, n=64, k=64)
    assert reuse_bytes(task, 100, 100) is None
    assert not stays_cold(reuse_bytes(task, 100, 101), L2)


def test_rounds_hold_everyone_in_changing_order():
    names = ["candidate", "a", "b", "c"]
    rounds = shuffled_rounds(names, 50, random.Random(3))
    assert all(sorted(order) == sorted(names) for order in rounds)
    assert {order[0] for order in rounds} == set(names)
    assert rounds == shuffled_rounds(names, 50, random.Random(3))
    assert rounds != shuffled_rounds(names, 50, random.Random(4))


def test_arrivals_are_exponential_about_their_mean():
    intervals = np.array(arrival_intervals_us(20000, 200, random.Random(1)))
    assert intervals.min() >= 0
    assert intervals.mean() == pytest.approx(200, rel=0.03)
    assert intervals.std() == pytest.approx(200, rel=0.05)


def test_a_server_sends_fewer_requests_where_each_takes_long():
    chip = REFERENCE_CHIPS[Arch.SM_90A]
    small, middle, large = (
        GemmTask(m=size, n=size, k=size, arch=Arch.SM_90A, mode=TimingMode.SERVER) for size in (64, 6144, 16384)
    )
    assert launches_needed(small, RACE_TIME, chip) == RACE_TIME.server_launches
    assert launches_needed(small, SCREEN_TIME, chip) == SCREEN_TIME.server_launches
    assert launches_needed(middle, TimeOptions(), chip) == round(TimeOptions().round_us / roofline_us(middle, chip))
    assert launches_needed(large, RACE_TIME, chip) == MIN_REQUESTS
    assert launches_needed(small, TimeOptions(server_launches=2), chip) == 2


def test_the_trimmed_mean_lies_between_ticks_and_leaves_extremes_out():
    ticks = [4.032] * 60 + [4.064] * 40
    assert 4.032 < trimmed_mean(ticks) < 4.064
    assert trimmed_mean([*ticks, 100.0]) < 4.064
    assert trimmed_mean([2.0]) == 2.0


def test_throttling_counts_where_it_met_one_side_and_is_serious():
    thermal, power = frozenset({"hw-thermal"}), frozenset({"sw-power-cap"})
    assert throttled_apart(thermal, frozenset()) == thermal
    assert throttled_apart(frozenset(), thermal) == thermal
    assert not throttled_apart(thermal, thermal)
    assert not throttled_apart(power, frozenset())


def test_throttle_reasons_have_names():
    assert name_reasons(0x1) == frozenset()
    assert name_reasons(0x4 | 0x40 | 0x80) == {"sw-power-cap", "hw-thermal", "hw-power-brake"}
    assert name_reasons(0x8000) == {"unknown-0x8000"}


def test_telemetry_is_empty_for_a_gpu_that_is_not_there():
    with open_sampler("ffff:ff:1f.0") as sampler:
        assert sampler.sample() == frozenset()
        assert sampler.telemetry().sm_clock_mhz == ()


def stored(layout, a, b):
    return a.T if layout.transposes_a else a, b.T if layout.transposes_b else b


def by_columns(memory, shape, lead):
    """A matrix as a column-major library reads memory. Raises: ValueError where it has not lead x columns elements."""
    rows, columns = shape
    return memory.ravel().reshape(columns, lead).T[:rows]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("shape", [(5, 7, 3), (4, 4, 4), (1, 6, 2)])
def test_column_major_call_computes_the_row_major_product(layout, shape):
    """cuBLAS in numpy: column-major operands with leading dimensions."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a_memory, b_memory = (np.ascontiguousarray(one) for one in stored(layout, a, b))
    call = column_major(GemmTask(m=m, n=n, k=k), layout)
    left = by_columns(b_memory, call.stored_left, call.lead_left)
    right = by_columns(a_memory, call.stored_right, call.lead_right)
    out = (left.T if call.transpose_left else left) @ (right.T if call.transpose_right else right)
    memory = np.zeros((call.columns, call.lead_out))
    memory[:, : call.rows] = out.T
    assert np.allclose(memory.reshape(m, n), a @ b)


@pytest.mark.parametrize(("accumulate", "dtype"), [(AccumulatorType.F32, np.float32), (AccumulatorType.F16, np.float16)])
def test_scalars_lie_in_the_scale_type(accumulate, dtype):
    scalars = Scalars(accumulate)
    size = np.dtype(dtype).itemsize
    assert np.frombuffer(ctypes.string_at(scalars.alpha, size), dtype=dtype)[0] == 1
    assert np.frombuffer(ctypes.string_at(scalars.beta, size), dtype=dtype)[0] == 0


class _Stub:
    """A heuristic result with a given time, or one that fails."""

    def __init__(self, us):
        self.us, self.detail, self.layout, self.name = us, f"{us} us", "nn", "cublaslt"

    def record(self):
        return f"{self.us:0128x}"


def _baselines(**makers):
    baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample)
    baselines._makers |= makers
    return baselines


def _sample(contender):
    if contender.us is None:
        raise Unavailable("refused")
    return contender.us


def test_a_missing_library_is_a_note_and_never_a_number():
    def missing():
        raise Unavailable("not installed")

    opened = _baselines(cublas=missing, **{"torch.matmul": lambda: (_Stub(1),)}).open(["torch.matmul", "cublas"])
    assert list(opened.contenders) == ["torch.matmul"]
    assert opened.notes == ("baseline cublas left out: not installed",)


def test_a_baseline_is_opened_once():
    calls = []

    def make():
        calls.append(1)
        return (_Stub(1),)

    baselines = _baselines(cublas=make)
    assert baselines.open(["cublas"]).contenders == baselines.open(["cublas"]).contenders
    assert calls == [1]


def test_tuning_takes_the_fastest_that_runs(monkeypatch):
    class Product:
        suggestions = (9, 3, None, 7, 5, 8, 4)

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.library_baselines.LtGemm", lambda _name, _product, us: _Stub(us))
    baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample)
    baselines._lt_products = [Product(), Product()]
    (best,) = baselines.open(["cublaslt-autotuning"]).contenders["cublaslt-autotuning"]
    assert best.us == 3
    assert "best of 14 suggestions" in best.detail
    assert (baselines.tuned.algorithm[-1], baselines.tuned.suggestions, baselines.tuned.time_us) == ("3", 14, 3)


def test_a_kept_baseline_is_run_and_not_tuned(monkeypatch):
    timed = []

    class Product:
        suggestions = (9, 3)

        def __init__(self, _task, _layout):
            pass

        def restore(self, record):
            return None if record == "gone" else int(record, 16)

    def sample(contender):
        timed.append(contender.us)
        return _sample(contender)

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.library_baselines.LtGemm", lambda _name, _product, us: _Stub(us))
    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.library_baselines.LtProduct", Product)
    task = GemmTask(m=64, n=64, k=64)
    known = TunedBaseline(task=task, environment="e", layout="tn", algorithm="05", detail="kept", suggestions=2, time_us=5.0)
    baselines = LibraryBaselines(task, sample)
    baselines.known = known
    (kept,) = baselines.open(["cublaslt-autotuning"]).contenders["cublaslt-autotuning"]
    assert (kept.us, kept.detail, timed, baselines.tuned) == (5, "kept", [5], None)
    refused = LibraryBaselines(task, sample)
    refused.known = known.model_copy(update={"algorithm": "gone"})
    (found,) = refused.open(["cublaslt-autotuning"]).contenders["cublaslt-autotuning"]
    assert found.us == 3, "it was tuned anew"
    assert refused.tuned is not None


def test_a_brief_sample_has_few_long_launches_and_many_short_ones():
    assert [brief_launches(us, 1000.0) for us in (2.0, 60.0, 500.0, 1500.0, 11000.0)] == [500, 17, 8, 3, 2]


def test_a_server_without_gaps_sends_at_once():
    assert arrival_intervals_us(3, 0.0, random.Random(1)) == [0.0] * 3


def test_tuning_without_a_running_suggestion_is_a_note(monkeypatch):
    class Product:
        suggestions = (None, None)

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.library_baselines.LtGemm", lambda _name, _product, us: _Stub(us))
    baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample)
    baselines._lt_products = [Product()]
    opened = baselines.open(["cublaslt-autotuning"])
    assert opened.contenders == {}
    assert "none of cuBLASLt's 2 suggestions runs" in opened.notes[0]


class _Library:
    """cuBLASLt whose suggestions are times; samples of those that are wrong are refused."""

    def __init__(self, monkeypatch, suggestions, wrong):
        self.wrong, self.timed = set(wrong), []
        product = type("Product", (), {"suggestions": suggestions})
        monkeypatch.setattr(
            "cudal2_agent.sandbox.cuda.baselines.library_baselines.LtGemm", lambda _name, _product, us: _Stub(us)
        )
        self.baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), self.sample, lambda one, _launches: one.us)
        self.baselines._lt_products = [product()]

    def sample(self, contender):
        self.timed.append(contender.us)
        if contender.us in self.wrong:
            raise WrongProduct(f"{contender.detail} is wrong: 9 of 9 rows")
        return contender.us


def test_a_suggestion_with_a_wrong_product_is_no_baseline(monkeypatch):
    library = _Library(monkeypatch, [5, 3, 4, 9], wrong=[3])
    opened = library.baselines.open([AUTOTUNED])
    assert opened.contenders[AUTOTUNED][0].us == 4
    assert opened.contenders[AUTOTUNED][0].detail == "4 us; best of 4 suggestions, but for 1 with a wrong product"
    assert opened.notes == ("not a baseline: cublaslt: 3 us is wrong: 9 of 9 rows",)
    assert library.baselines.tuned.time_us == 4


def test_behind_all_finalists_that_are_wrong_come_the_next_ones(monkeypatch):
    library = _Library(monkeypatch, list(range(1, 20)), wrong=range(1, 7))
    assert library.baselines.open([AUTOTUNED]).contenders[AUTOTUNED][0].us == 7


def test_the_heuristic_is_the_first_suggestion_that_is_right(monkeypatch):
    library = _Library(monkeypatch, [5, 3, 4], wrong=[5])
    opened = library.baselines.open([HEURISTIC])
    assert [one.us for one in opened.contenders[HEURISTIC]] == [3]
    assert "5 us is wrong" in opened.notes[0]
    none = _Library(monkeypatch, [5, 3], wrong=[5, 3]).baselines.open([HEURISTIC])
    assert (none.contenders, len(none.notes)) == ({}, 3)


def test_a_kept_algorithm_that_became_wrong_is_tuned_anew(monkeypatch):
    library = _Library(monkeypatch, [5, 3], wrong=[2])
    monkeypatch.setattr(library.baselines, "_restored", lambda _known: _Stub(2))
    library.baselines.known = "kept"
    assert library.baselines.open([AUTOTUNED]).contenders[AUTOTUNED][0].us == 3
    library.baselines.forget(AUTOTUNED)
    assert library.baselines.known is None


def test_on_a_machine_without_a_driver_every_baseline_is_a_note():
    if driver_present():
        pytest.skip("this machine has a driver")
    opened = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample).open(BASELINES)
    assert opened.contenders == {}
    assert len(opened.notes) == len(BASELINES)


def test_a_record_of_an_algorithm_is_read_back_as_it_was():
    product = LtProduct.__new__(LtProduct)
    product._restored = []
    record = bytes(range(64)).hex()
    assert LtProduct.record(product.restore(record)) == record
    for wrong in (record[2:], "no digits"):
        with pytest.raises(Unavailable, match="record"):
            product.restore(wrong)
