"""The diagnosis: for each rule figures that trigger it and figures that do not, and precedence of counters."""

import math

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import HostCandidate, Origin
from cudal2_agent.contract.records.diagnosis import Bottleneck, Diagnosis
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Environment, LaunchTime, Measured, Prediction, Timing
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose, diagnose_built, predicted_findings
from tests import doubles

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=4096, n=4096, k=4096)
SMALL = GemmTask(m=64, n=64, k=64)
KERNEL = KernelResources(
    entry="gemm", registers=128, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0, static_smem_bytes=0,
    dynamic_smem_bytes=100_000, threads=256, ctas_per_sm=2, occupancy=0.25, occupancy_limiter="registers",
)  # fmt: skip
WGMMA = Inspection(
    cubin_sha256="0", compile_seconds=1.0, kernels=(KERNEL,), opcodes={"HGMMA": 1, "UTMALDG": 2}, opcode_source="sass",
    mma=("HGMMA.64x128x16.F32",), accumulators=(AccumulatorType.F32,),
)  # fmt: skip
MMA_SYNC = WGMMA.model_copy(update={"mma": ("HMMA.16816.F32",), "opcodes": {"HMMA": 64, "LDSM": 24, "LDGSTS": 8, "LDS": 4}})
ENVIRONMENT = Environment(
    gpu="H200", arch="sm_90a", sms=132, l2_bytes=1, memory_bytes=1, driver="1", cuda="13", nvrtc="13", cublas="13",
    python="3", platform="x",
)  # fmt: skip


def launches(ctas: int = 264, count: int = 1, *, programmatic: bool = False) -> ResolvedPlan:
    launch = ResolvedLaunch(
        entry="gemm", grid=(ctas, 1, 1), block=(256, 1, 1), cluster=(1, 1, 1), dynamic_smem=100_000, programmatic=programmatic,
        args=(),
    )  # fmt: skip
    return ResolvedPlan(launches=(launch,) * count, workspace_bytes=0, zero=False, zero_bytes=0)


def measured(time_us: float) -> Measured:
    timing = Timing(name="candidate", samples_us=(time_us,) * 3)
    return Measured(
        mode=TimingMode.OFFLINE, tests=(), timing=timing, baselines=(timing.model_copy(update={"name": AUTOTUNED}),),
        environment=ENVIRONMENT, inspection=WGMMA,
    )  # fmt: skip


def profile(ctas: int = 264, **metrics: float) -> Profile:
    launch = LaunchProfile(entry="gemm", grid=(ctas, 1, 1), block=(256, 1, 1), metrics=metrics)
    return Profile(tool="ncu", metric_set="sm_90a", launches=(launch,), seconds=1.0)


def kernel(inspection: Inspection = WGMMA, **changes: object) -> Inspection:
    return inspection.model_copy(update={"kernels": (KERNEL.model_copy(update=changes),)})


def mix(**opcodes: int) -> Inspection:
    return MMA_SYNC.model_copy(update={"opcodes": opcodes})


def names(found: Diagnosis) -> list[Bottleneck]:
    return [finding.bottleneck for finding in found.findings]


def static(inspection: Inspection = WGMMA, ctas: int = 264, task: GemmTask = SMALL) -> list[Bottleneck]:
    return names(diagnose(inspection, launches(ctas), task, CHIP))


def weight(found: Diagnosis, bottleneck: Bottleneck) -> float:
    return next(finding.weight for finding in found.findings if finding.bottleneck == bottleneck)


def test_a_sound_kernel_has_no_static_finding() -> None:
    found = diagnose(WGMMA, launches(), TASK, CHIP, None)
    assert (found.basis, found.findings, found.roofline_fraction) == ("static", (), None)
    assert static(MMA_SYNC) == []


def test_findings_of_resources() -> None:
    assert static(kernel(spill_store_bytes=64, stack_bytes=64)) == ["spills"]
    assert static(kernel(stack_bytes=64)) == ["local-memory"]


def test_many_spilled_bytes_weigh_more_than_few() -> None:
    few, many = (diagnose(kernel(spill_load_bytes=size), launches(), TASK, CHIP) for size in (4, 256))
    assert weight(few, "spills") < 0.05 < weight(many, "spills")


def test_occupancy_counts_where_nothing_else_hides_latency() -> None:
    registers_only = mix(HMMA=64, LDG=8, STS=8, LDSM=16)
    assert "occupancy" in static(kernel(registers_only, occupancy=0.1, ctas_per_sm=1))
    assert "occupancy" not in static(kernel(registers_only, occupancy=0.25))
    assert static(kernel(MMA_SYNC, occupancy=0.1, ctas_per_sm=1)) == []
    assert static(kernel(MMA_SYNC, occupancy=0.06, ctas_per_sm=1, threads=128, dynamic_smem_bytes=1)) == ["occupancy"]
    assert static(kernel(WGMMA, occupancy=0.06, ctas_per_sm=1, threads=128, dynamic_smem_bytes=1)) == []


@pytest.mark.parametrize(("ctas", "said"), [(1, "1 CTA of 128 threads per SM"), (3, "3 CTAs of 128 threads per SM")])
def test_occupancy_names_its_limit(ctas: int, said: str) -> None:
    limited = kernel(
        mix(HMMA=64, LDG=8, STS=8, LDSM=16), occupancy=0.06, ctas_per_sm=ctas, threads=128, occupancy_limiter="shared-memory"
    )
    [found] = [one for one in diagnose(limited, launches(), TASK, CHIP).findings if one.bottleneck == "occupancy"]
    assert found.evidence.endswith(f": {said} (6 % of its threads), limited by shared memory")


def test_no_tensor_cores_weighs_what_they_would_spare() -> None:
    fused = WGMMA.model_copy(update={"mma": (), "opcodes": {"FFMA": 512}})
    large, small = (diagnose(fused, launches(), task, CHIP) for task in (TASK, SMALL))
    assert names(large) == names(small) == ["no-tensor-cores"]
    assert large.findings[0].weight > 0.9 > small.findings[0].weight
    assert "512" in large.findings[0].evidence


def test_mma_sync_is_slow_on_hopper_where_arithmetic_counts() -> None:
    assert static(MMA_SYNC, task=TASK) == ["legacy-mma"]
    assert static(MMA_SYNC, task=SMALL) == []
    ampere = GemmTask(m=4096, n=4096, k=4096, arch=Arch.SM_80)
    assert names(diagnose(MMA_SYNC, launches(216), ampere, REFERENCE_CHIPS[Arch.SM_80])) == []


def test_warnings_of_ptxas_become_findings() -> None:
    lines = (
        "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x",
        "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.",
        "kernel.cu(1): warning #177-D: unused",
    )
    assert static(WGMMA.model_copy(update={"warnings": lines})) == ["wgmma-serialised", "setmaxnreg-ignored"]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("the presence of Extern calls in the function 'k'", "NDEBUG"),
        ("non wgmma instructions reading accumulator registers of  a wgmma between start and end of the pipeline", "the wait"),
        ("non wgmma instructions defining accumulator registers of a wgmma between start and end of the pipeline", "scale-d"),
        ("non wgmma instructions defining input registers of a wgmma between start and end of the pipeline", "registers of A"),
        ("insufficient register resources for the wgmma pipeline in the function 'k'", "smaller tile"),
        ("wgmma pipeline crossing function boundary at a function call in the function 'k'", "__forceinline__"),
        ("ill formed pipeline stage in the function 'k'", "straight line"),
        ("program dependence on compiler-inserted WG.DP in divergent path in the function 'k'", "branches"),
    ],
)
def test_a_serialised_wgmma_gets_the_remedy_of_its_reason(reason: str, remedy: str) -> None:
    warning = f"(C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to {reason}"
    [finding] = diagnose(WGMMA.model_copy(update={"warnings": (warning,)}), launches(), SMALL, CHIP).findings
    assert (finding.bottleneck, finding.evidence) == ("wgmma-serialised", warning)
    assert remedy in finding.remedy


def test_fences_for_the_whole_gpu_are_told_where_nothing_is_handed_over() -> None:
    wide = mix(HGMMA=64, MEMBAR=16, ERRBAR=7, CCTL=17)
    assert static(wide) == ["wide-fences"]
    assert static(mix(HGMMA=64, MEMBAR=7, ERRBAR=2, CCTL=3)) == []
    split = launches().model_copy(update={"workspace_bytes": 1024})
    assert names(diagnose(wide, split, SMALL, CHIP)) == []


@pytest.mark.parametrize(
    ("opcodes", "expected"),
    [
        ({"HMMA": 64, "LDG": 8, "STS": 8, "LDSM": 8}, ["register-staging"]),
        ({"HMMA": 64, "LDG": 8, "STS": 8, "LDSM": 8, "LDGSTS": 1}, []),
        ({"HMMA": 64, "LDG": 64}, []),  # directly into registers, without staging
        ({"HMMA": 64, "LDS": 64, "LDGSTS": 8}, ["narrow-smem-loads"]),
        ({"HMMA": 64, "LDS": 63, "LDGSTS": 8}, []),  # of an epilogue
        ({"HMMA": 64, "LDS": 300, "LDSM": 1, "LDGSTS": 8}, []),
    ],
)
def test_findings_of_the_mix_of_instructions(opcodes: dict[str, int], expected: list[str]) -> None:
    assert static(mix(**opcodes)) == expected
    assert static(mix(**opcodes).model_copy(update={"opcode_source": "ptx"})) == []


@pytest.mark.parametrize(
    ("ctas", "expected"),
    [(264, []), (132, []), (528, []), (265, ["tail-wave"]), (100, ["idle-sms"]), (1, ["idle-sms"]), (26400 + 1, [])],
)
def test_waves(ctas: int, expected: list[str]) -> None:
    assert static(ctas=ctas) == expected


def test_the_heaviest_finding_comes_first() -> None:
    found = diagnose(kernel(stack_bytes=8, spill_store_bytes=500), launches(8), SMALL, CHIP, measured(500.0))
    weights = [finding.weight for finding in found.findings]
    assert names(found) == ["idle-sms", "spills"]
    assert weights == sorted(weights, reverse=True)
    assert all(any(letter.isdigit() for letter in finding.evidence) for finding in found.findings)


def test_time_is_held_against_the_roofline() -> None:
    found = diagnose(WGMMA, launches(), TASK, CHIP, measured(400.0))
    assert found.basis == "timed"
    assert found.roofline_fraction == pytest.approx((2 * 4096**3 / 800e6 + 0.7) / 400)
    assert names(found) == ["far-from-roofline-arithmetic"]
    assert names(diagnose(WGMMA, launches(), TASK, CHIP, measured(180.0))) == []
    wide = GemmTask(m=16, n=16384, k=16384)
    assert names(diagnose(WGMMA, launches(), wide, CHIP, measured(400.0))) == ["far-from-roofline-memory"]


def test_small_work_is_bound_by_its_launches_not_by_the_roofline() -> None:
    found = diagnose(WGMMA, launches(132), SMALL, CHIP, measured(2.0))
    assert names(found) == ["launch-bound"]
    assert weight(found, "launch-bound") == pytest.approx(0.7 / 2.0)
    two = diagnose(WGMMA, launches(132, count=2), SMALL, CHIP, measured(2.0))
    overlapped = diagnose(WGMMA, launches(132, programmatic=True), SMALL, CHIP, measured(2.0))
    assert weight(overlapped, "launch-bound") < weight(found, "launch-bound") < weight(two, "launch-bound")
    assert "launch-bound" not in names(diagnose(WGMMA, launches(count=2), TASK, CHIP, measured(180.0)))


def test_idle_sms_are_no_loss_where_all_is_latency() -> None:
    static_weight = weight(diagnose(WGMMA, launches(8), SMALL, CHIP), "idle-sms")
    assert static_weight > weight(diagnose(WGMMA, launches(8), SMALL, CHIP, measured(20.0)), "idle-sms")
    assert names(diagnose(WGMMA, launches(8), SMALL, CHIP, measured(2.0))) == ["launch-bound"]


def test_a_host_candidate_is_diagnosed_without_a_plan() -> None:
    unknown = kernel(threads=0, ctas_per_sm=0, occupancy=0.0, occupancy_limiter="unknown")
    found = diagnose(unknown, None, TASK, CHIP, measured(400.0))
    assert names(found) == ["far-from-roofline-arithmetic"]


# With counters


def test_counters_replace_what_was_estimated_about_the_same() -> None:
    spilling = kernel(spill_store_bytes=256)
    rare = profile(local_load_instructions=10, local_store_instructions=10, instructions=1e6)
    often = profile(local_load_instructions=2e5, local_store_instructions=1e5, instructions=1e6)
    assert names(diagnose(spilling, launches(), TASK, CHIP, None, rare)) == []
    found = diagnose(spilling, launches(), TASK, CHIP, None, often)
    assert names(found) == ["spills"]
    assert "300,000" in found.findings[0].evidence


def test_what_counters_do_not_show_stays_as_estimated() -> None:
    spilling = kernel(spill_store_bytes=256)
    found = diagnose(spilling, launches(100), SMALL, CHIP, None, profile(100, duration_ns=5000.0, instructions=1e6))
    assert found.basis == "counters"
    assert set(names(found)) == {"spills", "idle-sms"}


def test_idle_sms_by_plan_are_none_by_counters() -> None:
    """99 of 132 CTAs, but almost no idle SM by counters."""
    counted = profile(99, active_cycles=9_900.0, active_cycles_max=10_000.0, duration_ns=50_000.0)
    assert names(diagnose(WGMMA, launches(99), TASK, CHIP, None, counted)) == []


def test_a_far_roofline_is_no_finding_of_its_own_once_explained() -> None:
    waiting = {"stall_long_scoreboard": 8.0, "stall_wait": 1.0}
    idle = profile(tensor_pct=20.0, **waiting)
    found = diagnose(WGMMA, launches(), TASK, CHIP, measured(700.0), idle)
    assert names(found) == ["memory-latency"]
    assert found.roofline_fraction == pytest.approx((2 * 4096**3 / 800e6 + 0.7) / 700)
    unexplained = diagnose(WGMMA, launches(), TASK, CHIP, measured(700.0), profile(duration_ns=7e5))
    assert names(unexplained) == ["far-from-roofline-arithmetic"]


def test_the_roofline_is_never_held_against_the_profiled_time() -> None:
    found = diagnose(WGMMA, launches(), TASK, CHIP, None, profile(duration_ns=700_000.0))
    assert (found.basis, found.roofline_fraction) == ("counters", None)
    assert names(found) == []


@pytest.mark.parametrize("empty", [profile(), profile().model_copy(update={"launches": ()})])
def test_a_profile_of_nothing_is_no_basis(empty: Profile) -> None:
    assert diagnose(WGMMA, launches(), TASK, CHIP, None, empty).basis == "static"
    assert diagnose(WGMMA, launches(), TASK, CHIP, measured(400.0), empty).basis == "timed"


def test_a_profile_of_nonsense_judges_nothing() -> None:
    nonsense = profile(tensor_pct=math.nan, instructions=-1.0, local_load_instructions=math.inf, duration_ns=math.nan)
    found = diagnose(kernel(spill_store_bytes=256), launches(), TASK, CHIP, None, nonsense)
    assert names(found) == ["spills"]


def test_what_was_built_is_diagnosed_with_its_plan_and_a_host_candidate_without() -> None:
    inspection = kernel(ctas_per_sm=4, threads=128, dynamic_smem_bytes=0)
    built = Built(candidate=doubles.candidate(0), inspection=inspection, artifact_path="", cached=False, seconds=0.1)
    assert "idle-sms" in names(diagnose_built(built, doubles.TASK, CHIP, measured(500.0)))
    host = HostCandidate(source="int launch();", origin=Origin(policy="file"))
    alone = diagnose_built(built.model_copy(update={"candidate": host}), doubles.TASK, CHIP, measured(500.0))
    assert "idle-sms" not in names(alone)
    assert alone.basis == "timed"
    assert diagnose_built(built, doubles.TASK, CHIP, doubles.unmeasured(5.0)).basis == "static"


def prediction(**terms: float) -> Prediction:
    named = {name.replace("_", " "): value for name, value in terms.items()}
    return Prediction(predicted_us=10, model="timing-model", floor_us=5, terms=named)


def test_the_largest_term_is_what_bounds_the_kernel_as_far_as_the_next_one() -> None:
    [finding] = predicted_findings(prediction(shared_memory=9, tensor_cores=5))
    assert finding.bottleneck == "smem-bound"
    assert finding.weight == 0.4
    assert "9.00 us of 10.00 us predicted (not measured); tensor cores next, 5.00 us" in finding.evidence
    [level] = predicted_findings(prediction(shared_memory=9, tensor_cores=9))
    assert level.weight == 0.0, "less of one resource alone saves nothing"


def test_the_parts_say_where_the_time_goes_that_no_resource_needs() -> None:
    pack = LaunchTime(entry="pack", parts={"launch": 0.25, "body": 1.5, "tail": 0.25}, terms={"stores": 1.2})
    parts = {"launch": 0.25, "prologue": 0.2, "fill": 1.3, "main loop": 4.0, "exchange": 2.0, "tail": 0.25}
    gemm = LaunchTime(entry="gemm", parts=parts, terms={"tensor cores": 2.5, "shared memory": 2.0})
    found = list(predicted_findings(prediction(tensor_cores=2.5).model_copy(update={"launches": (pack, gemm)})))
    assert [(one.bottleneck, round(one.weight, 2)) for one in found] == [
        ("prologue-bound", 0.15),
        ("reduction-traffic", 0.2),
        ("dependency-waits", 0.15),
    ]
    assert "exchange of partial sums after the last product: 2.00 us of 10.00 us replayed" in found[1].evidence


def test_a_prediction_without_terms_says_nothing() -> None:
    assert not list(predicted_findings(prediction()))
