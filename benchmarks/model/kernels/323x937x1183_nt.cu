/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["2*ceil(N/112)", "2*ceil(M/112)", 1], "cluster": [2, 2, 1], "block": [544, 1, 1], "dynamic_smem": 218368,
   "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "dims": ["M+(0*M)%8", "(K+7)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(0*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(1*M)%8", "(K+6)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(2*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(2*M)%8", "(K+5)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(4*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(3*M)%8", "(K+4)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(6*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(4*M)%8", "(K+3)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(8*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(5*M)%8", "(K+2)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(10*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(6*M)%8", "(K+1)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(12*M)//16*16"}},
   {"tensor_map": {"of": "A", "dims": ["M+(7*M)%8", "(K+0)//8"], "strides": ["8*M"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(14*M)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(0*N)%8", "(K+7)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(0*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(1*N)%8", "(K+6)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(2*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(2*N)%8", "(K+5)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(4*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(3*N)%8", "(K+4)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(6*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(4*N)%8", "(K+3)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(8*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(5*N)%8", "(K+2)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(10*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(6*N)%8", "(K+1)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(12*N)//16*16"}},
   {"tensor_map": {"of": "B", "dims": ["N+(7*N)%8", "(K+0)//8"], "strides": ["8*N"], "box": [64, 40], "swizzle": 128, "offset_bytes": "(14*N)//16*16"}},
   {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["K>=8", "K<=1280"]
} */
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;
using Product = wgmma_shared<__half, float, 64, 1, 1>;
constexpr int kTile = 56;                              // of the 64 x 64 that are computed: skews are 0 to 7
constexpr int kRows = 80;                              // rows of K of one block, all of one residue class modulo 8
constexpr int kStages = 7, kBlocks = 16;               // 8 classes, 2 blocks of each
constexpr unsigned kBox = kRows * 128, kStage = 2 * kBox;
constexpr int kPitch = 72;                             // floats of a row of a partial tile
constexpr unsigned kPartial = 64 * kPitch * 4;
constexpr int kHelpers = 12;                           // CTAs that prefetch into L2 while the preceding launch runs
constexpr int kConsumers = 512;

__device__ __forceinline__ void prefetch_share(const void* base, long long elements, int id) {
  const long long words = elements / 8;                // whole 16-byte words
  const long long share = (words + kHelpers - 1) / kHelpers, first = share * id;
  const long long count = first + share <= words ? share : words - first;
  if (count > 0) bulk_prefetch(static_cast<const unsigned char*>(base) + first * 16, static_cast<unsigned>(count * 16));
}

// Four CTAs, 2 x 2: of a block of A each loads 40 rows for itself and its neighbour along N, of B 40 rows for itself and along M.
__device__ __forceinline__ void load_class(const TensorMap& a, const TensorMap& b, int c, unsigned ring, unsigned full, unsigned empty,
                                           int row, int column, int rank) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int block = 2 * c + h, s = block % kStages;
    if (block >= kStages) mbarrier_wait(empty + 8 * s, (block / kStages - 1) % 2);
    mbarrier_arrive_expect(full + 8 * block, kStage);
    const int across = rank % 2, down = rank / 2;
    tma_load_multicast(ring + s * kStage + across * (kBox / 2), a, full + 8 * block, row, h * kRows + across * (kRows / 2),
                       static_cast<unsigned short>(3 << (2 * down)));
    tma_load_multicast(ring + s * kStage + kBox + down * (kBox / 2), b, full + 8 * block, column, h * kRows + down * (kRows / 2),
                       static_cast<unsigned short>(5 << across));
  }
}

// Adds four partial tiles, in fixed order, where this warp's outputs are: half rows of 28, so no bank conflicts.
__device__ __forceinline__ float sum_four(const float* words, const int (&from)[8], int first, int at) {
  return (words[from[first] + at] + words[from[first + 1] + at]) + (words[from[first + 2] + at] + words[from[first + 3] + at]);
}

extern "C" __global__ void __launch_bounds__(544)
gemm(const __grid_constant__ TensorMap a0, const __grid_constant__ TensorMap a1, const __grid_constant__ TensorMap a2, const __grid_constant__ TensorMap a3,
     const __grid_constant__ TensorMap a4, const __grid_constant__ TensorMap a5, const __grid_constant__ TensorMap a6, const __grid_constant__ TensorMap a7,
     const __grid_constant__ TensorMap b0, const __grid_constant__ TensorMap b1, const __grid_constant__ TensorMap b2, const __grid_constant__ TensorMap b3,
     const __grid_constant__ TensorMap b4, const __grid_constant__ TensorMap b5, const __grid_constant__ TensorMap b6, const __grid_constant__ TensorMap b7,
     const unsigned short* a, const unsigned short* b, unsigned short* d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned base = smem_address(memory), ring = align_up<1024>(base);
  const unsigned full = ring + kStages * kStage + 4 * kPartial, empty = full + 8 * kBlocks, early = empty + 8 * kStages;
  unsigned char* const stages = memory + (ring - base);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());   // x + 2 y
  const int row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBlocks; ++i) mbarrier_init(full + 8 * i, 1);  // one per block: a warpgroup sees only some of them
    for (int s = 0; s < kStages; ++s) mbarrier_init(empty + 8 * s, 12);  // 4 warps of this CTA and of both neighbours
    mbarrier_init(early, kConsumers / 32);
    mbarrier_init_fence();
  }
  launch_dependents();
  cluster_meet();

  if (warp == kConsumers / 32) {
    if (!elect_one()) return;
    const int id = (blockIdx.y / 2 * (gridDim.x / 2) + blockIdx.x / 2) * 4 + rank;  // in the order of launch
    if (id < kHelpers) {
      prefetch_share(a, static_cast<long long>(m) * k, id);
      prefetch_share(b, static_cast<long long>(n) * k, id);
    }
    tma_prefetch_map(a0);
    tma_prefetch_map(b0);
    tma_prefetch_map(a1);
    tma_prefetch_map(b1);
    tma_prefetch_map(a2);
    tma_prefetch_map(b2);
    tma_prefetch_map(a3);
    tma_prefetch_map(b3);
    tma_prefetch_map(a4);
    tma_prefetch_map(b4);
    tma_prefetch_map(a5);
    tma_prefetch_map(b5);
    tma_prefetch_map(a6);
    tma_prefetch_map(b6);
    tma_prefetch_map(a7);
    tma_prefetch_map(b7);
    wait_for_dependencies();
    load_class(a0, b0, 0, ring, full, empty, row, column, rank);
    load_class(a1, b1, 1, ring, full, empty, row, column, rank);
    load_class(a2, b2, 2, ring, full, empty, row, column, rank);
    load_class(a3, b3, 3, ring, full, empty, row, column, rank);
    load_class(a4, b4, 4, ring, full, empty, row, column, rank);
    load_class(a5, b5, 5, ring, full, empty, row, column, rank);
    load_class(a6, b6, 6, ring, full, empty, row, column, rank);
    load_class(a7, b7, 7, ring, full, empty, row, column, rank);
    return;
  }

  wait_for_dependencies();
  const int group = warp / 4;
  // Row i of the partial of class c is row i - (c*M)%8 of the tile, and so for columns.
  int from[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const unsigned place = c < 4 ? kStages * kStage + c * kPartial : (2 * c + 1) % kStages * kStage;
    from[c] = static_cast<int>(place / 4) + c * m % 8 * kPitch + c * n % 8;
  }
  const float* const words = reinterpret_cast<const float*>(stages);
  const int i0 = warp / 2, j = warp % 2 * (kTile / 2) + lane;  // outputs: rows i0, i0 + 8, ... and column j, by 28 lanes
  float total[kTile / 8];
  const unsigned long long a_tile = wgmma_descriptor<128>(ring, kBox, 1024);
  const unsigned long long b_tile = wgmma_descriptor<128>(ring + kBox, kBox, 1024);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // A class: 160 rows of K, the last ones zero.
    if (half == 1 && group >= 2) {  // time to spare before the last classes arrive: the first four are added now
      mbarrier_wait(early, 0);
#pragma unroll
      for (int e = 0; e < kTile / 8; ++e) total[e] = lane < kTile / 2 ? sum_four(words, from, 0, (i0 + 8 * e) * kPitch + j) : 0.0f;
    }
    const int block = 2 * (group + 4 * half), first = block % kStages, second = (block + 1) % kStages;
    float sums[Product::kRegisters];
    mbarrier_wait(full + 8 * block, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const unsigned at = first * kStage + step * 2048;
      Product::run(sums, wgmma_advance(a_tile, at), wgmma_advance(b_tile, at), step > 0);
    }
    wgmma_commit();
    mbarrier_wait(full + 8 * (block + 1), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const unsigned at = second * kStage + step * 2048;
      Product::run(sums, wgmma_advance(a_tile, at), wgmma_advance(b_tile, at), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block + kStages < kBlocks && lane < 3) mbarrier_arrive_remote(empty + 8 * first, rank ^ lane);
    wgmma_pin(sums);
    wgmma_wait<0>();
    wgmma_pin(sums);
    if (block + 1 + kStages < kBlocks && lane < 3) mbarrier_arrive_remote(empty + 8 * second, rank ^ lane);
    // The partial of the first class has a place of its own; that of the second takes the stage of its last block, which nobody
    // else reads and nothing refills.
    if (half == 1) named_barrier(1 + group, 128);
    float* const partial = reinterpret_cast<float*>(stages + (half == 0 ? kStages * kStage + group * kPartial : second * kStage));
    float* const mine = partial + (warp % 4 * 16 + lane / 4) * kPitch + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<float2*>(mine + 8 * j) = make_float2(sums[4 * j], sums[4 * j + 1]);
      *reinterpret_cast<float2*>(mine + 8 * kPitch + 8 * j) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
    if (half == 0) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(early);
    }
  }
  if (group < 2) {  // and here while the last classes arrive
    mbarrier_wait(early, 0);
#pragma unroll
    for (int e = 0; e < kTile / 8; ++e) total[e] = lane < kTile / 2 ? sum_four(words, from, 0, (i0 + 8 * e) * kPitch + j) : 0.0f;
  }
  named_barrier(5, kConsumers);

#pragma unroll
  for (int e = 0; e < kTile / 8; ++e) {
    const int i = i0 + 8 * e;
    if (lane < kTile / 2 && row + i < m && column + j < n) {
      const float sum = total[e] + sum_four(words, from, 4, i * kPitch + j);
      d[static_cast<long long>(row + i) * n + column + j] = static_cast<unsigned short>(pack<__half>(sum, 0.0f) & 0xFFFFu);
    }
  }
}
