/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["N//256", "M//192", 1], "cluster": [2, 1, 1], "block": [384, 1, 1],
   "dynamic_smem": 230464, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 96], "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 64], "swizzle": 128}},
   {"tensor": "A"}, {"tensor": "B"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["M%192==0", "N%512==0", "K%256==0"]
} */
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
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
using Element = __half;
constexpr int BLOCK_M = 192, BLOCK_N = 256, BLOCK_K = 64, kStages = 4, kCluster = 2, kConsumers = 3;
constexpr unsigned kBox = 64 * 128, kHalfA = BLOCK_M / 2 * 128, kBytesA = BLOCK_M * 128;
constexpr unsigned kStage = kBytesA + BLOCK_N / 64 * kBox;
constexpr int kThreads = 128 * kConsumers;
constexpr int kHelpers = 4;   // CTAs that find an idle SM before the preceding launch has ended
constexpr int kTrigger = 32;  // blocks before the end of K when the next launch may start
using Product = wgmma_shared<Element, float, BLOCK_N, 1, 0>;

// By one thread: this CTA's half of the rows of A for both CTAs, and its own columns of B.
__device__ __forceinline__ void load_block(const TensorMap& a, const TensorMap& b, unsigned stage, unsigned ready, int row, int column,
                                           int rank, int x) {
  mbarrier_arrive_expect(ready, kStage);
  tma_load_multicast(stage + rank * kHalfA, a, ready, x, row + rank * (BLOCK_M / 2), 3, l2_policy<1>());
#pragma unroll
  for (int i = 0; i < BLOCK_N / 64; ++i) tma_load(stage + kBytesA + i * kBox, b, ready, column + 64 * i, x, l2_policy<2>());
}

extern "C" __global__ void __launch_bounds__(384)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d,
     const unsigned char* a_memory, const unsigned char* b_memory, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned ring = align_up<1024>(smem_address(memory));
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  const int lane = threadIdx.x % 32, blocks = k / BLOCK_K;
  const int row = blockIdx.y * BLOCK_M, column = blockIdx.x * BLOCK_N, rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4 * kConsumers * kCluster);
    }
    mbarrier_init_fence();
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    tma_prefetch_map(d);
  }
  cluster_meet();
  const int id = blockIdx.y * gridDim.x + blockIdx.x;
  if (id < kHelpers) {  // everybody's first blocks of K into L2
    const int ctas = gridDim.x * gridDim.y, parts = ctas < kHelpers ? ctas : kHelpers, bytes = kStages * BLOCK_K * 2;
    for (int r = id * kThreads + threadIdx.x; r < m; r += parts * kThreads) bulk_prefetch(a_memory + 2ll * r * k, bytes);
    for (int r = id * kThreads + threadIdx.x; r < n; r += parts * kThreads) bulk_prefetch(b_memory + static_cast<long long>(r) * bytes, bytes);
  }
  wait_for_dependencies();

  if (warp == 0) {
    if (elect_one()) {
      for (int s = 0; s < kStages; ++s) load_block(a, b, ring + s * kStage, full + 8 * s, row, column, rank, s * BLOCK_K);
    }
    __syncwarp();
  }

  float sums[Product::kRegisters];
  const unsigned long long a_tile = wgmma_descriptor<128>(ring + warpgroup * kBox, 0, 1024);
  const unsigned long long b_tile = wgmma_descriptor<128>(ring + kBytesA, kBox, 1024);
  const int trigger = blocks > kTrigger ? blocks - kTrigger : 0;
#pragma unroll 1
  for (int round = 0; round < blocks; round += kStages) {
    const unsigned parity = round / kStages % 2;
    if (round == trigger) launch_dependents();
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      // The last two blocks are multiplied by one warpgroup after the other: the first ones store while the last one multiplies.
      if (s == kStages - 2 && warpgroup > 0 && round + kStages == blocks) named_barrier(warpgroup, 256);
      mbarrier_wait(full + 8 * s, parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < BLOCK_K / 16; ++step) {
        Product::run(sums, wgmma_advance(a_tile, s * kStage + step * 32), wgmma_advance(b_tile, s * kStage + step * 2048),
                     s + step > 0 ? 1 : round > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the block before has been read
      if (s == kStages - 1 && warpgroup + 1 < kConsumers && round + kStages == blocks) named_barrier_arrive(warpgroup + 1, 256);
      if ((s > 0 || round > 0) && lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((s + kStages - 1) % kStages), lane);
      // The stage of two blocks ago takes the block after the next.
      if (warp == 0 && (s >= 2 || round > 0) && round + s + 2 < blocks) {
        if (elect_one()) {
          const int free = (s + 2) % kStages;
          mbarrier_wait(empty + 8 * free, s >= 2 ? parity : parity ^ 1);
          load_block(a, b, ring + free * kStage, full + 8 * free, row, column, rank, (round + s + 2) * BLOCK_K);
        }
        __syncwarp();
      }
    }
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((blocks - 1) % kStages), lane);

  // The box of this warpgroup's rows of A in each stage becomes the staging of D: nobody else reads it, and nothing refills it.
  named_barrier(3 + warpgroup, 128);
  const unsigned mine = ring + warpgroup * kBox;
  const int r = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < BLOCK_N / 64; ++i) {  // 64 columns leave while the next 64 are staged
#pragma unroll
    for (int j = 0; j < 64; j += 16) {
      const float* v = sums + 32 * i + j / 2;
      stmatrix_x4(mine + i * kStage + swizzled<64>(r, j + lane / 16 * 8), pack<Element>(v[0], v[1]), pack<Element>(v[2], v[3]),
                  pack<Element>(v[4], v[5]), pack<Element>(v[6], v[7]));
    }
    fence_proxy_async();
    named_barrier(3 + warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
      tma_store(d, mine + i * kStage, column + 64 * i, row + 64 * warpgroup);
      tma_store_commit();
    }
  }
  if (threadIdx.x % 128 == 0) tma_store_wait_read<0>();
  if (threadIdx.x == 0) {  // a CTA must not end before its peer's last arrivals: those of the last blocks, which nothing refilled
    for (int block = blocks - kStages; block < blocks; ++block) mbarrier_wait(empty + 8 * (block % kStages), block / kStages % 2);
  }
}
