/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["3*ceil(N/192)", 1, 1], "cluster": [3, 1, 1], "block": [160, 1, 1], "dynamic_smem": 214272,
   "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 67], "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 67], "swizzle": 128}},
   {"tensor": "A"}, {"tensor": "B"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["M<=67", "K%8==0", "N%8==0"]
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
constexpr int BLOCK_K = 64, kStages = 11, kRowsA = 67, kPadded = 80, kCluster = 3;
constexpr int kAhead = 8;  // blocks of K that are brought into L2 before the wait
constexpr unsigned kBoxA = kRowsA * 128, kRoomA = kPadded * 128, kBoxB = BLOCK_K * 128;
constexpr unsigned kBytes = kBoxA + kBoxB, kStage = kRoomA + kBoxB;
// Columns of N are the rows of the product, rows of M its columns: both operands from shared memory, the first M-major.
using Product = wgmma_shared<Element, float, kPadded, 0, 1>;

// This CTA's share of `bytes`, into L2.
__device__ __forceinline__ void prefetch_share(const unsigned char* base, long long bytes) {
  const int words = static_cast<int>(bytes / 16), ctas = gridDim.x, share = (words + ctas - 1) / ctas, first = share * blockIdx.x;
  const int count = first + share <= words ? share : words - first;
  if (count > 0) bulk_prefetch(base + 16ll * first, static_cast<unsigned>(count * 16));
}

extern "C" __global__ void __launch_bounds__(160)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d,
     const unsigned char* a_memory, const unsigned char* b_memory, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned base = smem_address(memory), ring = align_up<1024>(base), staging = ring + kStages * kStage;
  const unsigned full = staging + kRoomA, empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = (k + BLOCK_K - 1) / BLOCK_K;
  const int column = blockIdx.x * 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4 * kCluster);
    }
    mbarrier_init_fence();
  }
  launch_dependents();
  if (warp == 4 && elect_one()) {
    tma_prefetch_map(a);
    tma_prefetch_map(b);
    tma_prefetch_map(d);
    prefetch_share(a_memory, 2ll * m * k);
    for (int block = 0; block < kAhead && (block + 1) * BLOCK_K <= k; ++block) {
      prefetch_share(b_memory + 2ll * block * BLOCK_K * n, 2ll * BLOCK_K * n);
    }
  }
  // The rows of A that no box writes: zero in every stage, once.
  constexpr int kWords = (kPadded - kRowsA) * 8;
  unsigned char* stages = memory + (ring - base);
  for (int i = threadIdx.x; i < kStages * kWords; i += 160) {
    *reinterpret_cast<uint4*>(stages + (i / kWords) * kStage + kBoxA + (i % kWords) * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  __syncthreads();
  cluster_meet();
  wait_for_dependencies();

  if (warp == 4) {
    if (!elect_one()) return;
    const int rank = cluster_rank();
    for (int block = 0; block < blocks + kStages; ++block) {
      const int s = block % kStages;
      const unsigned stage = ring + s * kStage, ready = full + 8 * s;
      mbarrier_wait(empty + 8 * s, block / kStages % 2 ^ 1);  // of all CTAs of the cluster; passes at once in the first round
      if (block >= blocks) continue;  // the last round: a CTA must not end before its peers' last arrivals
      mbarrier_arrive_expect(ready, kBytes);
      tma_load(stage + kRoomA, b, ready, column, block * BLOCK_K, l2_policy<1>());
      if (block % kCluster == rank) tma_load_multicast(stage, a, ready, block * BLOCK_K, 0, (1 << kCluster) - 1);
    }
    return;
  }

  float sums[Product::kRegisters];
  const unsigned long long rows_tile = wgmma_descriptor<128>(ring + kRoomA, kBoxB, 1024);  // 64 of N by 64 of K
  const unsigned long long columns_tile = wgmma_descriptor<128>(ring, 0, 1024);            // 80 of M, rows along K
  for (int block = 0; block < blocks; ++block) {
    const int s = block % kStages;
    mbarrier_wait(full + 8 * s, block / kStages % 2);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      Product::run(sums, wgmma_advance(rows_tile, s * kStage + step * 2048), wgmma_advance(columns_tile, s * kStage + step * 32), block + step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((block - 1) % kStages), lane);
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (lane < kCluster) mbarrier_arrive_remote(empty + 8 * ((blocks - 1) % kStages), lane);

  // Fragments hold rows of N and columns of M; transposed they are rows of D.
#pragma unroll
  for (int j = 0; j < kPadded; j += 16) {
    const float* s = sums + j / 2;
    const int r = j + lane / 16 * 8 + lane % 8, c = warp * 16 + lane / 8 % 2 * 8;
    stmatrix_x4_transposed(staging + swizzled<64>(r, c), pack<Element>(s[0], s[1]), pack<Element>(s[2], s[3]),
                           pack<Element>(s[4], s[5]), pack<Element>(s[6], s[7]));
  }
  fence_proxy_async();
  named_barrier(1, 128);
  if (threadIdx.x == 0 && column < n) {  // a store must start inside of D
    tma_store(d, staging, column, 0);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}
