"""One evaluation of every kind, with no field at its default; plans and tasks of which a test changes one field. Not a test."""

from typing import Any

from cudal2_agent.contract.plan.plan import LaunchPlan, plan_from_json
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    CUBLAS,
    CompileFailed,
    Crashed,
    Environment,
    Evaluation,
    Measured,
    Prediction,
    Rejected,
    SideFigures,
    Telemetry,
    TestResult,
    TimedOut,
    Timing,
    Unmeasured,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode

ENVIRONMENT = Environment(
    gpu="H200",
    arch="sm_90a",
    sms=132,
    l2_bytes=60 * 2**20,
    memory_bytes=141 * 10**9,
    driver="580.1",
    cuda="13.0",
    nvrtc="13.0",
    cublas="13.1",
    torch="2.13",
    python="3.12",
    platform="Linux",
)
KERNEL = KernelResources(
    entry="hgemm",
    registers=168,
    spill_store_bytes=8,
    spill_load_bytes=4,
    stack_bytes=16,
    static_smem_bytes=1024,
    dynamic_smem_bytes=200_000,
    threads=384,
    ctas_per_sm=1,
    occupancy=0.1875,
    occupancy_limiter="shared memory",
)
INSPECTION = Inspection(
    cubin_sha256="0" * 64,
    compile_seconds=0.25,
    kernels=(KERNEL,),
    opcodes={"HGMMA": 64, "UTMALDG": 2},
    opcode_source="sass",
    mma=("wgmma.m64n256k16.f32.f16",),
    accumulators=(AccumulatorType.F32,),
    warnings=("serialised",),
)
FAILED = TestResult(tier="1", name="exact", passed=False, worst=float("inf"), message="D[3,5] is NaN")
PASSED = TestResult(tier="2", name="gaussian", passed=True, worst=0.125)


def measured(candidate_us: tuple[float, ...] = (8.0, 8.5, 8.25), **baselines: tuple[float, ...]) -> Measured:
    """A measurement with the autotuned baseline at 10 µs unless baselines are given (by name, underscores for dashes)."""
    named = {name.replace("_", "-"): samples for name, samples in baselines.items()}
    return Measured(
        mode=TimingMode.OFFLINE,
        tests=(PASSED,),
        timing=Timing(name="candidate", samples_us=candidate_us),
        baselines=tuple(
            Timing(name=name, samples_us=samples)
            for name, samples in (named or {AUTOTUNED: (10.0,) * len(candidate_us)}).items()
        ),
        side=SideFigures(host_launch_us=4.1, hot_l2_us=7.9, wall_clock_us=12.0, without_programmatic_us=8.6),
        telemetry=Telemetry(
            sm_clock_mhz=(1980.0,),
            memory_clock_mhz=(3201.0,),
            temperature_c=(41.0,),
            power_w=(612.5,),
            throttle_reasons=("power",),
        ),
        environment=ENVIRONMENT,
        inspection=INSPECTION,
        notes=("repeated once",),
    )


UNMEASURED = Unmeasured(
    verified_by="emulator",
    tests=(PASSED,),
    prediction=Prediction(predicted_us=9.5, model="analytic", floor_us=6.25),
    inspection=INSPECTION,
)
FAULTS: tuple[Evaluation, ...] = (
    Rejected(rule="plan-smem-limit", message="too much", line=7),
    CompileFailed(message="error: expected ';'", log="a.cu(3): error\n" * 3),
    Crashed(stage="verify", message="illegal address", inspection=INSPECTION),
    TimedOut(stage="time", limit_s=30.0, inspection=INSPECTION),
    Wrong(test=FAILED, tests=(PASSED, FAILED), inspection=INSPECTION),
    Wrong(test=FAILED, tests=(PASSED, FAILED), inspection=INSPECTION, refused=measured()),
)
PROVED = measured().model_copy(update={"witness": Witness(status="in-part", tests=(PASSED,))})
UNPROVED = measured().model_copy(update={"witness": Witness(status="unavailable", reason="the core was not built")})
EVALUATIONS: tuple[Evaluation, ...] = (
    *FAULTS,
    UNMEASURED,
    measured(),
    measured(**{CUBLAS: (9.0, 9.0, 9.0)}),
    PROVED,
    UNPROVED,
)


HOPPER = GemmTask(m=4096, n=1024, k=512, arch=Arch.SM_90A)
AMPERE = GemmTask(m=4096, n=1024, k=512, arch=Arch.SM_80)

LAUNCH: dict[str, Any] = {
    "entry": "hgemm",
    "grid": ["ceil(N/128)", "ceil(M/128)", 1],
    "block": [256, 1, 1],
    "dynamic_smem": 65536,
    "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}],
}


def plan(launch: dict[str, Any] | None = None, **fields: Any) -> LaunchPlan:
    """The plain plan for sm_80 with some fields of the launch and of the plan replaced."""
    return plan_from_json({"arch": "sm_80", "launches": [LAUNCH | (launch or {})], **fields})


def with_args(*args: dict[str, Any]) -> dict[str, Any]:
    """A launch whose arguments are D and those given."""
    return {"args": [{"tensor": "D", "access": "write"}, *args]}


def tensor_map(**fields: Any) -> dict[str, Any]:
    return with_args({"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128} | fields})
