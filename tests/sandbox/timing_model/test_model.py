"""Traces of real kernels, what the model makes of them, the fitted factor, and the figures by which predictions are judged."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.emulator.timing_model.predicting import spearman
from cudal2_agent.contract.plan.chip import FIGURES, LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import LaunchPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.task import Activation, Arch, GemmTask, Layout, TimingMode
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.timing_model.costs import Shares, steps_of
from cudal2_agent.sandbox.timing_model.launches import clusters_that_fit
from cudal2_agent.sandbox.timing_model.model import LEAF, Correction, fitted, predict, predict_traced
from cudal2_agent.sandbox.timing_model.rates import rates_of
from cudal2_agent.sandbox.timing_model.trace import KIND, trace
from tests.doubles import INSPECTION
from tests.sandbox.emulator.compiled import PtxCompiler

H200 = REFERENCE_CHIPS[Arch.SM_90A]
RING = {
    "family": "wgmma_tma", "consumers": 2, "atoms": 1, "block_n": 128, "block_k": 64, "stages": 4, "cluster_m": 2,
    "cluster_n": 1, "cluster_k": 1, "splits": 1, "group": 8, "persistent": False, "pingpong": False, "tma_store": True,
    "store_boxes": 2, "ctas_per_sm": 1, "exclusive": False, "programmatic": True, "raster": "m", "promotion": 0,
    "evict_a": "normal", "evict_b": "normal", "evict_d": "normal", "push": False, "split_tail": False, "spread_sum": False,
    "whole_groups": False, "turned": False,
}  # fmt: skip


POLLED = """
#include <cuda_fp16.h>
__device__ void put(float4* to, float x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(to), "f"(x) : "memory");
}
__device__ float4 get(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ bool arrived(float4 v) { return v.x != 0.0f && v.y != 0.0f && v.z != 0.0f && v.w != 0.0f; }
extern "C" __global__ void gemm(__half* d, float4* workspace) {
  const int part = blockIdx.x, lane = threadIdx.x;
  for (int i = 1; i < 4; ++i) put(workspace + ((part + i) % 4 * 4 + part) * 32 + lane, 1.0f);
  float4 sums[3];
  bool complete;
#pragma unroll
  for (int i = 0; i < 3; ++i) sums[i] = get(workspace + (part * 4 + (part + 1 + i) % 4) * 32 + lane);
  do {
    complete = true;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (!arrived(sums[i])) {
        complete = false;
        sums[i] = get(workspace + (part * 4 + (part + 1 + i) % 4) * 32 + lane);
      }
    }
  } while (!complete);
  d[part * 32 + lane] = __float2half(sums[0].x + sums[1].y + sums[2].z);
}
"""


def task(m: int, n: int, k: int, mode: TimingMode = TimingMode.OFFLINE) -> GemmTask:
    return GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A, mode=mode)


def written(of: GemmTask, **axes: object) -> Candidate:
    [family] = [each for each in families(of.arch) if each.name == "wgmma_tma"]
    return family.write(family.parse({**RING, **axes}), of)


def kernel(compiler: PtxCompiler, of: GemmTask, **axes: object) -> EmulatedKernel:
    candidate = written(of, **axes)
    plan = resolve(candidate.plan, of, LIMITS[of.arch], H200.sms)
    return EmulatedKernel(candidate.id, compiler.compile(candidate, of.arch), plan, of)


def inspected(of: EmulatedKernel) -> Inspection:
    kernels = tuple(inspected_launch(launch.entry, launch.dynamic_smem) for launch in of.plan.launches)
    return INSPECTION.model_copy(update={"kernels": kernels})


def inspected_launch(entry: str, dynamic_smem: int) -> KernelResources:
    return KernelResources(
        entry=entry, registers=168, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0, static_smem_bytes=0,
        dynamic_smem_bytes=dynamic_smem, threads=384, ctas_per_sm=1, occupancy=0.2, occupancy_limiter="shared-memory",
    )  # fmt: skip


def predicted(compiler: PtxCompiler, of: GemmTask, **axes: object) -> Prediction:
    emulated = kernel(compiler, of, **axes)
    made = predict(emulated, inspected(emulated), H200)
    assert made is not None
    return made


def test_a_trace_counts_the_products_and_the_bytes_of_its_cluster(compiler: PtxCompiler) -> None:
    [traced] = trace(kernel(compiler, task(512, 512, 512)))
    rows = traced.rows
    assert traced.whole
    assert traced.ctas == 2
    columns = rows["amount"][rows["kind"] == KIND.PRODUCT].sum()
    assert columns * 16 * 16 == 2 * 128 * 128 * 512  # two CTAs, 128 x 128 each
    loaded = rows["amount"][rows["kind"] == KIND.BULK_LOAD].sum()
    assert loaded == 2 * 512 * (128 + 128 + 128)  # A of each CTA, B once for both
    stored = rows["amount"][rows["kind"] == KIND.BULK_STORE].sum()
    assert stored == 2 * 2 * 128 * 128


def test_a_gated_product_takes_as_long_as_one_of_twice_the_columns(compiler: PtxCompiler) -> None:
    plain = task(520, 1056, 512).model_copy(update={"layout": Layout.TN})
    gated = plain.model_copy(update={"n": 528, "activation": Activation.SILU, "gated": True})
    own, both = (trace(kernel(compiler, of))[0] for of in (gated, plain))
    assert own.products == both.products
    assert own.outside[:, 1].sum() == both.outside[:, 1].sum()
    for of in (own, both):
        assert of.other is not None
    assert own.other.outside[:, 1].sum() == both.other.outside[:, 1].sum() > 0
    ours, theirs = predicted(compiler, gated), predicted(compiler, plain)
    assert ours.terms["tensor cores"] == pytest.approx(theirs.terms["tensor cores"], rel=0.01)
    assert ours.terms["stores"] == pytest.approx(theirs.terms["stores"] / 2, rel=0.1)
    assert ours.predicted_us == pytest.approx(theirs.predicted_us, rel=0.15)


def test_rows_are_found_by_their_kind_in_order(compiler: PtxCompiler) -> None:
    [traced] = trace(kernel(compiler, task(512, 512, 512)))
    kinds = traced.rows["kind"]
    for wanted in ((KIND.PRODUCT,), (KIND.WAIT, KIND.BULK_LOAD), (KIND.ATOMIC,), tuple(KIND)):
        assert np.array_equal(traced.of(*wanted), np.flatnonzero(np.isin(kinds, wanted)))
    assert len(traced.of(KIND.PRODUCT, KIND.WAIT)) > len(traced.of(KIND.PRODUCT)) > 0


def test_bytes_of_other_ctas_shared_memory_take_their_time_on_its_port(compiler: PtxCompiler) -> None:
    [traced] = trace(kernel(compiler, task(128, 128, 1024), cluster_m=1, cluster_k=2, tma_store=False))
    rates, shares = rates_of(H200), Shares(l2=1e5, dram=3e4, store=1e5, missing=0.5, clock_mhz=1700.0)
    steps = steps_of(traced, rates, shares)
    at = traced.of(KIND.REMOTE_LOAD, KIND.REMOTE_STORE, KIND.BULK_SHARED)
    amounts = traced.rows["amount"][at]
    assert amounts.sum() >= 128 * 128 * 4 // 2, "one of two CTAs sums a half, or both sum a quarter"
    assert steps["first_time"][at] == pytest.approx(amounts / rates.remote_bytes / 1700.0)


def test_a_tile_at_the_edge_is_traced_with_what_it_reads_beyond_the_operands(compiler: PtxCompiler) -> None:
    [even], [edged] = (trace(kernel(compiler, task(512, n, 512))) for n in (256, 192))
    assert even.other is None
    assert not edged.outside.any()
    assert edged.other is not None
    loads = edged.other.of(KIND.BULK_LOAD)
    rows, moved = edged.other.outside.sum(axis=0)
    assert moved == 64 * 512 * 2, "a box of 64 columns lies beyond N at each step of K; multicast, so once for both CTAs"
    assert rows == moved / 128
    assert edged.other.rows["amount"][loads].sum() == 2 * 512 * (128 + 128 + 128)


def test_a_prediction_contains_the_correction_that_it_names(compiler: PtxCompiler) -> None:
    emulated = kernel(compiler, task(2048, 2048, 1024))
    made = predict_traced(trace(emulated), inspected(emulated), emulated.task, H200)
    assert made.correction == fitted().factor(made.features)
    assert made.correction != 1.0
    assert made.predicted_us == made.replayed_us * made.correction
    unfitted = rates_of(H200).model_copy(update={"fitted": False})
    guessed = predict_traced(trace(emulated), inspected(emulated), emulated.task, H200, unfitted)
    assert guessed.predicted_us == guessed.replayed_us == made.replayed_us


def test_a_trace_goes_on_where_it_waits_for_a_cluster_outside(compiler: PtxCompiler) -> None:
    [traced] = trace(kernel(compiler, task(256, 256, 1024), cluster_m=1, splits=4, spread_sum=True, tma_store=False))
    assert traced.whole
    assert (traced.rows["kind"] == KIND.LOAD).any()  # of the other splits' sums


def test_an_endless_trace_ends_by_its_operations_whatever_the_machine_is_busy_with(
    compiler: PtxCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.DEADLINE_S", 0.0)  # none
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_COUNTED", 1000)
    source = 'extern "C" __global__ void gemm(unsigned* d) { for (unsigned i = 1; i; i += 2) d[i & 63] ^= i * i; }'
    launch = {"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1], "args": [{"tensor": "D", "access": "write"}]}
    of = task(64, 64, 64)
    plan = LaunchPlan.model_validate({"arch": of.arch, "launches": [launch]})
    candidate = Candidate(source=source, plan=plan, origin=Origin(policy="test"))
    resolved = resolve(plan, of, LIMITS[of.arch], H200.sms)
    [traced] = trace(EmulatedKernel(candidate.id, compiler.compile(candidate, of.arch), resolved, of))
    assert not traced.whole
    assert traced.count


def test_polls_of_many_words_count_once_and_other_ctas_write_all_of_them(compiler: PtxCompiler) -> None:
    of = task(64, 64, 64)
    plan = LaunchPlan.model_validate(
        {
            "arch": of.arch,
            "launches": [
                {
                    "entry": "gemm",
                    "grid": [4, 1, 1],
                    "block": [32, 1, 1],
                    "args": [{"tensor": "D", "access": "write"}, {"workspace": 0}],
                }
            ],
            "workspace": {"bytes": 4 * 4 * 512, "zero": "restored"},
        }
    )
    candidate = Candidate(source=POLLED, plan=plan, origin=Origin(policy="test"))
    resolved = resolve(plan, of, LIMITS[of.arch], H200.sms)
    [traced] = trace(EmulatedKernel(candidate.id, compiler.compile(candidate, of.arch), resolved, of))
    assert traced.whole
    assert traced.ctas == 1
    rows = traced.rows
    assert (rows["kind"] == KIND.LOAD).sum() == 6, "three in vain, three that find the sums"
    assert not (rows["kind"] == KIND.ATOMIC).any(), "a relaxed store does not stop its warp"
    given = rows["token"][(rows["kind"] == KIND.STORE) & (rows["token"] > 0)]
    waited = rows["token"][rows["kind"] == KIND.WAIT]
    assert len(given) == 3
    assert set(waited.tolist()) & set(given.tolist()), "others write when this CTA writes for them"


def test_launches_crowd_only_where_sms_have_room(compiler: PtxCompiler) -> None:
    emulated = kernel(compiler, task(2048, 512, 512))  # 64 CTAs
    alone = inspected(emulated)
    [only] = alone.kernels
    roomy = alone.model_copy(update={"kernels": (only.model_copy(update={"ctas_per_sm": 4}),)})
    times = [made.predicted_us for each in (alone, roomy) if (made := predict(emulated, each, H200))]
    assert times[1] > 1.2 * times[0]


def test_more_work_takes_longer_and_the_terms_say_of_what(compiler: PtxCompiler) -> None:
    small, large = predicted(compiler, task(2048, 2048, 1024)), predicted(compiler, task(2048, 2048, 4096))
    assert large.predicted_us - small.predicted_us > 3 * small.terms["tensor cores"]  # what K does not change, both have
    assert large.terms["tensor cores"] == pytest.approx(4 * small.terms["tensor cores"], rel=0.01)
    assert max(large.terms.values()) <= large.predicted_us
    assert not large.is_floor


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2048, 2048, 1024), {}),
        ((512, 192, 512), {}),  # a tile at the edge
        ((128, 128, 1024), {"cluster_m": 1, "cluster_k": 2, "tma_store": False}),
        ((256, 256, 1024), {"cluster_m": 1, "splits": 4, "tma_store": False, "programmatic": False}),
        ((4096, 8192, 1024), {}),  # 16 waves
        ((512, 512, 65536), {}),  # a trace that ends before its kernel
    ],
)
def test_the_parts_of_all_launches_add_up_to_what_the_replay_says(
    compiler: PtxCompiler, shape: tuple[int, int, int], axes: dict[str, object]
) -> None:
    emulated = kernel(compiler, task(*shape), **axes)
    made = predict_traced(trace(emulated), inspected(emulated), emulated.product, H200)
    assert sum(launch.time_us for launch in made.launches) == pytest.approx(made.replayed_us)
    assert all(us > 0 for launch in made.launches for us in launch.parts.values())


def test_each_part_is_of_what_its_name_says(compiler: PtxCompiler) -> None:
    [short], [long] = (predicted(compiler, task(2048, 1024, k)).launches for k in (1024, 4096))
    assert long.parts["main loop"] == pytest.approx(4 * short.parts["main loop"], rel=0.2)
    assert long.parts["fill"] == pytest.approx(short.parts["fill"], rel=0.1)
    assert "exchange" not in short.parts
    assert (short.waves, predicted(compiler, task(4096, 8192, 512)).launches[0].waves) == (1, 16)
    [split] = predicted(compiler, task(128, 128, 1024), cluster_m=1, cluster_k=2, tma_store=False).launches
    assert split.parts["exchange"] > 0.2, "sums pass through distributed shared memory behind the last product"
    assert split.terms["distributed shared memory"] > 0


def test_four_waves_take_four_times_as_long_as_one(compiler: PtxCompiler) -> None:
    one, four = predicted(compiler, task(2048, 1024, 2048)), predicted(compiler, task(2048, 4096, 2048))
    assert 3.4 < four.predicted_us / one.predicted_us < 4.2  # 128 CTAs, then 512, on 132 SMs


def test_a_single_launch_is_not_predicted(compiler: PtxCompiler) -> None:
    emulated = kernel(compiler, task(512, 512, 512, TimingMode.SERVER))
    assert predict(emulated, inspected(emulated), H200) is None


@pytest.mark.parametrize(("size", "clusters"), [(1, 132), (2, 66), (4, 30), (8, 15), (14, 7), (16, 7)])
def test_clusters_fit_as_the_occupancy_calculator_of_an_h200_says(size: int, clusters: int) -> None:
    assert clusters_that_fit(H200, size) == clusters


def test_the_figures_that_prompts_tell_are_those_that_predictions_count() -> None:
    figures, rates = FIGURES[Arch.SM_90A], rates_of(H200)
    assert {size: figures.clusters_of(size) for size in figures.clusters} == figures.clusters
    fitted_figures = {
        "remote_us": rates.remote_cycles / rates.clock_mhz,
        "remote_bytes_per_clock": rates.remote_bytes,
        "cluster_barrier_us": rates.cluster_cycles / rates.clock_mhz,
        "flag_us": rates.atomic_us,
        "fence_us": rates.fence_us,
        "map_us": rates.map_us,
    }
    assert figures.fitted.model_dump() == pytest.approx(fitted_figures, rel=0.03)


def test_rates_of_other_chips_are_marked_as_not_fitted() -> None:
    assert rates_of(H200).fitted
    a100 = rates_of(REFERENCE_CHIPS[Arch.SM_80])
    assert not a100.fitted
    assert a100.dram_bytes_per_us < rates_of(H200).dram_bytes_per_us


def made(leaves: tuple[float, float, float]) -> Correction:
    """One tree: whether `a` is at most 1; if so, whether `b` is at most 2. And one of a single leaf."""
    asked = np.array([[0, 1, LEAF, LEAF, LEAF], [LEAF, 0, 0, 0, 0]])
    limit = np.array([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0] * 5])
    left, right = (np.array([tree, [0] * 5]) for tree in ([1, 3, 0, 0, 0], [2, 4, 0, 0, 0]))
    value = np.array([[0.0, 0.0, leaves[2], leaves[0], leaves[1]], [0.01, 0.0, 0.0, 0.0, 0.0]])
    return Correction(np.array(["a", "b"]), np.zeros(2), np.full(2, 10.0), asked, limit, left, right, value)


def test_the_answers_lead_to_a_leaf_and_trees_are_added() -> None:
    tree = made((0.1, 0.2, 0.3))
    found = [tree.factor({"a": a, "b": b}) for a, b in ((0, 0), (1, 2), (0, 5), (5, 0), (5, 5))]
    assert found == pytest.approx(np.exp([0.11, 0.11, 0.21, 0.31, 0.31]))


def test_it_is_one_outside_what_it_was_fitted_on() -> None:
    tree = made((0.5, 0.5, 0.5))
    assert tree.factor({"a": 5.0, "b": 10.0}) > 1.6
    assert tree.factor({"a": 5.0, "b": 10.1}) == 1.0
    assert tree.factor({"a": -0.1, "b": 5.0}) == 1.0


def test_it_is_bounded() -> None:
    assert made((9.0, 9.0, 9.0)).factor({"a": 1.0, "b": 1.0}) == 2.0
    assert made((-9.0, -9.0, -9.0)).factor({"a": 1.0, "b": 1.0}) == 0.5


def test_a_written_correction_reads_as_it_was(tmp_path: Path) -> None:
    made((0.1, 0.2, 0.3)).write(tmp_path / "written.npz")
    read = fitted(tmp_path / "written.npz")
    assert read.factor({"a": 0.0, "b": 5.0}) == made((0.1, 0.2, 0.3)).factor({"a": 0.0, "b": 5.0})


def test_the_one_that_ships_is_whole() -> None:
    whole = fitted()
    assert len(set(whole.names.tolist())) == len(whole.low) == len(whole.high)
    middle = (whole.low + whole.high) / 2
    assert np.isfinite(whole.logarithms(middle[None])).all()
    inner = whole.asked != LEAF
    assert (whole.left[inner] > 0).all()
    assert (whole.right[inner] > 0).all()


def test_rank_correlation_sees_the_order_alone() -> None:
    assert spearman([1, 2, 3, 4], [10, 11, 50, 900]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)


def test_ties_share_the_mean_of_their_ranks() -> None:
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_two_kernels_have_no_rank_correlation() -> None:
    assert math.isnan(spearman([1, 2], [1, 2]))
