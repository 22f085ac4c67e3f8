"""Launchers in the manner of the published ones, timed on a GPU: by a graph, with their outputs judged."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.libraries.jobs import PUBLISHED_KERNELS, build, paper_jobs
from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.building.toolchain import find_nvcc

pytestmark = pytest.mark.gpu

TASK = GemmTask(m=64, n=64, k=256, arch=Arch.SM_90A)
LONGEST_US = 60.0  # for one thread per output and a few hundred dependent steps
KERNEL = """
#include <torch/extension.h>

template <typename Sum>
__global__ void multiply(const half *a, const half *b, half *d, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  Sum sum = 0.0f;
  for (int i = 0; i < k; ++i) sum = static_cast<Sum>(a[row * k + i]) * static_cast<Sum>(b[i * n + column]) + sum;
  d[row * n + column] = static_cast<half>(sum);
}

void cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor, torch::Tensor d) {
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  const auto launch = [&](cudaStream_t stream) {
    multiply<SUM><<<dim3(n / 16, m / 16), dim3(16, 16), 0, stream>>>(
        a.data_ptr<half>(), b.data_ptr<half>(), d.data_ptr<half>(), n, k);
  };
  BODY
}
"""
SYNCHRONISES = """
  void *workspace;
  cudaMalloc(&workspace, 1 << 20);
  cudaMemset(workspace, 0, 1 << 20);
  launch(0);
  cudaFree(workspace);
  if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("synchronization failed");
"""
TUNES = """
  static bool tuned = ALWAYS;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (tuned == ALWAYS) {
    cudaEvent_t begin, end;
    float ms;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, stream);
    launch(stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    cudaEventElapsedTime(&ms, begin, end);
    if (!(ms > 0)) throw std::runtime_error("no time");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  tuned = true;
  launch(stream);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
"""
LAUNCHERS = {
    "synchronises": ("float", SYNCHRONISES),
    "tunes once": ("float", TUNES.replace("ALWAYS", "false")),
    "tunes always": ("float", TUNES.replace("ALWAYS", "true")),
    "narrow sums": ("half", SYNCHRONISES),
}


@pytest.fixture(scope="module")
def bench() -> Iterator:
    from benchmarks.peers.comparing import Bench
    from cudal2_agent.sandbox.cuda.device import Device

    made = Bench(TASK, Device(0), 0.1)
    yield made
    made.close()


@pytest.fixture
def row(bench, tmp_path: Path, request: pytest.FixtureRequest):
    """AutoTuning beside the launcher that the test names."""
    from benchmarks.peers.comparing import compare_peers
    from benchmarks.peers.library_peers import PaperPeer
    from benchmarks.peers.lt_search import AutoTuned

    try:
        nvcc = find_nvcc(None, host=True)
    except CompilerMissing:
        pytest.skip("no nvcc on this machine")
    sums, body = LAUNCHERS[request.param]
    kernels = tmp_path / PUBLISHED_KERNELS
    kernels.mkdir(parents=True)
    (kernels / "64_64_256.cu").write_text(KERNEL.replace("SUM>", f"{sums}>").replace("BODY", body))
    (job,) = paper_jobs(tmp_path, [TASK.shape], tmp_path)
    assert build(job, tmp_path, nvcc).endswith("built")
    return compare_peers(bench, [AutoTuned(), PaperPeer(tmp_path)], lambda _: None)


@pytest.mark.parametrize("row", ["synchronises", "tunes once"], indirect=True)
def test_a_launcher_that_synchronises_or_tunes_itself_is_timed_in_a_graph(row) -> None:
    found = row.peers["cuda-l2-paper"]
    assert (found.clock, found.fault) == ("graph", "")
    assert 1.0 < found.time_us < LONGEST_US


@pytest.mark.parametrize("row", ["narrow sums"], indirect=True)
def test_narrow_sums_keep_their_time_and_are_told(row) -> None:
    assert row.peers["cuda-l2-paper"].fault
    assert row.peers["cuda-l2-paper"].time_us > 1.0


@pytest.mark.parametrize("row", ["tunes always"], indirect=True)
def test_a_launcher_that_tunes_in_every_call_has_no_time(row) -> None:
    assert set(row.peers) == {AUTOTUNED}
    assert "measures its kernels in every call" in row.failures["cuda-l2-paper"]


def test_the_sum_of_kernels_is_no_longer_than_their_graph(bench) -> None:
    from benchmarks.peers.kernel_lane import KernelLane
    from benchmarks.peers.lt_search import AutoTuned

    best = AutoTuned().offer(bench).contender
    kernels_us = KernelLane(bench._track, best, random.Random(1)).sample_us()
    assert 0.2 * bench.brief_us(best) < kernels_us < 1.5 * bench.brief_us(best)
