/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["min(SMS, M//64)", 1, 1], "block": [384, 1, 1], "dynamic_smem": 228864,
   "programmatic": true,
   "args": [
   {"tensor_map": {"of": "A", "box": [64, 64], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [16, 64], "swizzle": 32, "l2": 128}},
   {"tensor": "A"},
   {"tensor": "B"},
   {"tensor": "D", "access": "write"},
   {"scalar": "M", "type": "i32"}]}],
 "accumulate": "f32",
 "requires": ["M%64==0", "N==392", "K==192"]
} */
#include <cuda_fp16.h>
#include <cstdint>
#include <cudal2/bulk.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/registers.cuh>
#include <cudal2/stmatrix.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

constexpr int kN = 392, kK = 192;
constexpr unsigned kColumns = kK * 128;              // 64 columns of B, all of K
constexpr unsigned kRest = 6 * kColumns;             // the last 16 columns, rows of 32 bytes
constexpr unsigned kTileA = kRest + kK * 32;         // 153600
constexpr unsigned kBytesA = 64 * kK * 2;            // 24576
constexpr unsigned kStaging = kTileA + 2 * kBytesA;  // 202752
constexpr unsigned kPitch = kN * 2;                  // 784
constexpr unsigned kBlock = 16 * kPitch;             // 12544: what a warp stores
constexpr unsigned kPartB = 6 * 8192 + 2048;         // 64 rows of B

using Wide = cudal2::wgmma_shared<__half, float, 192, 1>;
using Narrow = cudal2::wgmma_shared<__half, float, 64, 1>;

__device__ __forceinline__ void wgmma_n8(float (&d)[4], unsigned long long a, unsigned long long b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
      "{%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 1;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b), "r"(accumulate));
}

// Columns of 16-byte chunks: `at` is row lane/4 of the warp at the first column. Each lane of a quad gets one whole chunk.
template <int kFloats>
__device__ __forceinline__ void store_part(const float (&s)[kFloats], __half* at, int q) {
  const bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int t = 0; t < kFloats / 16; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned p0 = cudal2::pack<__half>(s[16 * t + 2 * h], s[16 * t + 2 * h + 1]);
      const unsigned p1 = cudal2::pack<__half>(s[16 * t + 4 + 2 * h], s[16 * t + 5 + 2 * h]);
      const unsigned p2 = cudal2::pack<__half>(s[16 * t + 8 + 2 * h], s[16 * t + 9 + 2 * h]);
      const unsigned p3 = cudal2::pack<__half>(s[16 * t + 12 + 2 * h], s[16 * t + 13 + 2 * h]);
      const unsigned keep0 = odd ? p1 : p0, keep1 = odd ? p3 : p2;
      const unsigned r0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? p0 : p1, 1);
      const unsigned r1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? p2 : p3, 1);
      const unsigned a0 = odd ? r0 : keep0, a1 = odd ? keep0 : r0;
      const unsigned a2 = odd ? r1 : keep1, a3 = odd ? keep1 : r1;
      const unsigned keep2 = high ? a2 : a0, keep3 = high ? a3 : a1;
      const unsigned r2 = __shfl_xor_sync(0xFFFFFFFFu, high ? a0 : a2, 2);
      const unsigned r3 = __shfl_xor_sync(0xFFFFFFFFu, high ? a1 : a3, 2);
      uint4 v;
      v.x = high ? r2 : keep2;
      v.y = high ? r3 : keep3;
      v.z = high ? keep2 : r2;
      v.w = high ? keep3 : r3;
      *reinterpret_cast<uint4*>(at + h * 8 * kN + (4 * t + q) * 8) = v;
    }
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ cudal2::TensorMap a_map, const __grid_constant__ cudal2::TensorMap b_map,
     const __grid_constant__ cudal2::TensorMap rest_map, const __half* a, const __half* b, __half* d, int m) {
  extern __shared__ unsigned char dynamic[];
  __shared__ alignas(8) unsigned long long barriers[15];

  const unsigned raw = static_cast<unsigned>(__cvta_generic_to_shared(dynamic));
  const unsigned smem = raw + ((1024u - (raw & 1023u)) & 1023u);
  const unsigned a_full = static_cast<unsigned>(__cvta_generic_to_shared(barriers));   // two
  const unsigned a_empty = a_full + 16;                                                // two
  const unsigned b_full = a_full + 32;                                                 // three
  const unsigned stored = a_full + 56;                                                 // of each consumer warp

  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int group = warp / 4;
  const int lane = threadIdx.x & 31;
  const int tiles = m / 64;
  const int step = gridDim.x;
  const int block = blockIdx.x;

  // Whole rounds; the tiles left over are cut into 6 parts by columns, if there are CTAs for all parts.
  const int rounds = tiles / step;
  const int left = tiles - rounds * step;
  const bool cut = left * 6 <= step;
  const int count = rounds + (!cut && block < left ? 1 : 0);
  const bool extra = cut && block < left * 6;
  const int extra_tile = rounds * step + block / 6;
  const int extra_block = block % 6;

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      cudal2::mbarrier_init(a_full + 8 * i, 1);
      cudal2::mbarrier_init(a_empty + 8 * i, 4);
    }
    for (int i = 0; i < 3; ++i) cudal2::mbarrier_init(b_full + 8 * i, 1);
    for (int i = 0; i < 8; ++i) cudal2::mbarrier_init(stored + 8 * i, 1);
    cudal2::mbarrier_init_fence();
  }
  if (warp == 8 && cudal2::elect_one()) {
    cudal2::tma_prefetch_map(a_map);
    cudal2::tma_prefetch_map(b_map);
    cudal2::tma_prefetch_map(rest_map);
    if (block < 98) cudal2::bulk_prefetch(reinterpret_cast<const char*>(b) + block * 1536, 1536);
    for (int i = 0; i < 3; ++i) {
      const int tile = block + i * step;
      if (tile < tiles) cudal2::bulk_prefetch(a + static_cast<long long>(tile) * 64 * kK, kBytesA);
    }
  }
  __syncthreads();
  cudal2::launch_dependents();
  cudal2::wait_for_dependencies();   // by all threads, before A and B are read and D is written

  if (group == 2) {
    cudal2::registers_decrease<24>();
    if (warp == 8 && cudal2::elect_one()) {
      const int loads = count + (extra ? 1 : 0);
      const int first_loads = loads > 1 ? 2 : 1;   // before the last two thirds of B
#pragma unroll 1
      for (int it = 0; it < loads; ++it) {
        const int slot = it & 1;
        const int tile = it < count ? block + it * step : extra_tile;
        const unsigned bar = a_full + 8 * slot;
        const unsigned to = smem + kTileA + slot * kBytesA;
        cudal2::mbarrier_wait(a_empty + 8 * slot, ((it >> 1) & 1) ^ 1);
        cudal2::mbarrier_arrive_expect(bar, kBytesA);
#pragma unroll 1
        for (int i = 0; i < 3; ++i) cudal2::tma_load(to + i * 8192, a_map, bar, i * 64, tile * 64);
        const int from = it == 0 ? 0 : 1;
        const int end = it == 0 ? (first_loads == 1 ? 3 : 1) : (it == 1 ? 3 : 0);
#pragma unroll 1
        for (int i = from; i < end; ++i) {
          const unsigned part = b_full + 8 * i;
          cudal2::mbarrier_arrive_expect(part, kPartB);
#pragma unroll 1
          for (int j = 0; j < 6; ++j) cudal2::tma_load(smem + j * kColumns + i * 8192, b_map, part, j * 64, i * 64);
          cudal2::tma_load(smem + kRest + i * 2048, rest_map, part, 384, i * 64);
        }
        if (it >= 1 && it + 2 < count)
          cudal2::bulk_prefetch(a + static_cast<long long>(tile + 2 * step) * 64 * kK, kBytesA);
      }
    }
    return;
  }

  cudal2::registers_increase<240>();

  const int w = warp & 3;
  const int q = lane & 3;
  const unsigned long long a_tile = cudal2::wgmma_descriptor<128>(smem + kTileA + group * kBytesA, 16, 1024);
  const unsigned long long b_left = cudal2::wgmma_descriptor<128>(smem, kColumns, 1024);
  const unsigned long long b_right = cudal2::wgmma_descriptor<128>(smem + 3 * kColumns, kColumns, 1024);
  const unsigned long long b_rest = cudal2::wgmma_descriptor<32>(smem + kRest, kK * 32, 256);
  __half* const d_lane = d + static_cast<long long>(16 * w + (lane >> 2)) * kN;

  const unsigned staging = smem + kStaging + (w & 1) * kBlock;
  const unsigned put = staging + (lane & 15) * kPitch + (lane >> 4) * 16;
  unsigned char* const put_rest = dynamic + (smem - raw) + kStaging + (w & 1) * kBlock + (lane >> 2) * kPitch + 768 + q * 4;

  float left_sums[96], right_sums[96], rest[4];
#pragma unroll
  for (int i = 0; i < 96; ++i) {
    left_sums[i] = 0.0f;
    right_sums[i] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = 0.0f;

#pragma unroll 1
  for (int it = group; it < count; it += 2) {
    cudal2::mbarrier_wait(a_full + 8 * group, (it >> 1) & 1);
    cudal2::wgmma_pin(left_sums);
    cudal2::wgmma_pin(right_sums);
    cudal2::wgmma_pin(rest);
#pragma unroll
    for (int chunk = 0; chunk < 3; ++chunk) {
      cudal2::mbarrier_wait(b_full + 8 * chunk, 0);
      cudal2::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * chunk + k;
        const unsigned long long a_now = cudal2::wgmma_advance(a_tile, chunk * 8192 + k * 32);
        Wide::run(left_sums, a_now, cudal2::wgmma_advance(b_left, at * 2048), at > 0);
        Wide::run(right_sums, a_now, cudal2::wgmma_advance(b_right, at * 2048), at > 0);
        wgmma_n8(rest, a_now, cudal2::wgmma_advance(b_rest, at * 512), at > 0);
      }
      cudal2::wgmma_commit();
    }
    cudal2::wgmma_wait<0>();
    cudal2::wgmma_pin(left_sums);
    cudal2::wgmma_pin(right_sums);
    cudal2::wgmma_pin(rest);
    if (lane == 0) cudal2::mbarrier_arrive(a_empty + 8 * group);
    __syncwarp();

    // Two blocks of staging go round the warps 0 1 2 3 of one tile and of the next: wait for the warp two before.
    if (w >= 2) cudal2::mbarrier_wait(stored + 8 * (group * 4 + w - 2), (it >> 1) & 1);
    else if (it > 0) cudal2::mbarrier_wait(stored + 8 * ((group ^ 1) * 4 + w + 2), ((it - 1) >> 1) & 1);
#pragma unroll
    for (int j = 0; j < 12; ++j) {
      const float* s = left_sums + 8 * j;
      cudal2::stmatrix_x4(put + j * 32, cudal2::pack<__half>(s[0], s[1]), cudal2::pack<__half>(s[2], s[3]),
                          cudal2::pack<__half>(s[4], s[5]), cudal2::pack<__half>(s[6], s[7]));
    }
#pragma unroll
    for (int j = 0; j < 12; ++j) {
      const float* s = right_sums + 8 * j;
      cudal2::stmatrix_x4(put + 384 + j * 32, cudal2::pack<__half>(s[0], s[1]), cudal2::pack<__half>(s[2], s[3]),
                          cudal2::pack<__half>(s[4], s[5]), cudal2::pack<__half>(s[6], s[7]));
    }
    *reinterpret_cast<unsigned*>(put_rest) = cudal2::pack<__half>(rest[0], rest[1]);
    *reinterpret_cast<unsigned*>(put_rest + 8 * kPitch) = cudal2::pack<__half>(rest[2], rest[3]);
    cudal2::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      cudal2::bulk_store(d + (static_cast<long long>(block + it * step) * 64 + 16 * w) * kN, staging, kBlock);
      cudal2::tma_store_commit();
      cudal2::tma_store_wait_read<0>();
      cudal2::mbarrier_arrive(stored + 8 * (group * 4 + w));
    }
    __syncwarp();
  }

  if (extra && (count & 1) == group) {   // 64 columns of a tile, and the last 8 beside the sixth block
    const unsigned long long b_block = cudal2::wgmma_advance(b_left, extra_block * kColumns);
    float sums[32], tail[4];
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) tail[i] = 0.0f;
    cudal2::mbarrier_wait(a_full + 8 * group, (count >> 1) & 1);
#pragma unroll
    for (int chunk = 0; chunk < 3; ++chunk) cudal2::mbarrier_wait(b_full + 8 * chunk, 0);
    cudal2::wgmma_pin(sums);
    cudal2::wgmma_pin(tail);
    cudal2::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      const unsigned long long a_now = cudal2::wgmma_advance(a_tile, (k / 4) * 8192 + (k % 4) * 32);
      Narrow::run(sums, a_now, cudal2::wgmma_advance(b_block, k * 2048), k > 0);
      wgmma_n8(tail, a_now, cudal2::wgmma_advance(b_rest, k * 512), k > 0);
    }
    cudal2::wgmma_commit();
    cudal2::wgmma_wait<0>();
    cudal2::wgmma_pin(sums);
    cudal2::wgmma_pin(tail);
    __half* const at = d_lane + static_cast<long long>(extra_tile) * (64 * kN);
    store_part(sums, at + extra_block * 64, q);
    if (extra_block == 5) {
      *reinterpret_cast<unsigned*>(at + 384 + 2 * q) = cudal2::pack<__half>(tail[0], tail[1]);
      *reinterpret_cast<unsigned*>(at + 8 * kN + 384 + 2 * q) = cudal2::pack<__half>(tail[2], tail[3]);
    }
  }
}
