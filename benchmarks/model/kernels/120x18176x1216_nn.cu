/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["ceil(N/144)", "ceil(M/128)", 1], "block": [288, 1, 1],
   "dynamic_smem": 210048, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [16, 64], "swizzle": 32, "l2": 0}},
   {"tensor_map": {"of": "D", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [16, 64], "swizzle": 32}},
   {"tensor": "A"}, {"tensor": "B"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["K%8==0", "N%8==0"]
} */
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
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
constexpr int BLOCK_M = 128, BLOCK_N = 144, BLOCK_K = 64, kStages = 6, kAhead = 5;
constexpr unsigned kBox = 64 * 128, kBytesA = 2 * kBox, kTail = 64 * 32;
constexpr unsigned kStage = kBytesA + 2 * kBox + kTail;  // 34816, a multiple of 1024
using Wide = wgmma_shared<Element, float, 128, 1, 0>;
using Narrow = wgmma_shared<Element, float, 16, 1, 0>;

// This CTA's piece of the 64 rows of B that k-block `block` reads: whole rows are contiguous.
__device__ __forceinline__ void prefetch_block(const Element* b, int block, unsigned piece, int n, int k) {
  const int rows = min(BLOCK_K, k - block * BLOCK_K);
  const unsigned total = static_cast<unsigned>(rows) * n * 2, at = blockIdx.x * piece;
  if (at < total) {
    bulk_prefetch(reinterpret_cast<const char*>(b) + static_cast<long long>(block) * BLOCK_K * n * 2 + at, min(piece, total - at));
  }
}

__device__ __forceinline__ void load_block(const TensorMap& a, const TensorMap& b, const TensorMap& b_tail, unsigned stage,
                                           unsigned ready, int row, int column, int block) {
  mbarrier_arrive_expect(ready, kStage);
  tma_load(stage, a, ready, block * BLOCK_K, row);
  tma_load(stage + kBytesA, b, ready, column, block * BLOCK_K, l2_policy<1>());
  tma_load(stage + kBytesA + kBox, b, ready, column + 64, block * BLOCK_K, l2_policy<1>());
  tma_load(stage + kBytesA + 2 * kBox, b_tail, ready, column + 128, block * BLOCK_K, l2_policy<1>());
}

extern "C" __global__ void __launch_bounds__(288, 1)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap b_tail,
     const __grid_constant__ TensorMap d, const __grid_constant__ TensorMap d_tail, const Element* a_memory,
     const Element* b_memory, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned ring = align_up<1024>(smem_address(memory));
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int blocks = (k + BLOCK_K - 1) / BLOCK_K;
  const int row = blockIdx.y * BLOCK_M, column = blockIdx.x * BLOCK_N;
  const unsigned span = gridDim.x * 128;
  const unsigned piece = (static_cast<unsigned>(BLOCK_K * 2) * n + span - 1) / span * 128;
  const bool prefetches = blockIdx.y == 0;

  launch_dependents();
  if (warp == 8 && prefetches) {  // while the preceding launch ends on other SMs
    if (elect_one()) {
      const unsigned total = static_cast<unsigned>(m) * k * 2, share = (total + span - 1) / span * 128, at = blockIdx.x * share;
      if (at < total) bulk_prefetch(reinterpret_cast<const char*>(a_memory) + at, min(share, total - at));
      for (int block = 0; block < min(blocks, kAhead); ++block) prefetch_block(b_memory, block, piece, n, k);
    }
  }
  if (threadIdx.x == 0) {
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    tma_prefetch_map(b_tail);
    tma_prefetch_map(d);
    tma_prefetch_map(d_tail);
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_dependencies();  // before A and B are read and D is written

  if (warp == 8) {
    if (!elect_one()) return;
    int slot = 0;
    unsigned phase = 1;  // fresh barriers let this pass
    for (int block = 0; block < blocks; ++block) {
      mbarrier_wait(empty + 8 * slot, phase);
      load_block(a, b, b_tail, ring + slot * kStage, full + 8 * slot, row, column, block);
      if (++slot == kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
    return;
  }

  float sums[Wide::kRegisters], tail[Narrow::kRegisters];
  const unsigned long long a_tile = wgmma_descriptor<128>(ring + warpgroup * kBox, kBox, 1024);
  const unsigned long long b_tile = wgmma_descriptor<128>(ring + kBytesA, kBox, 1024);
  const unsigned long long t_tile = wgmma_descriptor<32>(ring + kBytesA + 2 * kBox, kTail, 256);
  int slot = 0, before = 0;
  unsigned phase = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = slot * kStage;
    mbarrier_wait(full + 8 * slot, phase);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      Wide::run(sums, wgmma_advance(a_tile, stage + step * 32), wgmma_advance(b_tile, stage + step * 2048), block + step > 0);
      Narrow::run(tail, wgmma_advance(a_tile, stage + step * 32), wgmma_advance(t_tile, stage + step * 512), block + step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the block before has been read
    if (block > 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
    before = slot;
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
  wgmma_pin(sums);
  wgmma_pin(tail);
  wgmma_wait<0>();
  wgmma_pin(sums);
  wgmma_pin(tail);

  // The ring is idle. This warpgroup's halves of A belong to it alone: three places of 8 KB.
  named_barrier(1 + warpgroup, 128);
  const unsigned mine = ring + warpgroup * kBox;
  const int r = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < 128; j += 16) {
    const unsigned to = mine + j / 64 * kStage + swizzled<64>(r, j % 64 + lane / 16 * 8);
    const float* s = sums + j / 2;
    stmatrix_x4(to, pack<Element>(s[0], s[1]), pack<Element>(s[2], s[3]), pack<Element>(s[4], s[5]), pack<Element>(s[6], s[7]));
  }
  // Rows of 32 bytes: their swizzle flips the half in every second group of 4 rows.
  stmatrix_x4(mine + 2 * kStage + r * 32 + (lane / 16 ^ r / 4 % 2) * 16, pack<Element>(tail[0], tail[1]), pack<Element>(tail[2], tail[3]),
              pack<Element>(tail[4], tail[5]), pack<Element>(tail[6], tail[7]));
  fence_proxy_async();
  named_barrier(1 + warpgroup, 128);
  const int top = row + 64 * warpgroup;
  if (threadIdx.x % 128 == 0 && top < m) {  // a store must start inside of D
    tma_store(d, mine, column, top);
    if (column + 64 < n) tma_store(d, mine + kStage, column + 64, top);
    if (column + 128 < n) tma_store(d_tail, mine + 2 * kStage, column + 128, top);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}
