"""Gains with intervals and their sums, the AutoTuning times that they rest on, and the chip that advice is for."""

import random
import statistics

import pytest

from cudal2_agent.agent.library.advise.gains import NO_GAIN, GainInterval, KernelGain, time_spared, total_gain
from cudal2_agent.agent.library.advise.known_kernels import KnownKernels, Target, chip_of, find_target
from cudal2_agent.agent.library.advise.library_times import CallTime, LibraryTimes
from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.wiring.gpus import Gpu
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import Speedup
from tests.agent.library.advise.test_products import product


def gain(value: float, half: float) -> GainInterval:
    return GainInterval(value=value, low=value - half, high=value + half)


def test_a_speedup_spares_a_share_of_the_time() -> None:
    spared = time_spared(10.0, Speedup(baseline="x", ratio=1.25, low=1.0, high=2.0))
    assert (spared.value, spared.low, spared.high) == pytest.approx((2.0, 0.0, 5.0))


def test_errors_of_different_kernels_add_up_in_squares_and_of_the_same_one_linearly() -> None:
    apart = total_gain([KernelGain("a", gain(5, 3)), KernelGain("b", gain(7, 4))])
    same = total_gain([KernelGain("a", gain(5, 3)), KernelGain("a", gain(7, 4))])
    assert (apart.value, apart.low, apart.high) == pytest.approx((12, 7, 17))
    assert (same.value, same.low, same.high) == pytest.approx((12, 5, 19))


def test_the_two_sides_are_apart() -> None:
    lopsided = GainInterval(value=5, low=5, high=8)
    total = total_gain([KernelGain("a", lopsided), KernelGain("b", GainInterval(value=1, low=-3, high=5))])
    assert (total.low, total.high) == pytest.approx((2, 11))


def test_nothing_spares_nothing() -> None:
    assert total_gain([]) == NO_GAIN


def test_the_interval_of_a_sum_holds_95_per_cent_of_drawn_sums() -> None:
    """Kernels with normal errors of different sizes; the first of them is called in two places."""
    rng = random.Random(0)
    deviations = {"a": 1.0, "b": 0.5, "c": 2.0}
    calls = [("a", 3.0), ("a", 2.0), ("b", 8.0), ("c", 1.0)]
    total = total_gain(KernelGain(name, gain(10 * n, 1.96 * n * deviations[name])) for name, n in calls)
    sums = []
    for _ in range(4000):
        errors = {name: rng.gauss(0, deviation) for name, deviation in deviations.items()}
        sums.append(sum(n * (10 + errors[name]) for name, n in calls))
    assert statistics.mean(total.low <= one <= total.high for one in sums) == pytest.approx(0.95, abs=0.01)


CHIP = REFERENCE_CHIPS[Arch.SM_90A]


def test_a_measured_time_is_taken_for_its_own_layout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 9.0)
    times = LibraryTimes({GemmTask(m=4, n=16, k=8): 3.0}, CHIP)
    assert times.of(product()) == CallTime(us=3.0, predicted=False)
    for layout in ("tn", "tt"):
        assert times.of(product(layout=layout)) == CallTime(us=9.0, predicted=True)
    assert times.of(product(element="f32")) is None


def test_a_prediction_is_near_what_autotuning_takes() -> None:
    """A row of the sweep: 10.63 us of AutoTuning, measured on an H200."""
    found = LibraryTimes({}, CHIP).of(product(m=2048, n=256, k=4096))
    assert found is not None
    assert found.predicted
    assert found.us == pytest.approx(10.63, rel=0.3)


def test_a_batch_is_one_launch() -> None:
    one, many = (LibraryTimes({}, CHIP).of(product(m=512, n=512, k=64, batch=batch)) for batch in (2, 64))
    assert one is not None
    assert many is not None
    single = roofline_us(GemmTask(m=512, n=512, k=64), CHIP) - CHIP.launch_us
    assert many.us - one.us == pytest.approx(62 * single)
    assert many.predicted


def test_a_task_that_no_family_writes_takes_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times.families", lambda _arch: ())
    found = LibraryTimes({}, CHIP).of(product(m=3, n=5, k=7))
    assert found == CallTime(us=roofline_us(GemmTask(m=3, n=5, k=7), CHIP), predicted=True)


HERE = (Gpu(index=0, name="NVIDIA X", arch=None), Gpu(index=1, name="NVIDIA A100-SXM4-80GB", arch=Arch.SM_80))
KERNELS = KnownKernels("small", "H200", Arch.SM_90A, lambda _task: None)
TRACED = Recording(products=(), gpu="H100 80GB HBM3", capability=90)


def test_a_name_counts_before_the_trace_and_the_trace_before_what_is_here() -> None:
    assert find_target("NVIDIA H200", TRACED, HERE) == Target(name="H200")
    assert find_target(None, TRACED, HERE) == Target(name="H100 80GB HBM3", arch=Arch.SM_90A)
    assert find_target(None, Recording(products=()), HERE) == Target(name="A100-SXM4-80GB", arch=Arch.SM_80)
    assert find_target(None, Recording(products=()), ()) is None


def test_the_librarys_chip_is_meant_where_nothing_else_is() -> None:
    assert chip_of(None, KERNELS) == chip_of(Target(name="h200"), KERNELS) == REFERENCE_CHIPS[Arch.SM_90A]


def test_another_chip_of_an_architecture_takes_the_rates_of_its_reference() -> None:
    found = chip_of(Target(name="H100 80GB HBM3", arch=Arch.SM_90A), KERNELS)
    assert (found.name, found.measured, found.tensor_tflops) == ("H100 80GB HBM3", False, 800)


def test_unknown_chips_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"--chip 'H2O0' is not known; choose from .*H200"):
        chip_of(Target(name="H2O0"), KERNELS)
    with pytest.raises(UsageError, match="the trace is of V100, for which this product has no kernels"):
        find_target(None, TRACED.model_copy(update={"gpu": "V100", "capability": 70}), HERE)
