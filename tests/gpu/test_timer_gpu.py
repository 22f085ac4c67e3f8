"""Baselines, verification of what is known to be right, and timing, in this process on a GPU."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.build import Built
from contract.candidate import Candidate, Origin
from contract.chip import roofline_us
from contract.evaluation import AUTOTUNED, BASELINES, HEURISTIC
from contract.options import CompileOptions, TimeOptions, VerifyOptions
from contract.speedup import median_us, paired_speedup
from contract.task import Arch, GemmTask, Layout

pytestmark = pytest.mark.gpu

HONEST = Path(__file__).with_name("attacks") / "honest.cu"
BRIEF = TimeOptions(rounds=3, round_us=500, server_launches=20, side=False)


@pytest.fixture(scope="module")
def device():
    from sandbox.cuda.device import Device

    return Device(0)


@pytest.fixture(scope="module")
def honest(device, tmp_path_factory) -> Iterator:
    """Loads the honest kernel for a task."""
    from sandbox.builder import Builder
    from sandbox.cuda.evaluator import load

    builder = Builder(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))), device.chip)

    def make(task: GemmTask, name: str = "honest", flags: tuple[str, ...] = ()):
        candidate = Candidate.from_source(HONEST.with_name(f"{name}.cu").read_text(), Origin(policy="test"), flags)
        ((_, built),) = builder.build([candidate], task)
        assert isinstance(built, Built), built
        return load(built, task, device)

    return make


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (40, 56, 72), (37, 53, 71), (1000, 1000, 1000), (4096, 1024, 512), (128, 128, 16384)]
)
def test_cublas_passes_every_tier(device, shape, layout, accumulate):
    """The bounds must let through what is known to be right."""
    from sandbox.cuda.cublas import CublasGemm
    from sandbox.cuda.verifier import Verifier

    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, layout=layout, accumulate=accumulate, arch=device.arch)
    tests = Verifier(task, device).verify(CublasGemm(task, Layout(layout), strict=True), VerifyOptions())
    assert all(test.passed for test in tests), tests[-1]


@pytest.mark.parametrize("shape", [(64, 64, 64), (1000, 1000, 1000), (128, 128, 16384)])
def test_cublas_passes_every_tier_in_bf16(device, shape):
    from sandbox.cuda.cublas import CublasGemm
    from sandbox.cuda.verifier import Verifier

    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, element="bf16", arch=device.arch)
    tests = Verifier(task, device).verify(CublasGemm(task, Layout.NN, strict=True), VerifyOptions())
    assert all(test.passed for test in tests), tests[-1]


def test_cublas_with_f16_sums_fails_an_f32_task(device):
    from sandbox.cuda.cublas import CublasGemm
    from sandbox.cuda.verifier import Verifier

    task = GemmTask(m=512, n=512, k=1024, arch=device.arch)
    narrow = CublasGemm(task.model_copy(update={"accumulate": "f16"}), Layout.NN)
    tests = Verifier(task, device).verify(narrow, VerifyOptions())
    assert (tests[-1].passed, tests[-1].name) == (False, "wide-sums")


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("shape", [(256, 128, 64), (1000, 520, 264)])
def test_all_baselines_compute_the_product(device, shape, layout, element):
    import cupy

    from sandbox.cuda.baselines import LibraryBaselines
    from sandbox.cuda.operand_sets import OperandSets
    from sandbox.verification.elements import decode

    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, layout=layout, element=element, arch=device.arch)
    sets = OperandSets(task, 1, seed=3)

    def run(contender) -> float:
        sets.scrub()
        contender.bind(sets.operands(0)).enqueue(device.stream.ptr)
        device.synchronize()
        operands = sets.operands(0)
        a, b, d = (decode(cupy, x.view(cupy.uint16), task.element) for x in (operands.a, operands.b_nn, operands.d))
        want = a.astype(cupy.float64) @ b.astype(cupy.float64)
        assert float(abs(d - want).max()) <= 0.02 * float(abs(want).max()), contender.name
        return 1.0

    baselines = LibraryBaselines(task, run).open(BASELINES)
    assert set(baselines.contenders) == set(BASELINES), baselines.notes
    for contenders in baselines.contenders.values():
        for contender in contenders:
            run(contender)


@pytest.mark.parametrize("mode", ["offline", "server"])
def test_measurement_is_whole_and_plausible(device, honest, mode):
    from sandbox.cuda.timer import Timer

    task = GemmTask(m=512, n=512, k=256, mode=mode, arch=device.arch)
    measurement = Timer(task, device).measure(honest(task), BRIEF.model_copy(update={"side": True}))
    assert [timing.name for timing in measurement.baselines] == list(BASELINES), measurement.notes
    assert all(len(timing.samples_us) == BRIEF.rounds for timing in (measurement.timing, *measurement.baselines))
    floor_us = roofline_us(task.flops, task.operand_bytes, device.chip) - device.chip.launch_us
    assert all(median_us(timing) > floor_us for timing in (measurement.timing, *measurement.baselines))
    assert paired_speedup(measurement.timing, measurement.baselines[-1]).ratio < 1, "a naive kernel beat cuBLASLt"
    assert measurement.side.hot_l2_us > 0
    assert measurement.side.wall_clock_us > measurement.side.hot_l2_us
    assert measurement.side.without_programmatic_us is None


def test_quick_measurement_has_the_autotuned_baseline_only(device, honest):
    from sandbox.cuda.timer import Timer

    task = GemmTask(m=256, n=256, k=256, arch=device.arch)
    timer = Timer(task, device)
    first = timer.measure(honest(task), BRIEF.model_copy(update={"all_baselines": False}))
    again = timer.measure(honest(task), BRIEF.model_copy(update={"all_baselines": False, "seed": 1}))
    assert [timing.name for timing in first.baselines] == [AUTOTUNED]
    assert first.baselines[0].detail == again.baselines[0].detail, "tuned twice"


def test_same_kernel_against_itself_is_no_faster(device):
    """cuBLASLt's choice timed as the candidate: the method has no bias for either side."""
    from sandbox.cuda.cublaslt import LtGemm, LtProduct
    from sandbox.cuda.timer import Timer

    task = GemmTask(m=2048, n=1024, k=512, arch=device.arch)
    product = LtProduct(task, task.layout)
    candidate = LtGemm("candidate", product, product.suggestions[0])
    measurement = Timer(task, device).measure(candidate, TimeOptions(rounds=11, side=False))
    heuristic = next(timing for timing in measurement.baselines if timing.name == HEURISTIC)
    if "layout nn" in heuristic.detail.split(";")[0]:
        assert paired_speedup(measurement.timing, heuristic).ratio == pytest.approx(1, abs=0.02)
    tuned = next(timing for timing in measurement.baselines if timing.name == AUTOTUNED)
    assert median_us(tuned) <= 1.03 * median_us(heuristic)


def test_cold_operands_take_longer_than_hot_ones(device):
    from sandbox.cuda.cublaslt import LtGemm, LtProduct
    from sandbox.cuda.timer import Timer

    task = GemmTask(m=64, n=4096, k=4096, arch=device.arch)
    product = LtProduct(task, task.layout)
    candidate = LtGemm("candidate", product, product.suggestions[0])
    measurement = Timer(task, device).measure(candidate, TimeOptions(rounds=5, all_baselines=False))
    assert median_us(measurement.timing) > 1.1 * measurement.side.hot_l2_us


@pytest.mark.parametrize("name", ["unwritten", "zero_one_only"])
@pytest.mark.parametrize("mode", ["offline", "server"])
def test_wrong_outputs_of_timed_launches_are_a_fault(device, honest, name, mode):
    """Outputs are poisoned between samples and looked at after the last: proof and timing cannot be told apart."""
    from sandbox.cuda.timer import Timer, WrongWhileTimed

    task = GemmTask(m=64, n=64, k=64, mode=mode, arch=device.arch)
    with pytest.raises(WrongWhileTimed):
        Timer(task, device).measure(honest(task, name), BRIEF)


def test_programmatic_kernel_is_timed_with_and_without(device, honest):
    from sandbox.cuda.timer import Timer

    if device.arch is not Arch.SM_90A:
        pytest.skip("the kernel's plan is for sm_90a")
    task = GemmTask(m=256, n=256, k=64, arch=device.arch)
    candidate = honest(task, "dependency", ("-DWAIT_AT=0",))
    measurement = Timer(task, device).measure(candidate, BRIEF.model_copy(update={"side": True}))
    assert measurement.side.without_programmatic_us > 0
    assert statistics.median(measurement.timing.samples_us) <= measurement.side.without_programmatic_us * 1.1
