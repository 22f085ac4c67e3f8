/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [9, 13, 1], "block": [288, 1, 1], "dynamic_smem": 222208,
   "cluster": [3, 1, 1], "programmatic": true,
   "args": [
   {"tensor_map": {"of": "A", "dims": [1356, 802], "strides": [2712], "box": [64, 24], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "A", "offset_bytes": 2704, "dims": [1360, 802], "strides": [2712], "box": [64, 24], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "A", "dims": [1356, 802], "strides": [2712], "box": [64, 16], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "A", "offset_bytes": 2704, "dims": [1360, 802], "strides": [2712], "box": [64, 16], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "dims": [500, 678], "strides": [1000], "box": [64, 32], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "offset_bytes": 992, "dims": [504, 678], "strides": [1000], "box": [64, 32], "swizzle": 128, "l2": 128}},
   {"tensor": "D", "access": "write"}]}],
 "accumulate": "f32",
 "requires": ["M==1604", "N==500", "K==1356"]
} */
#include <cuda_fp16.h>
#include <cstdint>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/elect.cuh>

constexpr int kStages = 9;
constexpr int kStageBytes = 24576;   // even rows of A 8192, odd rows of A 8192, even rows of B 4096, odd rows of B 4096
constexpr int kSteps = 22;           // of 64 along K
constexpr int kRowsHalf = 802;
constexpr int kN = 500;

#define OUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

__device__ __forceinline__ void wgmma_n56(float (&d)[28], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                          unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %33, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n56k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27}, "
      "{%28, %29, %30, %31}, %32, p, 1, 1, 1;\n"
      "}\n"
      : OUT4(d, 0), OUT4(d, 4), OUT4(d, 8), OUT4(d, 12), OUT4(d, 16), OUT4(d, 20), OUT4(d, 24)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));
}

__device__ __forceinline__ void wgmma_n64(float (&d)[32], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                          unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n"
      "}\n"
      : OUT4(d, 0), OUT4(d, 4), OUT4(d, 8), OUT4(d, 12), OUT4(d, 16), OUT4(d, 20), OUT4(d, 24), OUT4(d, 28)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));
}

extern "C" __global__ void __launch_bounds__(288, 1)
gemm(const __grid_constant__ cudal2::TensorMap a_even, const __grid_constant__ cudal2::TensorMap a_odd,
     const __grid_constant__ cudal2::TensorMap a_even_last, const __grid_constant__ cudal2::TensorMap a_odd_last,
     const __grid_constant__ cudal2::TensorMap b_even, const __grid_constant__ cudal2::TensorMap b_odd, __half* d) {
  extern __shared__ unsigned char dynamic[];
  __shared__ alignas(8) unsigned long long barriers[2 * kStages];

  const unsigned raw = static_cast<unsigned>(__cvta_generic_to_shared(dynamic));
  const unsigned pad = (1024u - (raw & 1023u)) & 1023u;
  unsigned char* const base = dynamic + pad;
  const unsigned smem = raw + pad;
  const unsigned full = static_cast<unsigned>(__cvta_generic_to_shared(barriers));
  const unsigned empty = full + 8 * kStages;

  const int thread = threadIdx.x;
  const int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
  const unsigned rank = cudal2::cluster_rank();
  const int n0 = 56 * static_cast<int>(blockIdx.x);
  const int row0 = blockIdx.y * 64;          // in rows of one parity

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      cudal2::mbarrier_init(full + 8 * i, 1);
      cudal2::mbarrier_init(empty + 8 * i, 24);
    }
    cudal2::mbarrier_init_fence();
  }
  if (thread == 256) {
    cudal2::tma_prefetch_map(b_even);
    cudal2::tma_prefetch_map(b_odd);
    if (rank == 2) {
      cudal2::tma_prefetch_map(a_even_last);
      cudal2::tma_prefetch_map(a_odd_last);
    } else {
      cudal2::tma_prefetch_map(a_even);
      cudal2::tma_prefetch_map(a_odd);
    }
  }
  cudal2::cluster_meet();
  cudal2::launch_dependents();
  cudal2::wait_for_dependencies();   // by all threads, before A and B are read and D is written

  if (group == 2) {
    if (cudal2::elect_one()) {
#pragma unroll 1
      for (int s = 0; s < kSteps; ++s) {
        const int slot = s % kStages;
        cudal2::mbarrier_wait(empty + 8 * slot, ((s / kStages) & 1) ^ 1);
        const unsigned bar = full + 8 * slot;
        const unsigned stage = smem + slot * kStageBytes;
        cudal2::mbarrier_arrive_expect(bar, kStageBytes);
        const unsigned short all = 7;
        if (rank == 2) {                     // rows 48 to 63 of each parity
          cudal2::tma_load_multicast(stage + 6144, a_even_last, bar, s * 64, row0 + 48, all);
          cudal2::tma_load_multicast(stage + 14336, a_odd_last, bar, s * 64, row0 + 48, all);
        } else {                             // rows 0 to 23 or 24 to 47
          const int part = static_cast<int>(rank);
          cudal2::tma_load_multicast(stage + part * 3072, a_even, bar, s * 64, row0 + part * 24, all);
          cudal2::tma_load_multicast(stage + 8192 + part * 3072, a_odd, bar, s * 64, row0 + part * 24, all);
        }
        cudal2::tma_load(stage + 16384, b_even, bar, n0, s * 32);
        cudal2::tma_load(stage + 20480, b_odd, bar, n0, s * 32);
      }
    }
    return;
  }

  const int t = thread & 127;
  const int warp = t / 32, lane = t & 31;
  const int g = lane / 4, q = lane & 3;
  const int phase = 2 * (g & 3) + (g >> 2);
  const int row = 16 * warp + phase;        // and 8 below

  // Units of 8 bytes, 4 of K: 4*i + q, and for odd rows, which start 4 elements late, one more.
  int offset[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = 4 * i + q + group;
    offset[i] = group * 8192 + row * 128 + ((((unit >> 1) & 7) ^ phase) << 4) + (unit & 1) * 8;
  }
  const bool ahead = group == 1 && q == 3;  // unit 16: the first one of the next stage

  const unsigned long long even_desc = cudal2::wgmma_descriptor<128>(smem + 16384, 4096, 1024);
  const unsigned long long odd_desc = cudal2::wgmma_descriptor<128>(smem + 20480, 4096, 1024);

  float even[28], odd[32];
#pragma unroll
  for (int i = 0; i < 28; ++i) even[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < 32; ++i) odd[i] = 0.0f;
  cudal2::wgmma_pin(even);   // the clearing must not sink below the first fence
  cudal2::wgmma_pin(odd);

  unsigned fe[2][8], fo[2][8];

#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int cur = s & 1;
    const int slot = s % kStages;
    const int next = (s + 1) % kStages;
    cudal2::mbarrier_wait(full + 8 * slot, (s / kStages) & 1);
    if (s + 1 < kSteps && group == 1) cudal2::mbarrier_wait(full + 8 * next, ((s + 1) / kStages) & 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned char* tile = base + slot * kStageBytes;
      if (i == 3 && s + 1 < kSteps && ahead) tile = base + next * kStageBytes;
      uint2 up = *reinterpret_cast<const uint2*>(tile + offset[i]);
      uint2 down = *reinterpret_cast<const uint2*>(tile + offset[i] + 1024);
      if (i == 3 && s + 1 == kSteps && ahead) {      // behind K
        up.x = 0u; up.y = 0u; down.x = 0u; down.y = 0u;
      }
      fe[cur][2 * i] = __byte_perm(up.x, up.y, 0x5410);
      fo[cur][2 * i] = __byte_perm(up.x, up.y, 0x7632);
      fe[cur][2 * i + 1] = __byte_perm(down.x, down.y, 0x5410);
      fo[cur][2 * i + 1] = __byte_perm(down.x, down.y, 0x7632);
    }
    cudal2::wgmma_pin(fe[cur]);
    cudal2::wgmma_pin(fo[cur]);
    cudal2::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
      const unsigned advance = slot * kStageBytes + kk * 2048;
      wgmma_n56(even, fe[cur][4 * kk], fe[cur][4 * kk + 1], fe[cur][4 * kk + 2], fe[cur][4 * kk + 3],
                cudal2::wgmma_advance(even_desc, advance));
      wgmma_n64(odd, fo[cur][4 * kk], fo[cur][4 * kk + 1], fo[cur][4 * kk + 2], fo[cur][4 * kk + 3],
                cudal2::wgmma_advance(odd_desc, advance));
    }
    cudal2::wgmma_commit();
    if (s > 0) {
      cudal2::wgmma_wait<1>();
      cudal2::wgmma_pin(fe[cur ^ 1]);
      cudal2::wgmma_pin(fo[cur ^ 1]);
      if (s - 1 + kStages < kSteps) {                // a load waits for this slot, in all three CTAs
        __syncwarp();
        if (lane < 3) cudal2::mbarrier_arrive_remote(empty + 8 * ((s - 1) % kStages), static_cast<unsigned>(lane));
      }
    }
  }
  cudal2::wgmma_wait<0>();
  cudal2::wgmma_pin(even);
  cudal2::wgmma_pin(odd);

  // Column 8*j + 2*q of the tile is column 8*j + 2*q + 4 of the odd part: two lanes on.
#pragma unroll
  for (int j = 0; j < 7; ++j) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float send = q >= 2 ? odd[4 * j + r] : odd[4 * j + 4 + r];
      even[4 * j + r] += __shfl_xor_sync(0xFFFFFFFFu, send, 2);
    }
  }

  const bool second = q & 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int index = row0 + row + 8 * half;
    __half* const out = d + static_cast<long long>(2 * index + group) * kN;
#pragma unroll
    for (int j = 0; j < 6; j += 2) {       // even lanes take chunk j, odd lanes chunk j + 1
      const unsigned p0 = cudal2::pack<__half>(even[4 * j + 2 * half], even[4 * j + 2 * half + 1]);
      const unsigned p1 = cudal2::pack<__half>(even[4 * j + 4 + 2 * half], even[4 * j + 5 + 2 * half]);
      const unsigned got = __shfl_xor_sync(0xFFFFFFFFu, second ? p0 : p1, 1);
      uint2 v;
      v.x = second ? got : p0;
      v.y = second ? p1 : got;
      const int column = n0 + 8 * j + (second ? 8 : 0) + 4 * (q >> 1);
      if (index < kRowsHalf && column < kN) *reinterpret_cast<uint2*>(out + column) = v;
    }
    const int column = n0 + 48 + 2 * q;
    if (index < kRowsHalf && column < kN)
      *reinterpret_cast<unsigned*>(out + column) = cudal2::pack<__half>(even[24 + 2 * half], even[25 + 2 * half]);
  }
}
