/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "gemm", "grid": ["2*ceil(M/256)", "ceil(N/128)", 1], "cluster": [2, 1, 1], "block": [288, 1, 1],
   "dynamic_smem": 164928, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": {{ "[64, 64]" if task.layout.transposes_a else "[64, 128]" }}, "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 64], "swizzle": 128}},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "{{ task.accumulate }}",
 "requires": ["{{ "M" if task.layout.transposes_a else "K" }}%8==0", "N%8==0"{{ ', "K%8==0"' if task.layout.transposes_b }}]
} */
#include <cudal2/barrier.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/stmatrix.cuh>
#include <cudal2/swizzle.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;
using Element = {{ element }};
constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64, kStages = 4, kCluster = 2;
constexpr unsigned kBytesA = BLOCK_M * BLOCK_K * 2, kStage = kBytesA + BLOCK_N * BLOCK_K * 2, kBox = 64 * 128;
{% if task.layout.transposes_a %}
constexpr unsigned kStepA = 16 * 128;  // MN-major: 16 rows of K, each 64 elements of M
{% else %}
constexpr unsigned kStepA = 32;  // K-major: 16 elements along a row of 64
{% endif %}
{% if task.layout.transposes_b %}
constexpr unsigned kStepB = 32;  // K-major: 16 elements along a row of 64
{% else %}
constexpr unsigned kStepB = 16 * 128;  // MN-major: 16 rows of K, each 64 elements of N
{% endif %}
using Product = wgmma_shared<Element, {{ "float" if task.accumulate == "f32" else "unsigned" }}, BLOCK_N, {{ 0 if task.layout.transposes_b else 1 }}, {{ 1 if task.layout.transposes_a else 0 }}>;

// Two CTAs of a cluster compute 256 x 128 of D and share B. Warpgroups 0 and 1 multiply 64 rows each, warp 8 loads.
extern "C" __global__ void __launch_bounds__(288)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned ring = align_up<1024>(smem_address(memory)), staging = ring + kStages * kStage;
  const unsigned full = staging + BLOCK_M * BLOCK_N * 2, empty = full + 8 * kStages;
  const int warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32, blocks = (k + BLOCK_K - 1) / BLOCK_K;
  const int row = blockIdx.x * BLOCK_M, column = blockIdx.y * BLOCK_N;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8 * kCluster);  // 8 warps of each CTA that reads what this CTA sends
    }
    mbarrier_init_fence();
  }
  launch_dependents();
  cluster_meet();           // the barriers of both CTAs are ready
  wait_for_dependencies();  // before A and B are read and D is written

  if (warpgroup == 2) {
    if (!elect_one()) return;
    for (int block = 0; block < blocks + kStages; ++block) {
      const unsigned stage = ring + block % kStages * kStage, ready = full + 8 * (block % kStages);
      mbarrier_wait(empty + 8 * (block % kStages), block / kStages % 2 ^ 1);  // passes at once in the first round
      if (block >= blocks) continue;  // the last round: a CTA must not end before its peer's last arrival
      mbarrier_arrive_expect(ready, kStage);
{% if task.layout.transposes_a %}
      for (int i = 0; i < BLOCK_M / 64; ++i) tma_load(stage + i * kBox, a, ready, row + 64 * i, block * BLOCK_K);
{% else %}
      tma_load(stage, a, ready, block * BLOCK_K, row);
{% endif %}
      const int i = cluster_rank();  // this CTA's half of B goes to both: a box of 64 {{ "rows" if task.layout.transposes_b else "columns" }} each
{% if task.layout.transposes_b %}
      tma_load_multicast(stage + kBytesA + i * kBox, b, ready, block * BLOCK_K, column + 64 * i, 3);
{% else %}
      tma_load_multicast(stage + kBytesA + i * kBox, b, ready, column + 64 * i, block * BLOCK_K, 3);
{% endif %}
    }
    return;
  }

  {{ "float" if task.accumulate == "f32" else "unsigned" }} sums[Product::kRegisters];
  const unsigned long long a_tile = wgmma_descriptor<128>(ring + warpgroup * kBox, kBox, 1024);
  const unsigned long long b_tile = wgmma_descriptor<128>(ring + kBytesA, kBox, 1024);  // 64 columns, then the next box
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = block % kStages * kStage;
    mbarrier_wait(full + 8 * (block % kStages), block / kStages % 2);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      Product::run(sums, wgmma_advance(a_tile, stage + step * kStepA), wgmma_advance(b_tile, stage + step * kStepB), block + step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the block before has been read: tell both CTAs that load into its stage
    if (block > 0 && lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((block - 1) % kStages), lane);
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((blocks - 1) % kStages), lane);

  const unsigned mine = staging + warpgroup * (BLOCK_N / 64) * kBox;
  const int r = threadIdx.x % 128 / 32 * 16 + lane % 16;  // the row that this lane addresses
#pragma unroll
  for (int j = 0; j < BLOCK_N; j += 16) {  // 16 columns of 16 rows a warp
    const unsigned to = mine + j / 64 * kBox + swizzled<64>(r, j % 64 + lane / 16 * 8);
{% if task.accumulate == "f32" %}
    const float* s = sums + j / 2;
    stmatrix_x4(to, pack<Element>(s[0], s[1]), pack<Element>(s[2], s[3]), pack<Element>(s[4], s[5]), pack<Element>(s[6], s[7]));
{% else %}
    stmatrix_x4(to, sums[j / 4], sums[j / 4 + 1], sums[j / 4 + 2], sums[j / 4 + 3]);
{% endif %}
  }
  fence_proxy_async();
  named_barrier(1 + warpgroup, 128);
  if (threadIdx.x % 128 == 0 && row + 64 * warpgroup < m) {  // a store must start inside of D
    for (int i = 0; i < BLOCK_N / 64 && column + 64 * i < n; ++i) tma_store(d, mine + i * kBox, column + 64 * i, row + 64 * warpgroup);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory must live until it was read
  }
}
