"""Predictions of sources that are no family's grow with the trips of loops; clusters that return early cost nothing."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import NOT_PREDICTED, Prediction
from cudal2_agent.contract.records.inspection import KernelResources
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.timing_model.model import predict
from tests.doubles import INSPECTION
from tests.sandbox.emulator.compiled import PtxCompiler

H200 = REFERENCE_CHIPS[Arch.SM_90A]
KERNELS = Path(__file__).parents[1] / "emulator" / "kernels"
HEAD = """\
/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": %s, "block": [256, 1, 1],
 "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"},
 {"scalar": "K"}]}]} */
#include <cuda_fp16.h>
#include <mma.h>
extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k) {
"""
THREAD = "  const int row = %s * 16 + threadIdx.x / 16, column = %s * 16 + threadIdx.x %% 16;\n"
SUM = "for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);"
EIGHT = """#pragma unroll 1
  for (int i = 0; i < k; i += 8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += __half2float(a[row * k + i + j]) * __half2float(b[(i + j) * n + column]);
  }"""
DOWN = """int i = k;
  while (i --> 0) {
    float x = __half2float(a[row * k + i]);
    if (i & 1) x = -x;
    sum += (i & 1 ? -x : x) * __half2float(b[i * n + column]);
  }"""
TILED = """__shared__ half left[16][16], right[16][16];
  for (int i = 0; i < k; i += 16) {
    left[threadIdx.x / 16][threadIdx.x % 16] = a[row * k + i + threadIdx.x % 16];
    right[threadIdx.x / 16][threadIdx.x % 16] = b[(i + threadIdx.x / 16) * n + column];
    __syncthreads();
    for (int j = 0; j < 16; ++j) sum += __half2float(left[threadIdx.x / 16][j]) * __half2float(right[j][threadIdx.x % 16]);
    __syncthreads();
  }"""
STORE = "\n  d[row * n + column] = __float2half(sum);\n"
STRIDE = """\
  for (int tile = blockIdx.x; tile < m / 16 * (n / 16); tile += gridDim.x) {
    const int row = tile / (n / 16) * 16 + threadIdx.x / 16, column = tile % (n / 16) * 16 + threadIdx.x % 16;
    float sum = 0;
"""
WMMA = """\
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, row_major> y;
  fragment<accumulator, 16, 16, 16, float> sum;
  fragment<accumulator, 16, 16, 16, half> out;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;
  if (tile >= m / 16 * (n / 16)) return;
  const int row = tile / (n / 16) * 16, column = tile % (n / 16) * 16;
  fill_fragment(sum, 0.0f);
  for (int i = 0; i < k; i += 16) {
    load_matrix_sync(x, a + row * k + i, k);
    load_matrix_sync(y, b + i * n + column, n);
    mma_sync(sum, x, y, sum);
  }
  for (int i = 0; i < sum.num_elements; ++i) out.x[i] = __float2half(sum.x[i]);
  store_matrix_sync(d + row * n + column, out, n, mem_row_major);
}
"""


def threads(
    body: str, grid: str = '["N/16", "M/16", 1]', row: str = "blockIdx.y", column: str = "blockIdx.x", guard: str = ""
) -> str:
    return HEAD % grid + THREAD % (row, column) + guard + "  float sum = 0;\n  " + body + STORE + "}\n"


def strided(body: str, ctas: str) -> str:
    return HEAD % f'["{ctas}", 1, 1]' + STRIDE + body + STORE + "  }\n}\n"


def prediction(compiler: PtxCompiler, source: str, m: int, n: int, k: int) -> Prediction:
    task, plan = GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A), parse_plan(source)
    candidate = Candidate(source=source, plan=plan, origin=Origin(policy="test"))
    resolved = resolve(plan, task, LIMITS[task.arch], H200.sms)
    kernel = EmulatedKernel(candidate.id, compiler.compile(candidate, task.arch), resolved, task)
    resources = KernelResources(
        entry=plan.launches[0].entry, registers=32, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0,
        static_smem_bytes=0, dynamic_smem_bytes=0, threads=256, ctas_per_sm=8, occupancy=1.0, occupancy_limiter="threads",
    )  # fmt: skip
    made = predict(kernel, INSPECTION.model_copy(update={"kernels": (resources,)}), H200)
    assert made is not None
    return made


def times(compiler: PtxCompiler, source: str, *shapes: tuple[int, int, int]) -> list[float]:
    made = [prediction(compiler, source, *shape) for shape in shapes]
    assert not any(each.is_floor for each in made)
    return [each.predicted_us / each.correction for each in made]


@pytest.mark.parametrize("name", ["wide_cta", "thread_per_output"])
def test_kernels_of_any_tile_take_longer_for_a_longer_k(compiler: PtxCompiler, name: str) -> None:
    source = (KERNELS / f"{name}.cu").read_text()
    short, long = times(compiler, source, (512, 512, 256), (512, 512, 4096))
    assert long / short == pytest.approx(16, rel=0.2)


@pytest.mark.parametrize("body", [SUM, EIGHT, DOWN, TILED], ids=["plain", "unrolled", "downwards", "tiled"])
def test_loops_of_any_body_grow_with_their_trips(compiler: PtxCompiler, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As well where the trace ends early as where it does not."""
    whole = times(compiler, threads(body), (256, 256, 512), (256, 256, 2048))
    assert whole[1] / whole[0] == pytest.approx(4, rel=0.25)
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_ROWS", 8000)
    [cut] = times(compiler, threads(body), (256, 256, 2048))
    assert cut == pytest.approx(whole[1], rel=0.2)


@pytest.mark.parametrize("body", [SUM, TILED], ids=["plain", "tiled"])
def test_a_grid_stride_grows_with_the_tiles_of_a_cta(compiler: PtxCompiler, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_ROWS", 12_000)
    few, many, long = times(compiler, strided(body, "16"), (256, 256, 128), (512, 512, 128), (256, 256, 512))
    assert many / few == pytest.approx(4, rel=0.25)
    assert long / few == pytest.approx(4, rel=0.25)
    [one] = times(compiler, threads(body), (512, 512, 128))
    [each] = times(compiler, strided(body, "M*N/256"), (512, 512, 128))
    assert each == pytest.approx(one, rel=0.2)


IDLE = {
    "behind": threads(SUM, '["N/2", "M/16", 1]', guard="  if (column >= n) return;\n"),
    "before": threads(SUM, '["N/2", "M/16", 1]', column="(gridDim.x - 1 - blockIdx.x)", guard="  if (column >= n) return;\n"),
    "between": threads(SUM, '["N/2", "M/16", 1]', column="(blockIdx.x / 8)", guard="  if (blockIdx.x % 8 != 3) return;\n"),
}


@pytest.mark.parametrize("place", IDLE)
def test_clusters_that_return_early_cost_next_to_nothing(compiler: PtxCompiler, place: str) -> None:
    """Seven of eight."""
    shape = (512, 512, 1024)
    [busy], [idle] = times(compiler, threads(SUM), shape), times(compiler, IDLE[place], shape)
    assert idle == pytest.approx(busy, rel=0.15)
    assert idle > busy, "they are placed all the same"


@pytest.mark.parametrize("rows", [1 << 18, 2000])
def test_idle_clusters_do_not_halve_what_a_trace_leaves_out(
    compiler: PtxCompiler, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_ROWS", rows)
    shape = (512, 512, 2048)
    [busy] = times(compiler, HEAD % '["M*N/2048", 1, 1]' + WMMA, shape)
    for ctas in ("M*N/1024", "M*N/512"):
        [idle] = times(compiler, HEAD % f'["{ctas}", 1, 1]' + WMMA, shape)
        assert idle == pytest.approx(busy, rel=0.15)


def test_a_cluster_whose_length_is_not_known_is_not_predicted(compiler: PtxCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_ROWS", 1000)
    monkeypatch.setattr("cudal2_agent.sandbox.timing_model.trace.MAX_COUNTED", 10_000)
    made = prediction(compiler, threads(SUM), 512, 512, 4096)
    assert made.is_floor
    assert made.model.startswith(f"{NOT_PREDICTED}: gemm takes more than")
