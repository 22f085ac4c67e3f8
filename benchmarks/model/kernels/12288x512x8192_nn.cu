/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["N//256", "M//192", 1], "cluster": [2, 1, 1], "block": [384, 1, 1],
   "dynamic_smem": 230464, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 96], "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 64], "swizzle": 128}},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["M%192==0", "N%512==0", "K%64==0", "K>=256"]
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
using Element = __half;
constexpr int BLOCK_M = 192, BLOCK_N = 256, BLOCK_K = 64, kStages = 4, kCluster = 2, kConsumers = 3;
constexpr unsigned kBox = 64 * 128, kHalfA = BLOCK_M / 2 * 128, kBytesA = BLOCK_M * 128;
constexpr unsigned kStage = kBytesA + BLOCK_N / 64 * kBox;
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
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned ring = align_up<1024>(smem_address(memory));
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = k / BLOCK_K;
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
  launch_dependents();
  cluster_meet();
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
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    const int s = block % kStages;
    mbarrier_wait(full + 8 * s, block / kStages % 2);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      Product::run(sums, wgmma_advance(a_tile, s * kStage + step * 32), wgmma_advance(b_tile, s * kStage + step * 2048), block + step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the block before has been read
    if (block > 0 && lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((block - 1) % kStages), lane);
    if (warp == 0 && block >= 2 && block + 2 < blocks) {  // the stage of two blocks ago takes the block after the next
      if (elect_one()) {
        const int free = (block - 2) % kStages;
        mbarrier_wait(empty + 8 * free, (block - 2) / kStages % 2);
        load_block(a, b, ring + free * kStage, full + 8 * free, row, column, rank, (block + 2) * BLOCK_K);
      }
      __syncwarp();
    }
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((blocks - 1) % kStages), lane);

  named_barrier(1, 128 * kConsumers);  // every warpgroup has read the ring: it becomes the staging of D
  const unsigned mine = ring + warpgroup * (BLOCK_N / 64) * kBox;
  const int r = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < BLOCK_N; j += 16) {
    const unsigned to = mine + j / 64 * kBox + swizzled<64>(r, j % 64 + lane / 16 * 8);
    const float* v = sums + j / 2;
    stmatrix_x4(to, pack<Element>(v[0], v[1]), pack<Element>(v[2], v[3]), pack<Element>(v[4], v[5]), pack<Element>(v[6], v[7]));
  }
  fence_proxy_async();
  named_barrier(2 + warpgroup, 128);
  if (threadIdx.x % 128 == 0) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 64; ++i) tma_store(d, mine + i * kBox, column + 64 * i, row + 64 * warpgroup);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
  if (threadIdx.x == 0) {  // a CTA must not end before its peer's last arrivals: those of the last blocks, which nothing refilled
    for (int block = blocks - kStages; block < blocks; ++block) mbarrier_wait(empty + 8 * (block % kStages), block / kStages % 2);
  }
}
