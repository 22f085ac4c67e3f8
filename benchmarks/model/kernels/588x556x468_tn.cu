/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [12, 11, 1], "block": [384, 1, 1], "dynamic_smem": 95616, "cluster": [2, 1, 1],
   "programmatic": true,
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]}],
 "accumulate": "f32",
 "requires": ["M==588", "N==556", "K==468"]
} */
#include <cuda_fp16.h>
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/programmatic.cuh>

constexpr int kM = 588, kN = 556;
constexpr int kTileM = 54, kTileN = 48, kRow = 936;  // bytes of a row: 117 pieces of 8
constexpr int kFirst1 = 24, kFirst2 = 40;            // rows of A where the portions 1 and 2 begin
constexpr unsigned kOffsetB = 50560, kBarriers = kOffsetB + kTileN * kRow;
constexpr int kShareA = 4176, kShareB = 3952;  // bytes that a CTA prefetches
constexpr int kSlot = 768;                     // of one sender to one owner: a float4 and a float2 a lane
static_assert(kTileM * kRow <= kOffsetB && kBarriers + 32 <= 95616, "shared memory");
static_assert(12 * kSlot <= (kTileM - kFirst2) * kRow && 18 * kSlot <= kFirst1 * kRow, "partials lie over a portion of A");

__device__ __forceinline__ uint2 piece_at(const unsigned char* from) { return *reinterpret_cast<const uint2*>(from); }

// A bulk copy that arrives at the same place, and on the same barrier, of both CTAs of the cluster.
__device__ __forceinline__ void bulk_load_for_both(unsigned smem, const void* source, unsigned bytes, unsigned barrier) {
  const unsigned short both = 3;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               :
               : "r"(smem), "l"(source), "r"(bytes), "r"(barrier), "h"(both)
               : "memory");
}

// One k16 step: three fragments of 16 columns of D by kF fragments of 8 rows.
template <int kF, bool kGuarded>
__device__ __forceinline__ void step(float (&sums)[3][kF][4], const unsigned char* n01, const unsigned char* n2,
                                     const unsigned char* m01, const unsigned char* m2, bool inside) {
  unsigned part_n[3][4], part_m[kF][2];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint2 v = make_uint2(0u, 0u);
      if (!kGuarded || inside) v = piece_at((i < 2 ? n01 + 2 * i * kRow : n2) + h * kRow);
      part_n[i][h] = v.x;
      part_n[i][2 + h] = v.y;
    }
  }
#pragma unroll
  for (int f = 0; f < kF; ++f) {
    uint2 v = make_uint2(0u, 0u);
    if (!kGuarded || inside) v = piece_at(f < 2 ? m01 + f * kRow : m2);
    part_m[f][0] = v.x;
    part_m[f][1] = v.y;
  }
#pragma unroll
  for (int f = 0; f < kF; ++f) {
#pragma unroll
    for (int i = 0; i < 3; ++i) cudal2::mma_m16n8k16<__half>::run(sums[i][f], part_n[i], part_m[f]);
  }
}

// A lane's six columns of one row of D.
struct Six {
  float4 run;   // columns 16 (g / 4) + 4 (g % 4) and the next three
  float2 pair;  // columns 32 + 4 (g % 4) + 2 (g / 4) and the next one

  __device__ __forceinline__ void put(unsigned char* slot, int lane) const {
    *reinterpret_cast<float4*>(slot + 16 * lane) = run;
    *reinterpret_cast<float2*>(slot + 512 + 8 * lane) = pair;
  }
  __device__ __forceinline__ void add(const unsigned char* slot, int lane) {
    const float4 r = *reinterpret_cast<const float4*>(slot + 16 * lane);
    const float2 p = *reinterpret_cast<const float2*>(slot + 512 + 8 * lane);
    run.x += r.x;
    run.y += r.y;
    run.z += r.z;
    run.w += r.w;
    pair.x += p.x;
    pair.y += p.y;
  }
  __device__ __forceinline__ void store(__half* line, int at, int further, int columns) const {
    if (at < columns) {
      *reinterpret_cast<uint2*>(line + at) = make_uint2(cudal2::pack<__half>(run.x, run.y), cudal2::pack<__half>(run.z, run.w));
    }
    if (further < columns) *reinterpret_cast<unsigned*>(line + further) = cudal2::pack<__half>(pair.x, pair.y);
  }
};

template <int kF>
__device__ __forceinline__ Six six_of(const float (&sums)[3][kF][4], int f, int c) {
  Six v;
  v.run = make_float4(sums[0][f][c], sums[0][f][2 + c], sums[1][f][c], sums[1][f][2 + c]);
  v.pair = make_float2(sums[2][f][c], sums[2][f][2 + c]);
  return v;
}

// Four warps: rows [0, rows) of a portion of A at `own`, kF fragments of 8, by all columns of the tile; d is at the portion's
// first row and the tile's first column.
template <int kF>
__device__ __forceinline__ void portion(unsigned char* own, const unsigned char* tile_b, int rows, int columns, int q, int id, __half* d) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int at = 16 * (g / 4) + 4 * (g % 4), place = 4 * (g % 4) + 2 * (g / 4), piece = (28 * q + t) * 8;
  const unsigned char* const n01 = tile_b + min(at, columns - 4) * kRow + piece;
  const unsigned char* const n2 = tile_b + ((columns > 32 ? 32 : 0) + place) * kRow + piece;
  const unsigned char* const m01 = own + (place < rows ? place : 0) * kRow + piece;
  const unsigned char* const m2 = own + (16 + g) * kRow + piece;  // kF == 3 only

  float sums[3][kF][4] = {};
#pragma unroll
  for (int s = 0; s < 7; ++s) step<kF, false>(sums, n01 + 32 * s, n2 + 32 * s, m01 + 32 * s, m2 + 32 * s, true);
  if (q < 2) {  // pieces 112 to 116
    const int further = (112 - 24 * q) * 8;
    step<kF, true>(sums, n01 + further, n2 + further, m01 + further, m2 + further, q == 0 || t == 0);
  }

  cudal2::named_barrier(id, 128);  // this portion of A has been read
  Six mine, wide;
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    const Six v = six_of<kF>(sums, o / 2, o % 2);
    if (o == q) {
      mine = v;
    } else {
      v.put(own + (o * 3 + (q < o ? q : q - 1)) * kSlot, lane);
    }
  }
  if constexpr (kF == 3) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const Six v = six_of<kF>(sums, 2, c);
      if (2 + c == q) {
        wide = v;
      } else {
        v.put(own + (12 + c * 3 + (q < 2 + c ? q : q - 1)) * kSlot, lane);
      }
    }
  }
  cudal2::named_barrier(id, 128);
#pragma unroll
  for (int j = 0; j < 3; ++j) mine.add(own + (q * 3 + j) * kSlot, lane);
  const int row = 4 * ((2 * t + q % 2) % 4) + 2 * (t / 2) + q / 2;
  if (row < rows) mine.store(d + row * kN, at, 32 + place, columns);
  if constexpr (kF == 3) {
    if (q >= 2) {
#pragma unroll
      for (int j = 0; j < 3; ++j) wide.add(own + (12 + (q - 2) * 3 + j) * kSlot, lane);
      wide.store(d + (16 + 2 * t + q - 2) * kN, at, 32 + place, columns);
    }
  }
}

extern "C" __global__ void __launch_bounds__(384, 2)
gemm(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ d) {
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned barriers = base + kBarriers;  // B, then the portions of A
  const int tid = threadIdx.x, warp = tid / 32;
  const int group = warp / 4, q = group == 1 ? 3 - warp % 4 : warp % 4;
  const int m0 = blockIdx.y * kTileM, n0 = blockIdx.x * kTileN;
  const int rows = min(kTileM, kM - m0), columns = min(kTileN, kN - n0);  // 54 or 48, 48 or 28
  const char* a_bytes = reinterpret_cast<const char*>(a);
  const char* b_bytes = reinterpret_cast<const char*>(b);

  cudal2::launch_dependents();
  const unsigned last_a = static_cast<unsigned>((rows - kFirst2) * kRow);
  if (tid == 0) {
    for (int i = 0; i < 4; ++i) cudal2::mbarrier_init(barriers + 8 * i, 1);
    cudal2::mbarrier_init_fence();
    cudal2::mbarrier_arrive_expect(barriers, static_cast<unsigned>(columns * kRow));
    cudal2::mbarrier_arrive_expect(barriers + 8, kFirst1 * kRow);
    cudal2::mbarrier_arrive_expect(barriers + 16, (kFirst2 - kFirst1) * kRow);
    cudal2::mbarrier_arrive_expect(barriers + 24, last_a);
  }
  if (tid == 32) {  // this CTA's share of both operands into L2, while the launch before still runs
    const int cta = blockIdx.y * 12 + blockIdx.x, from_a = cta * kShareA, from_b = cta * kShareB;
    cudal2::bulk_prefetch(b_bytes + from_b, static_cast<unsigned>(min(kShareB, kN * kRow - from_b)));
    cudal2::bulk_prefetch(a_bytes + from_a, static_cast<unsigned>(min(kShareA, kM * kRow - from_a)));
  }
  const int rank = static_cast<int>(cudal2::cluster_rank());
  cudal2::cluster_meet();
  cudal2::wait_for_dependencies();
  if (tid == 0) {
    for (int r = 0; r < columns; r += 16) {
      cudal2::bulk_load(base + kOffsetB + r * kRow, b_bytes + (n0 + r) * kRow, static_cast<unsigned>(min(16, columns - r) * kRow), barriers);
    }
    // The first CTA loads the upper rows of each portion for both, the second one the others.
    const auto share = [&](int first, int rows_here, unsigned barrier) {
      const int upper = (rows_here / 2 + 1) / 2 * 2;
      const int begin = first + (rank != 0 ? upper : 0), count = rank != 0 ? rows_here - upper : upper;
      bulk_load_for_both(base + begin * kRow, a_bytes + (m0 + begin) * kRow, static_cast<unsigned>(count * kRow), barrier);
    };
    share(0, kFirst1, barriers + 8);
    share(kFirst1, kFirst2 - kFirst1, barriers + 16);
    share(kFirst2, rows - kFirst2, barriers + 24);
  }
  __syncwarp();

  const unsigned char* const tile_b = memory + kOffsetB;
  __half* const corner = d + m0 * kN + n0;
  cudal2::mbarrier_wait(barriers, 0);
  cudal2::mbarrier_wait(barriers + 8 + 8 * group, 0);
  if (group == 0) {
    portion<3>(memory, tile_b, kFirst1, columns, q, 1, corner);
  } else {
    const int first = group == 1 ? kFirst1 : kFirst2;
    const int rows_here = group == 1 ? kFirst2 - kFirst1 : rows - kFirst2;
    portion<2>(memory + first * kRow, tile_b, rows_here, columns, q, 1 + group, corner + first * kN);
  }
}
