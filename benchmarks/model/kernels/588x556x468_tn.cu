/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [12, 11, 1], "block": [256, 1, 1], "dynamic_smem": 95616, "programmatic": true,
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]}],
 "accumulate": "f32",
 "requires": ["M==588", "N==556", "K==468"]
} */
#include <cuda_fp16.h>
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/programmatic.cuh>

constexpr int kM = 588, kN = 556;
constexpr int kTileM = 54, kTileN = 48, kRow = 936;  // bytes of a row: 117 pieces of 8
constexpr unsigned kChunk = 16 * kRow, kHalf = 32 * kRow;
constexpr unsigned kOffsetB = 50560, kBarriers = kOffsetB + kTileN * kRow;
constexpr int kShareA = 4176, kShareB = 3952;  // bytes that a CTA prefetches
static_assert(kTileM * kRow <= kOffsetB && kBarriers + 24 <= 95616, "shared memory");
static_assert(36 * 512 <= (kTileM - 32) * kRow, "partials lie over a half of A");

__device__ __forceinline__ uint2 piece_at(const unsigned char* from) { return *reinterpret_cast<const uint2*>(from); }

__device__ __forceinline__ void add(float4& to, float4 v) {
  to.x += v.x;
  to.y += v.y;
  to.z += v.z;
  to.w += v.w;
}

__device__ __forceinline__ uint2 rounded(float4 v) {
  return make_uint2(cudal2::pack<__half>(v.x, v.y), cudal2::pack<__half>(v.z, v.w));
}

extern "C" __global__ void __launch_bounds__(256, 2)
gemm(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ d) {
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned barriers = base + kBarriers;  // B, rows 0 to 31 of A, rows 32 to 53 of A
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int half = warp / 4, q = half != 0 ? 3 - warp % 4 : warp % 4;
  const int m0 = blockIdx.y * kTileM, n0 = blockIdx.x * kTileN;
  const int rows = min(kTileM, kM - m0), columns = min(kTileN, kN - n0);  // 54 or 48, 48 or 28
  const char* a_bytes = reinterpret_cast<const char*>(a);
  const char* b_bytes = reinterpret_cast<const char*>(b);

  cudal2::launch_dependents();
  if (tid == 0) {
    for (int i = 0; i < 3; ++i) cudal2::mbarrier_init(barriers + 8 * i, 1);
    cudal2::mbarrier_init_fence();
    cudal2::wait_for_dependencies();
    cudal2::mbarrier_arrive_expect(barriers, static_cast<unsigned>(columns * kRow));
    for (int r = 0; r < columns; r += 16) {
      cudal2::bulk_load(base + kOffsetB + r * kRow, b_bytes + (n0 + r) * kRow, static_cast<unsigned>(min(16, columns - r) * kRow), barriers);
    }
    cudal2::mbarrier_arrive_expect(barriers + 8, kHalf);
    cudal2::bulk_load(base, a_bytes + m0 * kRow, kChunk, barriers + 8);
    cudal2::bulk_load(base + kChunk, a_bytes + (m0 + 16) * kRow, kChunk, barriers + 8);
    cudal2::mbarrier_arrive_expect(barriers + 16, static_cast<unsigned>((rows - 32) * kRow));
    cudal2::bulk_load(base + kHalf, a_bytes + (m0 + 32) * kRow, static_cast<unsigned>((rows - 32) * kRow), barriers + 16);
  }
  if (tid == 32) {  // this CTA's share of both operands into L2, while the launch before still runs
    const int cta = blockIdx.y * 12 + blockIdx.x, from_a = cta * kShareA, from_b = cta * kShareB;
    cudal2::bulk_prefetch(b_bytes + from_b, static_cast<unsigned>(min(kShareB, kN * kRow - from_b)));
    cudal2::bulk_prefetch(a_bytes + from_a, static_cast<unsigned>(min(kShareA, kM * kRow - from_a)));
  }
  cudal2::wait_for_dependencies();
  __syncthreads();

  // Row of fragment row g of this lane, upper half, in this half of the tile; the lower one is the next. Rows that the tile
  // does not have: others of it, not stored.
  const int place = 4 * (g % 4) + 2 * (g / 4), half_rows = half != 0 ? rows - 32 : 32;
  const int piece = (28 * q + t) * 8;
  const unsigned char* const a0 = memory + half * kHalf + place * kRow + piece;
  const unsigned char* const a1 = a0 + (16 + place < half_rows ? 16 : 0) * kRow;
  const unsigned char* const b0 = memory + kOffsetB + 4 * min(g, columns / 4 - 1) * kRow + piece;    // fragments 0 to 3
  const unsigned char* const b1 = memory + kOffsetB + ((columns > 32 ? 32 : 0) + 2 * g) * kRow + piece;  // fragments 4, 5

  float sums[2][6][4] = {};
  cudal2::mbarrier_wait(barriers, 0);
  cudal2::mbarrier_wait(barriers + 8 + 8 * half, 0);
#pragma unroll
  for (int s = 0; s < 7; ++s) {
    unsigned part_a[2][4], part_b[6][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint2 v = piece_at((i == 0 ? a0 : a1) + h * kRow + 32 * s);
        part_a[i][h] = v.x;
        part_a[i][2 + h] = v.y;
      }
    }
#pragma unroll
    for (int f = 0; f < 6; ++f) {
      const uint2 v = piece_at((f < 4 ? b0 + f * kRow : b1 + (f - 4) * kRow) + 32 * s);
      part_b[f][0] = v.x;
      part_b[f][1] = v.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int f = 0; f < 6; ++f) cudal2::mma_m16n8k16<__half>::run(sums[i][f], part_a[i], part_b[f]);
    }
  }
  if (q < 2) {  // pieces 112 to 116
    const bool inside = q == 0 || t == 0;
    const int further = (112 - 24 * q) * 8;
    unsigned part_a[2][4], part_b[6][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint2 v = make_uint2(0u, 0u);
        if (inside) v = piece_at((i == 0 ? a0 : a1) + h * kRow + further);
        part_a[i][h] = v.x;
        part_a[i][2 + h] = v.y;
      }
    }
#pragma unroll
    for (int f = 0; f < 6; ++f) {
      uint2 v = make_uint2(0u, 0u);
      if (inside) v = piece_at((f < 4 ? b0 + f * kRow : b1 + (f - 4) * kRow) + further);
      part_b[f][0] = v.x;
      part_b[f][1] = v.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int f = 0; f < 6; ++f) cudal2::mma_m16n8k16<__half>::run(sums[i][f], part_a[i], part_b[f]);
    }
  }

  // Part o of K owns fragment row (o / 2, o % 2): columns 8 t to 8 t + 7 and 32 + 4 t to 32 + 4 t + 3.
  cudal2::named_barrier(1 + half, 128);  // this half of A has been read
  unsigned char* const slots = memory + half * kHalf + lane * 16;
  float4 own[3];
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    const int i = o / 2, e = o % 2 * 2;
    const float4 v0 = make_float4(sums[i][0][e], sums[i][1][e], sums[i][2][e], sums[i][3][e]);
    const float4 v1 = make_float4(sums[i][0][e + 1], sums[i][1][e + 1], sums[i][2][e + 1], sums[i][3][e + 1]);
    const float4 v2 = make_float4(sums[i][4][e], sums[i][5][e], sums[i][4][e + 1], sums[i][5][e + 1]);
    if (o == q) {
      own[0] = v0;
      own[1] = v1;
      own[2] = v2;
    } else {
      unsigned char* const to = slots + (o * 3 + (q < o ? q : q - 1)) * 1536;
      *reinterpret_cast<float4*>(to) = v0;
      *reinterpret_cast<float4*>(to + 512) = v1;
      *reinterpret_cast<float4*>(to + 1024) = v2;
    }
  }
  cudal2::named_barrier(1 + half, 128);
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    const unsigned char* const from = slots + (q * 3 + j) * 1536;
#pragma unroll
    for (int y = 0; y < 3; ++y) add(own[y], *reinterpret_cast<const float4*>(from + 512 * y));
  }
  const int row = 16 * (q / 2) + place + q % 2;
  if (row < half_rows) {
    __half* const line = d + (m0 + 32 * half + row) * kN + n0;
    if (8 * t < columns) *reinterpret_cast<uint2*>(line + 8 * t) = rounded(own[0]);
    if (8 * t + 4 < columns) *reinterpret_cast<uint2*>(line + 8 * t + 4) = rounded(own[1]);
    if (32 + 4 * t < columns) *reinterpret_cast<uint2*>(line + 32 + 4 * t) = rounded(own[2]);
  }
}
