"""What the timer decides without a GPU: sets, launches, order, arrivals, throttling, and what the libraries are told."""

import ctypes

import numpy as np
import pytest

from contract.evaluation import BASELINES
from contract.task import AccumulatorType, GemmTask, Layout
from sandbox.cuda.baselines import LibraryBaselines
from sandbox.cuda.library import Scalars, Unavailable, column_major
from sandbox.cuda.telemetry import name_reasons, open_sampler
from sandbox.local import driver_present
from sandbox.timing import (
    MAX_SETS,
    arrival_intervals_us,
    count_launches,
    count_sets,
    set_bytes,
    shuffled_rounds,
    stays_cold,
    throttled_apart,
)

L2 = 60 * 1024**2
MEMORY = 64 * 1024**3
GRID = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)


def test_every_grid_shape_rotates_through_more_than_l2():
    for m in GRID:
        for n in GRID:
            for k in GRID:
                task = GemmTask(m=m, n=n, k=k)
                sets = count_sets(task, L2, MEMORY)
                assert 4 <= sets <= MAX_SETS
                assert stays_cold(task, sets, L2), task.shape
                assert sets * set_bytes(task) <= MEMORY


def test_little_memory_gives_fewer_sets_but_one():
    task = GemmTask(m=4096, n=4096, k=4096)
    assert count_sets(task, L2, 3 * set_bytes(task)) == 3
    assert count_sets(task, L2, 1) == 1
    assert not stays_cold(task, 1, L2)


def test_tiny_operands_are_told_to_stay_in_cache():
    task = GemmTask(m=1, n=1, k=1)
    assert not stays_cold(task, count_sets(task, L2, MEMORY), L2)


@pytest.mark.parametrize(
    ("launch_us", "sets", "want"), [(10, 4, 400), (5000, 4, 4), (0.001, 4, 8192), (2, 4096, 4096), (1, 3000, 4000)]
)
def test_a_sample_lasts_its_round_and_uses_every_set(launch_us, sets, want):
    assert count_launches(launch_us, sets, round_us=4000) == want


def test_rounds_hold_everyone_in_changing_order():
    names = ["candidate", "a", "b", "c"]
    rounds = shuffled_rounds(names, 50, seed=3)
    assert all(sorted(order) == sorted(names) for order in rounds)
    assert {order[0] for order in rounds} == set(names)
    assert rounds == shuffled_rounds(names, 50, seed=3)
    assert rounds != shuffled_rounds(names, 50, seed=4)


def test_arrivals_are_exponential_about_their_mean():
    intervals = np.array(arrival_intervals_us(20000, 200, seed=1))
    assert intervals.min() >= 0
    assert intervals.mean() == pytest.approx(200, rel=0.03)
    assert intervals.std() == pytest.approx(200, rel=0.05)


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


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("shape", [(5, 7, 3), (4, 4, 4), (1, 6, 2)])
def test_column_major_call_computes_the_row_major_product(layout, shape):
    """cuBLAS in numpy: operands read column by column with their leading dimensions, as the library would."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    left_memory = (b if layout is Layout.NN else np.ascontiguousarray(b.T)).ravel()
    call = column_major(GemmTask(m=m, n=n, k=k), layout)
    rows, columns = (call.depth, call.rows) if call.transpose_left else (call.rows, call.depth)
    left = left_memory.reshape(columns, call.lead_left).T[:rows]
    left = left.T if call.transpose_left else left
    right = a.ravel().reshape(call.columns, call.lead_right).T[: call.depth]
    out = left @ right
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
    """A suggestion that takes a given time, or does not run."""

    def __init__(self, us):
        self.us, self.detail = us, f"{us} us"


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

    monkeypatch.setattr("sandbox.cuda.baselines.LtGemm", lambda _name, _product, us: _Stub(us))
    baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample)
    baselines._lt_products = [Product(), Product()]
    (best,) = baselines.open(["cublaslt-autotuning"]).contenders["cublaslt-autotuning"]
    assert best.us == 3
    assert "best of 14 suggestions" in best.detail


def test_tuning_without_a_running_suggestion_is_a_note(monkeypatch):
    class Product:
        suggestions = (None, None)

    monkeypatch.setattr("sandbox.cuda.baselines.LtGemm", lambda _name, _product, us: _Stub(us))
    baselines = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample)
    baselines._lt_products = [Product()]
    opened = baselines.open(["cublaslt-autotuning"])
    assert opened.contenders == {}
    assert "none of cuBLASLt's 2 suggestions runs" in opened.notes[0]


def test_on_a_machine_without_a_driver_every_baseline_is_a_note():
    if driver_present():
        pytest.skip("this machine has a driver")
    opened = LibraryBaselines(GemmTask(m=64, n=64, k=64), _sample).open(BASELINES)
    assert opened.contenders == {}
    assert len(opened.notes) == len(BASELINES)
