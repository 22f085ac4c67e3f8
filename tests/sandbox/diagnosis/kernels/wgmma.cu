// D = A B with wgmma: TMA loads into a ring of stages, two warpgroups of 64 rows each, a tile of 128 x 128 x 64.
//   SERIALISED 1   the accumulators are read without a wait for the last product, so ptxas waits after every one
// M, N, K are whole multiples of the tile.
#include <cudal2/convert.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;

constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64;
constexpr int kStages = 5;
constexpr int kThreads = 256;
constexpr unsigned kBytesA = BLOCK_M * BLOCK_K * 2;
constexpr unsigned kBytesColumns = BLOCK_K * 64 * 2;  // 64 columns of B, one row of 128 bytes per K index
constexpr unsigned kBytesStage = kBytesA + 2 * kBytesColumns;

// One thread starts the loads of the tiles of a K block. The barrier completes when their bytes have arrived.
__device__ __forceinline__ void load_block(unsigned stage, unsigned barrier, const TensorMap& map_a, const TensorMap& map_b,
                                           int m0, int n0, int block) {
  mbarrier_arrive_expect(barrier, kBytesStage);
  tma_load(stage, map_a, barrier, block * BLOCK_K, m0);
  tma_load(stage + kBytesA, map_b, barrier, n0, block * BLOCK_K);
  tma_load(stage + kBytesA + kBytesColumns, map_b, barrier, n0 + 64, block * BLOCK_K);
}

extern "C" __global__ void __launch_bounds__(kThreads)
hgemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, half* __restrict__ d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  __shared__ unsigned long long full[kStages];
  const unsigned smem = align_up<1024>(smem_address(memory));
  const unsigned barriers = smem_address(full);
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int blocks = k / BLOCK_K;
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(barriers + 8 * stage, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int block = 0; block < kStages - 2 && block < blocks; ++block) {
      load_block(smem + block * kBytesStage, barriers + 8 * block, map_a, map_b, m0, n0, block);
    }
  }

  float sums[BLOCK_N / 2] = {};
  const unsigned long long a = wgmma_descriptor<128>(smem + warpgroup * 64 * 128, 16, 1024);
  const unsigned long long b = wgmma_descriptor<128>(smem + kBytesA, kBytesColumns, 1024);
  for (int block = 0; block < blocks; ++block) {
    const int stage = block % kStages;
    mbarrier_wait(barriers + 8 * stage, block / kStages % 2);
    const int ahead = block + kStages - 2;
    // Its buffer held the block before the previous one. All threads waited for those products in the previous iteration.
    if (threadIdx.x == 0 && ahead < blocks) {
      const int target = ahead % kStages;
      load_block(smem + target * kBytesStage, barriers + 8 * target, map_a, map_b, m0, n0, ahead);
    }
    wgmma_pin(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      const unsigned at = stage * kBytesStage;
      wgmma_shared<half, float, BLOCK_N, 1>::run(sums, wgmma_advance(a, at + step * 32), wgmma_advance(b, at + step * 16 * 128), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the products of this block may still be in flight
    __syncthreads();
  }

#if !SERIALISED
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
#endif

  const int lane = threadIdx.x % 32;
  const int row = m0 + warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int group = 0; group < BLOCK_N / 8; ++group) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const size_t at = size_t(row + 8 * below) * n + n0 + 8 * group + lane % 4 * 2;
      const float low = sums[4 * group + 2 * below], high = sums[4 * group + 2 * below + 1];
      *reinterpret_cast<unsigned*>(d + at) = pack<half>(low, high);
    }
  }
}
