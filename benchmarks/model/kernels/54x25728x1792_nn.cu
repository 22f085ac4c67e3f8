/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["2*(min(SMS, N//192)//2)", 1, 1], "cluster": [2, 1, 1], "block": [160, 1, 1],
   "dynamic_smem": 210048, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 32], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "dims": [64, "K", "N//64"], "strides": ["N", 64], "box": [64, 8, 3], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [16, 64], "swizzle": 32, "l2": 128}},
   {"tensor_map": {"of": "D", "box": [64, 64], "swizzle": 128}},
   {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["K%64==0", "N%64==0", "N>=384", "M>32", "M<=64", "N-384*(min(SMS,N//192)//2)<=32*(min(SMS,N//192)//2)"]
} */
#include <cuda_fp16.h>
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
constexpr int BLOCK_N = 192, STRIP = 16, BLOCK_K = 64, kStages = 6;
constexpr int kAhead = 4;  // blocks 0, 2, 4, ... that are brought into L2 before the wait
constexpr unsigned kAtom = 64 * 8 * 2, kGroup = 3 * kAtom;  // 64 columns of 8 rows of B; the three beside one another
constexpr unsigned kBytesB = BLOCK_K / 8 * kGroup, kBytesA = 64 * 128, kBytesStrip = STRIP * BLOCK_K * 2;
constexpr unsigned kStage = kBytesB + kBytesA + kBytesStrip;  // 34816
constexpr unsigned kBarriers = kStages * kStage;
constexpr unsigned kBoxD = 64 * 128;
using Product = wgmma_shared<Element, float, BLOCK_N, 1, 0>;
using Small = wgmma_shared<Element, float, STRIP, 1, 0>;

template <bool kStrip>
__device__ __forceinline__ void produce(unsigned ring, const TensorMap& a, const TensorMap& b, const TensorMap& narrow, int column,
                                        int strip_column, int blocks) {
  const unsigned full = ring + kBarriers, empty = full + 8 * kStages;
  const unsigned half = cluster_rank();  // of the rows of A
  for (int block = 0; block < blocks + kStages; ++block) {
    const unsigned slot = block % kStages, stage = ring + slot * kStage, ready = full + 8 * slot;
    mbarrier_wait(empty + 8 * slot, block / kStages % 2 ^ 1);
    if (block >= blocks) continue;  // the last round: the peer's last arrivals are in before this CTA ends
    mbarrier_arrive_expect(ready, kStrip ? kStage : kStage - kBytesStrip);
#pragma unroll
    for (int i = 0; i < BLOCK_K / 8; ++i) tma_load_3d(stage + i * kGroup, b, ready, 0, block * BLOCK_K + 8 * i, column / 64);
    if (kStrip) tma_load(stage + kBytesB + kBytesA, narrow, ready, strip_column, block * BLOCK_K);
    tma_load_multicast(stage + kBytesB + half * (kBytesA / 2), a, ready, block * BLOCK_K, static_cast<int>(half) * 32, 3);
  }
}

template <bool kStrip>
__device__ __forceinline__ void consume(unsigned ring, const TensorMap& d, Element* out, int column, int strip_column, int blocks,
                                        int m, int n) {
  const unsigned full = ring + kBarriers, empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[Product::kRegisters];
  float more[Small::kRegisters];
  const unsigned long long b_tile = wgmma_descriptor<128>(ring, kAtom, kGroup);
  const unsigned long long a_tile = wgmma_descriptor<128>(ring + kBytesB, 0, 1024);
  const unsigned long long strip = wgmma_descriptor<32>(ring + kBytesB + kBytesA, kBytesStrip, 256);
  for (int block = 0; block < blocks; ++block) {
    const unsigned slot = block % kStages, stage = slot * kStage;
    mbarrier_wait(full + 8 * slot, block / kStages % 2);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      const unsigned long long left = wgmma_advance(a_tile, stage + step * 32);
      Product::run(sums, left, wgmma_advance(b_tile, stage + step * 2 * kGroup), block + step > 0);
      if (kStrip) Small::run(more, left, wgmma_advance(strip, stage + step * 512), block + step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the block before has been read
    if (block > 0 && lane < 2) mbarrier_arrive_remote(empty + 8 * ((block - 1) % kStages), lane);
  }
  wgmma_pin(sums);
  if (kStrip) wgmma_pin(more);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (kStrip) wgmma_pin(more);

  named_barrier(1, 128);  // all four warps have read the ring; it becomes the staging of D
  if (lane < 2) mbarrier_arrive_remote(empty + 8 * ((blocks - 1) % kStages), lane);
  const int r = warp * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < BLOCK_N; j += 16) {
    const unsigned to = ring + j / 64 * kBoxD + swizzled<64>(r, j % 64 + lane / 16 * 8);
    const float* s = sums + j / 2;
    stmatrix_x4(to, pack<Element>(s[0], s[1]), pack<Element>(s[2], s[3]), pack<Element>(s[4], s[5]), pack<Element>(s[6], s[7]));
  }
  fence_proxy_async();
  named_barrier(1, 128);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < 3; ++i) tma_store(d, ring + i * kBoxD, column + 64 * i, 0);
    tma_store_commit();
  }
  if (kStrip) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + 8 * half;
      if (row < m) {
#pragma unroll
        for (int j = 0; j < STRIP / 8; ++j) {
          const long long at = static_cast<long long>(row) * n + strip_column + 8 * j + lane % 4 * 2;
          *reinterpret_cast<unsigned*>(out + at) = pack<Element>(more[4 * j + 2 * half], more[4 * j + 2 * half + 1]);
        }
      }
    }
  }
  if (threadIdx.x == 0) tma_store_wait_read<0>();
}

// A CTA computes 192 columns of D, and one of the last ones a strip of 16 more. Warps 0 to 3 multiply, warp 4 loads.
extern "C" __global__ void __launch_bounds__(160)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap narrow,
     const __grid_constant__ TensorMap d, const Element* raw_a, const Element* raw_b, Element* out, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned ring = align_up<1024>(smem_address(memory));
  const unsigned full = ring + kBarriers, empty = full + 8 * kStages;
  const int ctas = gridDim.x, cta = blockIdx.x, blocks = k / BLOCK_K;
  const int column = cta * BLOCK_N, strips = (n - ctas * BLOCK_N) / STRIP;
  const int number = cta - (ctas - strips);  // of this CTA's strip, if it has one
  const int strip_column = ctas * BLOCK_N + number * STRIP;
  launch_dependents();
  if (threadIdx.x == 128) {
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    tma_prefetch_map(d);
    if (number >= 0) tma_prefetch_map(narrow);
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);
    }
    mbarrier_init_fence();
  }
  // Into L2 while the launch before ends: a row of A by each of the first CTAs, and every second of the first blocks of B,
  // by halves of whole rows, all CTAs side by side.
  if (threadIdx.x == 0 && cta < m) bulk_prefetch(raw_a + static_cast<long long>(cta) * k, k * 2);
  if (threadIdx.x == 32) {
#pragma unroll 1
    for (int i = cta; i < kAhead * BLOCK_K * 2; i += ctas) {
      const int row = i / 2 / BLOCK_K * 2 * BLOCK_K + i / 2 % BLOCK_K;
      if (row < k) bulk_prefetch(raw_b + static_cast<long long>(row) * n + i % 2 * (n / 2), static_cast<unsigned>(n));
    }
  }
  __syncwarp();
  cluster_meet();  // the barriers of both CTAs are ready
  wait_for_dependencies();

  if (threadIdx.x >= 128) {
    if (elect_one()) {
      if (number >= 0) produce<true>(ring, a, b, narrow, column, strip_column, blocks);
      else produce<false>(ring, a, b, narrow, column, strip_column, blocks);
    }
  } else if (number >= 0) {
    consume<true>(ring, d, out, column, strip_column, blocks, m, n);
  } else {
    consume<false>(ring, d, out, column, strip_column, blocks, m, n);
  }
}
