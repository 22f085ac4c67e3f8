"""The diagnosis: each rule on figures that must and figures that must not trigger it."""

import pytest

from contract.chip import REFERENCE_CHIPS
from contract.evaluation import AUTOTUNED, Environment, Measured, Timing
from contract.inspection import Inspection, KernelResources
from contract.plan import ResolvedLaunch, ResolvedPlan
from contract.task import AccumulatorType, Arch, GemmTask, TimingMode
from sandbox.diagnosis import diagnose

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=4096, n=4096, k=4096)
KERNEL = KernelResources(
    entry="gemm", registers=128, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0, static_smem_bytes=0,
    dynamic_smem_bytes=100_000, threads=256, ctas_per_sm=2, occupancy=0.25, occupancy_limiter="registers",
)  # fmt: skip
INSPECTION = Inspection(
    cubin_sha256="0", compile_seconds=1.0, kernels=(KERNEL,), opcodes={"HMMA": 1}, opcode_source="sass",
    mma=("HMMA.16816.F32",), accumulators=(AccumulatorType.F32,),
)  # fmt: skip
ENVIRONMENT = Environment(
    gpu="H200", arch="sm_90a", sms=132, l2_bytes=1, memory_bytes=1, driver="1", cuda="13", nvrtc="13", cublas="13",
    python="3", platform="x",
)  # fmt: skip


def launches(ctas: int = 264, count: int = 1) -> ResolvedPlan:
    launch = ResolvedLaunch(
        entry="gemm", grid=(ctas, 1, 1), block=(256, 1, 1), cluster=(1, 1, 1), dynamic_smem=100_000, programmatic=False, args=()
    )  # fmt: skip
    return ResolvedPlan(launches=(launch,) * count, workspace_bytes=0, zero=False, zero_bytes=0)


def measured(time_us: float) -> Measured:
    timing = Timing(name="candidate", samples_us=(time_us,) * 3)
    return Measured(
        mode=TimingMode.OFFLINE, tests=(), timing=timing, baselines=(timing.model_copy(update={"name": AUTOTUNED}),),
        environment=ENVIRONMENT, inspection=INSPECTION,
    )  # fmt: skip


def kernel(**changes: object) -> Inspection:
    return INSPECTION.model_copy(update={"kernels": (KERNEL.model_copy(update=changes),)})


def names(inspection: Inspection = INSPECTION, plan: ResolvedPlan | None = None, time_us: float | None = None) -> list[str]:
    found = diagnose(inspection, plan or launches(), TASK, CHIP, measured(time_us) if time_us else None)
    return [finding.bottleneck for finding in found.findings]


def test_a_sound_kernel_has_no_static_finding() -> None:
    found = diagnose(INSPECTION, launches(), TASK, CHIP, None)
    assert (found.basis, found.findings, found.roofline_fraction) == ("static", (), None)


def test_findings_of_the_code() -> None:
    assert names(INSPECTION.model_copy(update={"mma": ()})) == ["no-tensor-cores"]
    assert names(kernel(spill_store_bytes=64, stack_bytes=64)) == ["spills"]
    assert names(kernel(stack_bytes=64)) == ["local-memory"]
    assert names(kernel(occupancy=0.1)) == ["occupancy"]


def test_warnings_of_ptxas_become_findings() -> None:
    lines = (
        "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x",
        "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.",
        "kernel.cu(1): warning #177-D: unused",
    )
    assert names(INSPECTION.model_copy(update={"warnings": lines})) == ["wgmma-serialised", "setmaxnreg-ignored"]


@pytest.mark.parametrize(
    ("ctas", "expected"),
    [(264, []), (132, []), (528, []), (265, ["tail-wave"]), (100, ["idle-sms"]), (1, ["idle-sms"]), (26400 + 1, [])],
)
def test_waves(ctas: int, expected: list[str]) -> None:
    assert names(plan=launches(ctas)) == expected


def test_the_heaviest_finding_comes_first() -> None:
    found = diagnose(kernel(occupancy=0.1, spill_store_bytes=500), launches(8), TASK, CHIP, None)
    weights = [finding.weight for finding in found.findings]
    assert [finding.bottleneck for finding in found.findings] == ["spills", "idle-sms", "occupancy"]
    assert weights == sorted(weights, reverse=True)
    assert all(any(letter.isdigit() for letter in finding.evidence) for finding in found.findings)


def test_time_is_held_against_the_roofline() -> None:
    found = diagnose(INSPECTION, launches(), TASK, CHIP, measured(400.0))
    assert found.basis == "timed"
    assert found.roofline_fraction == pytest.approx((2 * 4096**3 / 800e6 + 0.7) / 400)
    assert [finding.bottleneck for finding in found.findings] == ["far-from-roofline-arithmetic"]
    assert names(time_us=180.0) == []


def test_small_work_is_launch_bound_and_memory_bound() -> None:
    small = GemmTask(m=64, n=64, k=64)
    found = diagnose(INSPECTION, launches(132), small, CHIP, measured(2.0))
    assert [finding.bottleneck for finding in found.findings] == ["launch-bound", "far-from-roofline-memory"]
    assert "launch-bound" not in names(time_us=180.0, plan=launches(count=2))


def test_a_host_candidate_is_diagnosed_without_a_plan() -> None:
    unknown = kernel(threads=0, ctas_per_sm=0, occupancy=0.0, occupancy_limiter="unknown")
    found = diagnose(unknown, None, TASK, CHIP, measured(400.0))
    assert [finding.bottleneck for finding in found.findings] == ["far-from-roofline-arithmetic"]
