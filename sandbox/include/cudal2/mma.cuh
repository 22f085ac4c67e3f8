// mma.sync m16n8k16: a warp multiplies a 16x16 tile of A by a 16x8 tile of B held in registers (sm_80 and up).
//
// Fragment of D: lane l holds rows l/4 and l/4 + 8, columns 2*(l%4) and the next one.
//   float accumulators: d[0], d[1] the upper row, d[2], d[3] the lower row
//   half accumulators:  d[0] the upper row, d[1] the lower row, two packed halves each
// A: a[0] of lane l holds row l/4, columns 2*(l%4) and the next one; a[1] lies 8 rows below, a[2] 8 columns to the right, a[3]
// both. B: b[0] holds column l/4, rows 2*(l%4) and the next one; b[1] lies 8 rows below. ldmatrix.cuh loads them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudal2 {

// D += A * B. Element is __half or __nv_bfloat16; half accumulators exist for __half only.
template <typename Element>
struct mma_m16n8k16 {
  static_assert(sizeof(Element) == 0, "Element is __half or __nv_bfloat16");
  static __device__ __forceinline__ void run(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
  static __device__ __forceinline__ void run(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]);
};

template <>
struct mma_m16n8k16<__half> {
  static __device__ __forceinline__ void run(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  static __device__ __forceinline__ void run(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct mma_m16n8k16<__nv_bfloat16> {
  static __device__ __forceinline__ void run(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

}  // namespace cudal2
