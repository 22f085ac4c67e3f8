"""Rules on counters: for each a launch that triggers it and a similar one that does not, and real counters of an H200."""

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.inspection import KernelResources
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import Activation, Arch, GemmTask
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import CountedLaunch
from cudal2_agent.sandbox.diagnosis.counter_rules.traffic import min_reads
from cudal2_agent.sandbox.diagnosis.findings import RULES, Verdict, judge
from cudal2_agent.sandbox.profiling.metric_set import load_metric_set
from tests.doubles import INSPECTION

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=4096, n=4096, k=4096)
AMPERE = TASK.model_copy(update={"arch": Arch.SM_80})
D_SECTORS, LEAST_SECTORS = 4096 * 4096 * 2 / 32, 2 * 4096 * 4096 * (16 + 32) / 32
# No unit is saturated and no stall dominates: one wave of 132 CTAs of 256 threads on 132 SMs.
EVEN = {
    "duration_ns": 180e3, "elapsed_cycles": 300e3, "active_cycles": 295e3, "active_cycles_max": 297e3,
    "tensor_pct": 79.0, "issue_pct": 30.0, "active_warps": 2.0, "eligible_warps": 0.4, "instructions": 1e8,
    "tensor_instructions": 1e7, "wgmma_instructions": 1e7, "waves": 1.0,
    "stall_long_scoreboard": 1.0, "stall_short_scoreboard": 1.0, "stall_barrier": 1.0, "stall_wait": 1.0, "stall_drain": 1.0,
    "stall_math_pipe_throttle": 1.0, "stall_mio_throttle": 0.0, "stall_membar": 0.0, "stall_wgmma": 1.0,
    "dram_read_bytes": 100e6, "dram_pct": 30.0, "l2_pct": 35.0, "l2_read_sectors": LEAST_SECTORS, "l2_write_sectors": D_SECTORS,
    "smem_pct": 40.0, "smem_wavefronts": 1e7, "smem_conflicts": 1e5, "smem_load_conflicts": 1e5, "smem_store_conflicts": 0.0,
    "load_sectors": 0.0, "load_bytes_a_sector": 0.0, "store_sectors": D_SECTORS, "store_bytes_a_sector": 32.0,
    "local_load_instructions": 0.0, "local_store_instructions": 0.0, "registers": 168.0,
    "limit_registers": 1.0, "limit_smem": 2.0, "limit_warps": 8.0, "limit_ctas": 32.0,
}  # fmt: skip
IDLE = {"tensor_pct": 40.0}
SCATTERED = {"load_sectors": LEAST_SECTORS, "load_bytes_a_sector": 4.0}
SCATTERED_STORES = {"store_bytes_a_sector": 2.0, "store_sectors": 20 * D_SECTORS}
HALF_SECTORS = {"store_bytes_a_sector": 16.0, "store_sectors": 2 * D_SECTORS, "l2_write_sectors": 2 * D_SECTORS}
CASES: list[tuple[Bottleneck, dict[str, float], dict[str, float]]] = [
    ("memory-latency", IDLE | {"stall_long_scoreboard": 9.0}, {"stall_long_scoreboard": 9.0, "tensor_pct": 95.0}),
    (
        "memory-latency",
        IDLE | {"stall_lg_throttle": 9.0, "load_sectors": 9 * D_SECTORS},
        IDLE | {"stall_lg_throttle": 9.0, "load_sectors": 9 * D_SECTORS, "l2_pct": 98.0},
    ),
    ("epilogue-bound", IDLE | {"stall_lg_throttle": 9.0}, IDLE | {"stall_lg_throttle": 9.0, "load_sectors": 99 * D_SECTORS}),
    (
        "uncoalesced",
        IDLE | HALF_SECTORS | {"l2_read_sectors": D_SECTORS},
        IDLE | HALF_SECTORS | {"l2_read_sectors": D_SECTORS, "store_bytes_a_sector": 31.0},
    ),
    ("reduction-traffic", IDLE | HALF_SECTORS | {"l2_write_sectors": 9 * D_SECTORS}, IDLE | HALF_SECTORS),
    ("smem-instructions", IDLE | {"stall_mio_throttle": 9.0}, {"stall_mio_throttle": 9.0, "smem_pct": 97.0}),
    ("barrier-waits", IDLE | {"stall_membar": 9.0}, IDLE | {"stall_barrier": 9.0}),  # specialised warps wait by design
    ("wgmma-waits", IDLE | {"stall_wgmma": 9.0}, {"stall_wgmma": 9.0, "tensor_pct": 95.0}),
    ("tensor-bound", {"tensor_pct": 95.0}, {"tensor_pct": 79.9}),
    ("dram-bound", {"dram_pct": 88.0, "dram_read_bytes": 1e9}, {"dram_pct": 60.0, "dram_read_bytes": 1e9}),
    ("l2-bound", IDLE | {"l2_pct": 80.0}, {"l2_pct": 78.0, "tensor_pct": 80.0}),
    ("smem-bound", IDLE | {"smem_pct": 80.0}, IDLE | {"smem_pct": 60.0}),
    ("redundant-traffic", {"l2_pct": 60.0, "l2_read_sectors": 2 * LEAST_SECTORS}, {"l2_read_sectors": 2 * LEAST_SECTORS}),
    ("redundant-traffic", {"l2_pct": 60.0, "l2_read_sectors": 2 * LEAST_SECTORS}, {"l2_pct": 60.0}),
    ("reduction-traffic", IDLE | {"l2_write_sectors": 9 * D_SECTORS}, IDLE | {"l2_write_sectors": D_SECTORS}),
    (
        "reduction-traffic",
        IDLE | {"l2_write_sectors": 9 * D_SECTORS},
        IDLE | {"l2_write_sectors": 9 * D_SECTORS, "local_store_instructions": 2 * D_SECTORS},
    ),
    ("uncoalesced", SCATTERED, SCATTERED | {"load_bytes_a_sector": 31.0}),
    ("uncoalesced", SCATTERED, SCATTERED | {"load_sectors": 9.0}),
    ("uncoalesced", IDLE | SCATTERED_STORES, IDLE | SCATTERED_STORES | {"store_bytes_a_sector": 30.0}),
    ("bank-conflicts", {"smem_conflicts": 7e6}, {"smem_conflicts": 0.9e6}),
    ("bank-conflicts", {"smem_conflicts": 7e6}, {"smem_conflicts": 7e6, "smem_pct": 2.0}),
    ("spills", {"local_load_instructions": 4e6, "local_store_instructions": 1e6}, {"local_load_instructions": 9e5}),
    ("instruction-bound", IDLE | {"issue_pct": 85.0}, IDLE | {"issue_pct": 55.0}),
    ("instruction-bound", IDLE | {"issue_pct": 85.0}, {"issue_pct": 85.0, "tensor_pct": 84.0}),
    ("imbalance", {"active_cycles": 200e3}, {"active_cycles": 290e3}),
    ("tail-wave", {"active_cycles": 200e3, "waves": 1.2}, {"active_cycles": 290e3, "waves": 1.2}),
]  # fmt: skip
LATENT = {"tensor_pct": 30.0, "stall_long_scoreboard": 4.0}
# Kernels without specialised warps.
SYNCHRONOUS: list[tuple[Bottleneck, dict[str, float], dict[str, float]]] = [
    ("barrier-waits", IDLE | {"stall_barrier": 9.0}, {"stall_barrier": 9.0, "tensor_pct": 96.0}),
    ("dependency-waits", IDLE | {"stall_wait": 9.0}, {"stall_wait": 9.0, "tensor_pct": 96.0}),
    ("memory-latency", IDLE | {"stall_long_scoreboard": 9.0}, {"stall_long_scoreboard": 9.0, "tensor_pct": 96.0}),
    ("occupancy", LATENT | {"active_warps": 1.0, "waves": 8.0}, LATENT | {"active_warps": 4.0, "waves": 8.0}),
    ("occupancy", LATENT | {"active_warps": 1.0, "waves": 8.0}, LATENT | {"active_warps": 1.0, "waves": 1.0}),
]
H200 = json.loads((Path(__file__).parent / "h200_kernels.json").read_text())


def launch(entry: str = "gemm", ctas: int = 132, threads: int = 256, **metrics: float) -> LaunchProfile:
    return LaunchProfile(entry=entry, grid=(ctas, 1, 1), block=(threads, 1, 1), metrics=metrics)


def verdict(
    *launches: LaunchProfile,
    task: GemmTask = TASK,
    time_us: float | None = None,
    has_roles: bool = True,
    landing: KernelResources | None = None,
) -> Verdict:
    profile = Profile(tool="ncu", metric_set=task.arch.value, launches=launches, seconds=1.0)
    kernels = {landing.entry: landing} if landing else {}
    return judge(profile, task, REFERENCE_CHIPS[task.arch], time_us, has_roles=has_roles, landing=kernels)


def names(judged: Verdict) -> list[Bottleneck]:
    return [finding.bottleneck for finding in judged.findings]


def of(judged: Verdict, bottleneck: Bottleneck) -> Finding:
    return next(finding for finding in judged.findings if finding.bottleneck == bottleneck)


def test_what_fills_a_resource_stands_before_that_it_is_full() -> None:
    full = EVEN | IDLE | {"smem_pct": 95.0}
    assert of(verdict(launch(**full)), "smem-bound").weight == pytest.approx(0.55, abs=0.02)
    conflicts = {"smem_conflicts": 8e6, "smem_load_conflicts": 8e6}
    found = verdict(launch(**full | conflicts))
    assert names(found)[0] == "bank-conflicts"
    assert "smem-bound" not in names(found)


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    assert names(verdict(launch(**EVEN))) == []
    assert names(verdict(launch(ctas=108, **EVEN), task=AMPERE, has_roles=False)) == []


@pytest.mark.parametrize(("bottleneck", "worse", "near"), CASES)
def test_each_rule_finds_what_it_is_for_and_not_what_is_near(
    bottleneck: Bottleneck, worse: dict[str, float], near: dict[str, float]
) -> None:
    assert bottleneck in names(verdict(launch(**EVEN | worse)))
    assert bottleneck not in names(verdict(launch(**EVEN | near)))


@pytest.mark.parametrize(("bottleneck", "worse", "near"), SYNCHRONOUS)
def test_each_rule_on_warps_without_roles(bottleneck: Bottleneck, worse: dict[str, float], near: dict[str, float]) -> None:
    found = verdict(launch(ctas=108, **EVEN | worse), task=AMPERE, has_roles=False)
    assert bottleneck in names(found)
    assert bottleneck not in names(verdict(launch(ctas=108, **EVEN | near), task=AMPERE, has_roles=False))


def test_every_bottleneck_that_counters_judge_can_be_found() -> None:
    elsewhere = {
        "no-tensor-cores",
        "legacy-mma",
        "idle-sms",
        "prologue-bound",
        "few-bytes-in-flight",
        "epilogue-bound",
        "local-memory",
    }
    tested = {bottleneck for bottleneck, *_ in (*CASES, *SYNCHRONOUS)}
    assert {bottleneck for rule in RULES for bottleneck in rule.judges} <= tested | elsewhere


def test_the_wait_of_short_ctas_is_their_prologue_and_of_long_ones_their_loop() -> None:
    waiting = EVEN | {"tensor_pct": 40.0, "stall_long_scoreboard": 9.0}
    long, short = verdict(launch(**waiting)), verdict(launch(ctas=132 * 150, **waiting))
    assert "prologue-bound" not in names(long)
    assert names(short)[0] == "prologue-bound"
    assert "memory-latency" not in names(short)
    between = verdict(launch(ctas=132 * 60, **waiting))
    assert of(between, "prologue-bound").weight + of(between, "memory-latency").weight == pytest.approx(
        of(long, "memory-latency").weight, rel=0.02
    )


def test_work_bound_by_memory_lacks_bytes_in_flight() -> None:
    thin = GemmTask(m=16, n=16384, k=16384)
    waiting = EVEN | {"tensor_pct": 5.0, "stall_long_scoreboard": 9.0, "l2_write_sectors": 16384.0}
    assert names(verdict(launch(**waiting), task=thin))[0] == "few-bytes-in-flight"
    assert "few-bytes-in-flight" not in names(verdict(launch(**waiting | {"dram_pct": 90.0}), task=thin))
    assert "few-bytes-in-flight" not in names(verdict(launch(**waiting), task=TASK))


def test_a_deep_ring_does_not_lack_bytes_in_flight() -> None:
    """As 256x144x26016 on an H200: 112 CTAs with 211 KiB each, where DRAM's rate needs 29 KiB an SM on the way."""
    thin = GemmTask(m=16, n=16384, k=16384)
    waiting = EVEN | {"tensor_pct": 5.0, "stall_long_scoreboard": 9.0, "l2_write_sectors": 16384.0}
    deep = INSPECTION.kernels[0].model_copy(update={"entry": "gemm", "dynamic_smem_bytes": 216320, "ctas_per_sm": 1})
    found = verdict(launch(ctas=112, **waiting), task=thin, landing=deep)
    assert "few-bytes-in-flight" not in names(found)
    waits = of(found, "memory-latency")
    assert "179 KiB of shared memory" in waits.evidence
    assert "more stages bring nothing" in waits.remedy
    shallow = deep.model_copy(update={"dynamic_smem_bytes": 32768})
    assert "few-bytes-in-flight" in names(verdict(launch(ctas=112, **waiting), task=thin, landing=shallow))


def test_too_few_ctas_idle_sms_unless_the_kernel_is_latency_anyway() -> None:
    few = EVEN | {"active_cycles": 30e3}
    assert names(verdict(launch(ctas=13, **few)))[0] == "idle-sms"
    assert "idle-sms" not in names(verdict(launch(ctas=132, **few)))
    assert "idle-sms" not in names(verdict(launch(ctas=13, **few), time_us=2.0))


def test_storing_a_large_output_of_little_work_is_the_epilogue() -> None:
    flat = GemmTask(m=8192, n=8192, k=64)
    stored = {"l2_write_sectors": 8192 * 8192 * 2 / 32, "store_sectors": 0.0, "tensor_pct": 10.0, "stall_drain": 0.0}
    assert "epilogue-bound" in names(verdict(launch(**EVEN | stored), task=flat, time_us=60.0))
    assert "epilogue-bound" not in names(verdict(launch(**EVEN | stored | {"tensor_pct": 95.0}), task=flat, time_us=60.0))
    assert "epilogue-bound" not in names(verdict(launch(**EVEN | stored), task=flat, time_us=2000.0))


def test_mma_sync_cannot_fill_hoppers_tensor_pipe() -> None:
    full = EVEN | {"tensor_pct": 62.0, "stall_wait": 9.0, "stall_long_scoreboard": 3.0}
    assert names(verdict(launch(**full), has_roles=False)) == ["legacy-mma"]  # waits are free while the unit is saturated
    assert "legacy-mma" not in names(verdict(launch(**full), has_roles=True))
    assert "legacy-mma" not in names(verdict(launch(ctas=108, **full), task=AMPERE, has_roles=False))


def test_no_launch_with_a_tensor_core_instruction() -> None:
    fused = EVEN | {"tensor_instructions": 0.0, "tensor_pct": 0.0}
    assert names(verdict(launch(**fused), has_roles=False))[0] == "no-tensor-cores"
    assert "no-tensor-cores" not in names(verdict(launch(**fused), launch(**EVEN), has_roles=False))
    constants = fused | {"tensor_instructions": 132 * 8.0}  # one a warp, as an H200 counted of a kernel without any
    assert names(verdict(launch(**constants), has_roles=False))[0] == "no-tensor-cores"
    assert "no-tensor-cores" not in verdict(launch(duration_ns=1.0)).judged


def test_a_launch_that_only_sums_weighs_its_share_of_the_time() -> None:
    summing = launch("reduce", duration_ns=60e3, tensor_instructions=0.0)
    found = verdict(launch(**EVEN), summing)
    assert of(found, "reduction-traffic").weight == pytest.approx(0.25)
    assert "reduce" in of(found, "reduction-traffic").evidence
    assert "reduction-traffic" not in names(verdict(launch(**EVEN), launch("again", **EVEN)))


def test_a_launch_that_only_sums_has_no_roles() -> None:
    waiting = EVEN | {"tensor_pct": 0.0, "tensor_instructions": 0.0, "stall_barrier": 30.0}
    assert "barrier-waits" in names(verdict(launch(**EVEN), launch("reduce", **waiting | {"wgmma_instructions": 0.0})))
    assert "barrier-waits" not in names(verdict(launch(**EVEN), launch("reduce", **waiting)))


def test_findings_of_several_launches_are_one_each_and_weighed_by_time() -> None:
    spilling = EVEN | {"local_load_instructions": 1e7}
    alone = of(verdict(launch(**spilling)), "spills").weight
    half = verdict(launch("first", **spilling), launch("second", **EVEN))
    both = verdict(launch("first", **spilling), launch("second", **spilling))
    assert of(half, "spills").weight == pytest.approx(alone / 2)
    assert of(both, "spills").weight == pytest.approx(alone)
    assert names(both).count("spills") == 1
    assert {"first", "second"} <= set(of(both, "spills").evidence.replace(":", "").split())


def test_a_fuller_resource_hides_waits() -> None:
    weights = []
    for busy in (20.0, 40.0, 60.0, 80.0):
        found = verdict(launch(**EVEN | {"tensor_pct": busy, "stall_long_scoreboard": 9.0}))
        weights.append(of(found, "memory-latency").weight)
    assert weights == sorted(weights, reverse=True)


def test_elapsed_percentages_are_of_the_time_that_sms_worked() -> None:
    """A small launch is bound by latency; the rule uses the active cycles."""
    short = EVEN | {
        "elapsed_cycles": 20e3,
        "active_cycles_max": 10e3,
        "active_cycles": 10e3,
        "l2_pct": 40.0,
        "tensor_pct": 10.0,
        "smem_pct": 10.0,
    }
    assert "l2-bound" in names(verdict(launch(**short)))
    assert "l2-bound" not in names(verdict(launch(**short | {"active_cycles_max": 20e3, "active_cycles": 20e3})))


@pytest.mark.parametrize(
    ("shape", "tile"), [((4096, 4096), (128, 256)), ((1024, 1024), (64, 128)), ((64, 64), (64, 64)), ((2048, 2048), (128, 256))]
)
def test_operands_are_held_against_tiles_that_fill_the_chip(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    task = GemmTask(m=shape[0], n=shape[1], k=512)
    found, read = min_reads(task, CHIP)
    assert found == tile
    assert read == 2 * 512 * shape[0] * shape[1] * (1 / tile[0] + 1 / tile[1])
    gated = task.model_copy(update={"n": shape[1] // 2, "activation": Activation.SILU, "gated": True})
    assert min_reads(gated, CHIP) == (found, read)


# What an H200 counted (ncu 2025.3.1): the heaviest finding of twelve kernels of the schedule policy's families, made to be
# read beside their schedules. The file lacks tensor_instructions, so that legacy-mma is not judged.
@pytest.mark.parametrize(
    ("index", "first"),
    [
        (0, "memory-latency"),  # ping-pong of a short K
        (1, "redundant-traffic"),  # tiles of 64x32 read the operands 2.7 times as often
        (2, "tensor-bound"),  # 8192x8192x8192, 99 % of the tensor pipe
        (3, "redundant-traffic"),  # tiles of 64x192 fill L2
        (4, "prologue-bound"),  # 64x64x64
        (5, "prologue-bound"),
        (6, "idle-sms"),  # 64 CTAs
        (7, "idle-sms"),  # 48 CTAs
        (8, "memory-latency"),
        (9, "redundant-traffic"),  # tiles of 32x96
        (11, "redundant-traffic"),  # tiles of 32x128
    ],
)
def test_kernels_on_an_h200(index: int, first: Bottleneck) -> None:
    assert names(real(index))[0] == first


def test_spills_on_an_h200_count_where_they_run_often() -> None:
    assert "spills" in names(real(11))
    assert "spills" not in names(real(7))  # 0.2 % of its instructions
    assert "spills" in real(7).judged


def test_split_k_through_a_workspace_on_an_h200() -> None:
    assert "reduction-traffic" in names(real(7))
    assert all("reduction-traffic" not in names(real(index)) for index in range(12) if index != 7)


def real(index: int) -> Verdict:
    record: dict[str, Any] = H200[index]
    m, n, k = (int(part) for part in record["shape"].split("x"))
    counted = LaunchProfile(
        entry=record["entry"], grid=tuple(record["grid"]), block=tuple(record["block"]), metrics=record["metrics"]
    )
    roles = record["schedule"]["family"] == "wgmma_tma"
    return verdict(counted, task=GemmTask(m=m, n=n, k=k), has_roles=roles)


# Anything at all

SHORT_NAMES = sorted(load_metric_set(Arch.SM_90A).metrics)
ANYTHING = st.one_of(st.floats(), st.floats(0, 100), st.floats(0, 1e9), st.just(0.0), st.sampled_from([1e308, -1.0, math.nan]))
ANY_LAUNCH = st.builds(
    LaunchProfile,
    entry=st.just("gemm"),
    grid=st.tuples(st.integers(0, 10**6), st.just(1), st.just(1)),
    block=st.tuples(st.integers(0, 1024), st.just(1), st.just(1)),
    metrics=st.dictionaries(st.sampled_from(SHORT_NAMES), ANYTHING),
)


@given(
    launches=st.lists(ANY_LAUNCH, max_size=3), roles=st.booleans(), arch=st.sampled_from(list(Arch)),
    size=st.sampled_from([1, 64, 4096]), time_us=st.one_of(st.none(), st.floats(0.1, 1e6)),
)  # fmt: skip
def test_any_counters_give_a_sound_verdict(
    launches: list[LaunchProfile], roles: bool, arch: Arch, size: int, time_us: float | None
) -> None:
    found = verdict(*launches, task=GemmTask(m=size, n=size, k=size, arch=arch), time_us=time_us, has_roles=roles)
    weights = [finding.weight for finding in found.findings]
    assert weights == sorted(weights, reverse=True)
    assert all(0 <= weight <= 1 for weight in weights)
    assert len(set(names(found))) == len(weights)
    assert set(names(found)) <= {*found.judged, "reduction-traffic"}


@given(present=st.sets(st.sampled_from(sorted(EVEN))))
def test_a_bottleneck_is_judged_only_by_counters_that_are_there(present: set[str]) -> None:
    found = verdict(launch(**{name: EVEN[name] for name in present}))
    for rule in RULES:
        if not set(rule.needs) <= present and not any(
            set(rule.judges) & set(other.judges) and set(other.needs) <= present for other in RULES
        ):
            assert not found.judged & set(rule.judges)


def test_rules_speak_of_counters_and_bottlenecks_that_exist() -> None:
    assert {name for rule in RULES for name in rule.needs} <= set(SHORT_NAMES)
    assert {bottleneck for rule in RULES for bottleneck in rule.judges} <= set(get_args(Bottleneck))


def test_the_page_tells_every_bottleneck() -> None:
    page = (Path(__file__).parents[3] / "docs" / "internals" / "timing.md").read_text()
    assert [name for name in get_args(Bottleneck) if f"`{name}`" not in page] == []


def test_a_launch_of_nothing_has_no_figures() -> None:
    counted = CountedLaunch(launch(threads=0), TASK, CHIP, share=1.0, time_us=1.0, has_roles=False)
    assert (counted.busy(), counted.stalls(), counted.cycles_per_cta(), counted.idle) == ({}, {}, None, 0.0)
