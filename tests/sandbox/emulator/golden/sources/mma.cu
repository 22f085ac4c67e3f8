// mma.sync on fragments as they come: in holds, for every warp, registers of A, then B, then C, each [register][lane].
#include "golden.cuh"

#define FRAGMENTS(A, B, C)                                                         \
  const int lane = threadIdx.x;                                                    \
  const unsigned* from = (const unsigned*)in + blockIdx.x * (A + B + C) * 32 + lane; \
  unsigned a[A], b[B], c[C];                                                       \
  for (int i = 0; i < A; ++i) a[i] = from[i * 32];                                 \
  for (int i = 0; i < B; ++i) b[i] = from[(A + i) * 32];                           \
  for (int i = 0; i < C; ++i) c[i] = from[(A + B + i) * 32];                       \
  unsigned* to = (unsigned*)out + blockIdx.x * C * 32 + lane;

#define MMA_K16_F32(NAME, TYPES)                                                                                        \
  GOLDEN(NAME) {                                                                                                        \
    FRAGMENTS(4, 2, 4)                                                                                                  \
    float d[4];                                                                                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(__uint_as_float(c[0])),        \
                   "f"(__uint_as_float(c[1])), "f"(__uint_as_float(c[2])), "f"(__uint_as_float(c[3])));                 \
    for (int i = 0; i < 4; ++i) to[i * 32] = __float_as_uint(d[i]);                                                     \
  }

#define MMA_K8_F32(NAME, TYPES)                                                                              \
  GOLDEN(NAME) {                                                                                             \
    FRAGMENTS(2, 1, 4)                                                                                       \
    float d[4];                                                                                              \
    asm volatile("mma.sync.aligned.m16n8k8.row.col." TYPES " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"  \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(__uint_as_float(c[0])), "f"(__uint_as_float(c[1])),  \
                   "f"(__uint_as_float(c[2])), "f"(__uint_as_float(c[3])));                                  \
    for (int i = 0; i < 4; ++i) to[i * 32] = __float_as_uint(d[i]);                                          \
  }

MMA_K16_F32(mma_k16_f16_f32, "f32.f16.f16.f32")
MMA_K16_F32(mma_k16_bf16_f32, "f32.bf16.bf16.f32")
MMA_K8_F32(mma_k8_f16_f32, "f32.f16.f16.f32")
MMA_K8_F32(mma_k8_bf16_f32, "f32.bf16.bf16.f32")

GOLDEN(mma_k16_f16_f16) {
  FRAGMENTS(4, 2, 2)
  unsigned d[2];
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]));
  for (int i = 0; i < 2; ++i) to[i * 32] = d[i];
}

GOLDEN(mma_k8_f16_f16) {
  FRAGMENTS(2, 1, 2)
  unsigned d[2];
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%5,%6};"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]));
  for (int i = 0; i < 2; ++i) to[i * 32] = d[i];
}
