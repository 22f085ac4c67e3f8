// wgmma: asynchronous warpgroup matrix multiply-accumulate of sm_90a, B in shared memory, A there or in registers.
//
// A warpgroup (128 threads, aligned) computes D(64 x N) += A(64 x 16) * B(16 x N). Its thread t holds, of each group j of 8
// columns, columns 8*j + 2*(t%4) and the next one in row 16*(t/32) + (t%32)/4, d[4*j] and d[4*j + 1], and 8 rows below,
// d[4*j + 2] and d[4*j + 3]; with half accumulators packed pairs d[2*j] and d[2*j + 1].
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudal2 {

// Before the first wgmma after ordinary code touched its registers (accumulators, A).
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending groups are in flight. Of the others shared memory has been read and d is written.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses of accumulators across this point: around the wait that precedes their use.
__device__ __forceinline__ void wgmma_pin(float& d) { asm volatile("" : "+f"(d)::"memory"); }
__device__ __forceinline__ void wgmma_pin(unsigned& d) { asm volatile("" : "+r"(d)::"memory"); }

template <typename Register, int kCount>
__device__ __forceinline__ void wgmma_pin(Register (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) wgmma_pin(d[i]);
}

// Descriptor of an operand that lies in boxes with rows of kSwizzle bytes (128, 64, 32). In bytes, for 128:
//   operand                          rows along  leading        stride  next 16 of K  transpose
//   A row-major, B column-major      K           0 (not used)   1024    32            0
//   A column-major, B row-major      M or N      BLOCK_K * 128  1024    2048          1
// `leading` goes to the next box, 64 of M or N on; `stride` to the next 8 rows. Where rows lie along K, a box holds 64 of K, and
// more of K is in the next box. Other swizzles: stride 8 * kSwizzle; next 16 of K 32 or 16 * kSwizzle.
template <int kSwizzle>
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned smem, unsigned leading, unsigned stride) {
  static_assert(kSwizzle == 128 || kSwizzle == 64 || kSwizzle == 32, "the swizzle is 128, 64 or 32 bytes");
  // Source: PTX ISA, "Matrix Descriptor Format".
  constexpr unsigned long long kMode = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : 3;
  const auto field = [](unsigned bytes) { return static_cast<unsigned long long>((bytes & 0x3FFFF) >> 4); };
  return field(smem) | field(leading) << 16 | field(stride) << 32 | kMode << 62;
}

// The descriptor `bytes` further on: to another stage, or to the next 16 of K.
__device__ __forceinline__ unsigned long long wgmma_advance(unsigned long long descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

// A and B in shared memory. Register is float, or unsigned for two packed halves. With accumulate 0 the old d is ignored.
// kN of float: 16 32 48 64 80 96 112 128 144 160 176 192 224 256; of unsigned: 16 32 64 96 128 160 192 224 256
template <typename Element, typename Register, int kN, int kTransposeB, int kTransposeA = 0>
struct wgmma_shared {
  static_assert(kN == 0, "wgmma_shared has no specialisation for these types and this kN; wgmma.cuh lists those that exist");
  static constexpr int kRegisters = kN / 2;  // kN / 4 of unsigned
  static __device__ __forceinline__ void run(Register (&d)[kRegisters], unsigned long long a, unsigned long long b,
                                             int accumulate);
};

// A in registers: a[0] of thread t holds row 16*(t/32) + (t%32)/4, columns 2*(t%4) and the next one; a[1] 8 rows below, a[2]
// 8 columns to the right, a[3] both, as ldmatrix_x4 loads it. A is not written before the wait for the group.
// kN: 64 96 128 160 192 224 256
template <typename Element, typename Register, int kN, int kTransposeB>
struct wgmma_registers {
  static_assert(kN == 0, "wgmma_registers has no specialisation for these types and this kN; wgmma.cuh lists those that exist");
  static constexpr int kRegisters = kN / 2;  // kN / 4 of unsigned
  static __device__ __forceinline__ void run(Register (&d)[kRegisters], const unsigned (&a)[4], unsigned long long b,
                                             int accumulate);
};

// clang-format off
#define CUDAL2_R8_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define CUDAL2_R8_1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define CUDAL2_R8_2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define CUDAL2_R8_3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define CUDAL2_R8_4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define CUDAL2_R8_5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define CUDAL2_R8_6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define CUDAL2_R8_7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define CUDAL2_R8_8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define CUDAL2_R8_9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define CUDAL2_R8_10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define CUDAL2_R8_11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define CUDAL2_R8_12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define CUDAL2_R8_13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define CUDAL2_R8_14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define CUDAL2_R8_15 "%120,%121,%122,%123,%124,%125,%126,%127"

#define CUDAL2_REGS_4 "%0,%1,%2,%3"
#define CUDAL2_REGS_8 CUDAL2_R8_0
#define CUDAL2_REGS_16 CUDAL2_REGS_8 "," CUDAL2_R8_1
#define CUDAL2_REGS_24 CUDAL2_REGS_16 "," CUDAL2_R8_2
#define CUDAL2_REGS_32 CUDAL2_REGS_24 "," CUDAL2_R8_3
#define CUDAL2_REGS_40 CUDAL2_REGS_32 "," CUDAL2_R8_4
#define CUDAL2_REGS_48 CUDAL2_REGS_40 "," CUDAL2_R8_5
#define CUDAL2_REGS_56 CUDAL2_REGS_48 "," CUDAL2_R8_6
#define CUDAL2_REGS_64 CUDAL2_REGS_56 "," CUDAL2_R8_7
#define CUDAL2_REGS_72 CUDAL2_REGS_64 "," CUDAL2_R8_8
#define CUDAL2_REGS_80 CUDAL2_REGS_72 "," CUDAL2_R8_9
#define CUDAL2_REGS_88 CUDAL2_REGS_80 "," CUDAL2_R8_10
#define CUDAL2_REGS_96 CUDAL2_REGS_88 "," CUDAL2_R8_11
#define CUDAL2_REGS_112 CUDAL2_REGS_96 "," CUDAL2_R8_12 "," CUDAL2_R8_13
#define CUDAL2_REGS_128 CUDAL2_REGS_112 "," CUDAL2_R8_14 "," CUDAL2_R8_15

#define CUDAL2_D4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define CUDAL2_D8(C, i) CUDAL2_D4(C, i), CUDAL2_D4(C, i + 4)
#define CUDAL2_D16(C, i) CUDAL2_D8(C, i), CUDAL2_D8(C, i + 8)
#define CUDAL2_D32(C, i) CUDAL2_D16(C, i), CUDAL2_D16(C, i + 16)
#define CUDAL2_OUT_4(C) CUDAL2_D4(C, 0)
#define CUDAL2_OUT_8(C) CUDAL2_D8(C, 0)
#define CUDAL2_OUT_16(C) CUDAL2_D16(C, 0)
#define CUDAL2_OUT_24(C) CUDAL2_D16(C, 0), CUDAL2_D8(C, 16)
#define CUDAL2_OUT_32(C) CUDAL2_D32(C, 0)
#define CUDAL2_OUT_40(C) CUDAL2_D32(C, 0), CUDAL2_D8(C, 32)
#define CUDAL2_OUT_48(C) CUDAL2_D32(C, 0), CUDAL2_D16(C, 32)
#define CUDAL2_OUT_56(C) CUDAL2_D32(C, 0), CUDAL2_D16(C, 32), CUDAL2_D8(C, 48)
#define CUDAL2_OUT_64(C) CUDAL2_D32(C, 0), CUDAL2_D32(C, 32)
#define CUDAL2_OUT_72(C) CUDAL2_OUT_64(C), CUDAL2_D8(C, 64)
#define CUDAL2_OUT_80(C) CUDAL2_OUT_64(C), CUDAL2_D16(C, 64)
#define CUDAL2_OUT_88(C) CUDAL2_OUT_80(C), CUDAL2_D8(C, 80)
#define CUDAL2_OUT_96(C) CUDAL2_OUT_64(C), CUDAL2_D32(C, 64)
#define CUDAL2_OUT_112(C) CUDAL2_OUT_96(C), CUDAL2_D16(C, 96)
#define CUDAL2_OUT_128(C) CUDAL2_OUT_96(C), CUDAL2_D32(C, 96)
#define CUDAL2_FLOAT(x) "+f"(x)
#define CUDAL2_UNSIGNED(x) "+r"(x)

// One specialisation: N columns, COUNT registers numbered %0.., then the operands A, B, accumulate, transpose B, A at IA.. IU.
#define CUDAL2_WGMMA(ELEMENT, TYPES, REGISTER, CONSTRAINT, N, COUNT, IA, IB, IS, IT, IU)                              \
  template <int kTransposeB, int kTransposeA>                                                                         \
  struct wgmma_shared<ELEMENT, REGISTER, N, kTransposeB, kTransposeA> {                                               \
    static constexpr int kRegisters = COUNT;                                                                          \
    static __device__ __forceinline__ void run(REGISTER (&d)[COUNT], unsigned long long a, unsigned long long b,      \
                                               int accumulate) {                                                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #IS ", 0;\n"                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" CUDAL2_REGS_##COUNT "}, %" #IA ", %" #IB  \
                   ", p, 1, 1, %" #IU ", %" #IT ";\n}"                                                                \
                   : CUDAL2_OUT_##COUNT(CONSTRAINT)                                                                   \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB), "n"(kTransposeA)                              \
                   : "memory");                                                                                       \
    }                                                                                                                 \
  };

#define CUDAL2_WGMMA_F32(N, COUNT, IA, IB, IS, IT, IU)                                                     \
  CUDAL2_WGMMA(__half, "f32.f16.f16", float, CUDAL2_FLOAT, N, COUNT, IA, IB, IS, IT, IU)                   \
  CUDAL2_WGMMA(__nv_bfloat16, "f32.bf16.bf16", float, CUDAL2_FLOAT, N, COUNT, IA, IB, IS, IT, IU)
#define CUDAL2_WGMMA_F16(N, COUNT, IA, IB, IS, IT, IU) \
  CUDAL2_WGMMA(__half, "f16.f16.f16", unsigned, CUDAL2_UNSIGNED, N, COUNT, IA, IB, IS, IT, IU)

CUDAL2_WGMMA_F32(16, 8, 8, 9, 10, 11, 12)
CUDAL2_WGMMA_F32(32, 16, 16, 17, 18, 19, 20)
CUDAL2_WGMMA_F32(48, 24, 24, 25, 26, 27, 28)
CUDAL2_WGMMA_F32(64, 32, 32, 33, 34, 35, 36)
CUDAL2_WGMMA_F32(80, 40, 40, 41, 42, 43, 44)
CUDAL2_WGMMA_F32(96, 48, 48, 49, 50, 51, 52)
CUDAL2_WGMMA_F32(112, 56, 56, 57, 58, 59, 60)
CUDAL2_WGMMA_F32(128, 64, 64, 65, 66, 67, 68)
CUDAL2_WGMMA_F32(144, 72, 72, 73, 74, 75, 76)
CUDAL2_WGMMA_F32(160, 80, 80, 81, 82, 83, 84)
CUDAL2_WGMMA_F32(176, 88, 88, 89, 90, 91, 92)
CUDAL2_WGMMA_F32(192, 96, 96, 97, 98, 99, 100)
CUDAL2_WGMMA_F32(224, 112, 112, 113, 114, 115, 116)
CUDAL2_WGMMA_F32(256, 128, 128, 129, 130, 131, 132)
CUDAL2_WGMMA_F16(16, 4, 4, 5, 6, 7, 8)
CUDAL2_WGMMA_F16(32, 8, 8, 9, 10, 11, 12)
CUDAL2_WGMMA_F16(64, 16, 16, 17, 18, 19, 20)
CUDAL2_WGMMA_F16(96, 24, 24, 25, 26, 27, 28)
CUDAL2_WGMMA_F16(128, 32, 32, 33, 34, 35, 36)
CUDAL2_WGMMA_F16(160, 40, 40, 41, 42, 43, 44)
CUDAL2_WGMMA_F16(192, 48, 48, 49, 50, 51, 52)
CUDAL2_WGMMA_F16(224, 56, 56, 57, 58, 59, 60)
CUDAL2_WGMMA_F16(256, 64, 64, 65, 66, 67, 68)

// The same with A in the four registers at I0.. I3.
#define CUDAL2_WGMMA_REGISTERS(ELEMENT, TYPES, REGISTER, CONSTRAINT, N, COUNT, I0, I1, I2, I3, IB, IS, IT)            \
  template <int kTransposeB>                                                                                          \
  struct wgmma_registers<ELEMENT, REGISTER, N, kTransposeB> {                                                         \
    static constexpr int kRegisters = COUNT;                                                                          \
    static __device__ __forceinline__ void run(REGISTER (&d)[COUNT], const unsigned (&a)[4], unsigned long long b,    \
                                               int accumulate) {                                                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #IS ", 0;\n"                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" CUDAL2_REGS_##COUNT "}, {%" #I0 ",%" #I1  \
                   ",%" #I2 ",%" #I3 "}, %" #IB ", p, 1, 1, %" #IT ";\n}"                                             \
                   : CUDAL2_OUT_##COUNT(CONSTRAINT)                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB)            \
                   : "memory");                                                                                       \
    }                                                                                                                 \
  };

#define CUDAL2_WGMMA_REGISTERS_F32(N, COUNT, ...)                                                   \
  CUDAL2_WGMMA_REGISTERS(__half, "f32.f16.f16", float, CUDAL2_FLOAT, N, COUNT, __VA_ARGS__)         \
  CUDAL2_WGMMA_REGISTERS(__nv_bfloat16, "f32.bf16.bf16", float, CUDAL2_FLOAT, N, COUNT, __VA_ARGS__)
#define CUDAL2_WGMMA_REGISTERS_F16(N, COUNT, ...) \
  CUDAL2_WGMMA_REGISTERS(__half, "f16.f16.f16", unsigned, CUDAL2_UNSIGNED, N, COUNT, __VA_ARGS__)

CUDAL2_WGMMA_REGISTERS_F32(64, 32, 32, 33, 34, 35, 36, 37, 38)
CUDAL2_WGMMA_REGISTERS_F32(96, 48, 48, 49, 50, 51, 52, 53, 54)
CUDAL2_WGMMA_REGISTERS_F32(128, 64, 64, 65, 66, 67, 68, 69, 70)
CUDAL2_WGMMA_REGISTERS_F32(160, 80, 80, 81, 82, 83, 84, 85, 86)
CUDAL2_WGMMA_REGISTERS_F32(192, 96, 96, 97, 98, 99, 100, 101, 102)
CUDAL2_WGMMA_REGISTERS_F32(224, 112, 112, 113, 114, 115, 116, 117, 118)
CUDAL2_WGMMA_REGISTERS_F32(256, 128, 128, 129, 130, 131, 132, 133, 134)
CUDAL2_WGMMA_REGISTERS_F16(64, 16, 16, 17, 18, 19, 20, 21, 22)
CUDAL2_WGMMA_REGISTERS_F16(96, 24, 24, 25, 26, 27, 28, 29, 30)
CUDAL2_WGMMA_REGISTERS_F16(128, 32, 32, 33, 34, 35, 36, 37, 38)
CUDAL2_WGMMA_REGISTERS_F16(160, 40, 40, 41, 42, 43, 44, 45, 46)
CUDAL2_WGMMA_REGISTERS_F16(192, 48, 48, 49, 50, 51, 52, 53, 54)
CUDAL2_WGMMA_REGISTERS_F16(224, 56, 56, 57, 58, 59, 60, 61, 62)
CUDAL2_WGMMA_REGISTERS_F16(256, 64, 64, 65, 66, 67, 68, 69, 70)

#undef CUDAL2_WGMMA_REGISTERS_F16
#undef CUDAL2_WGMMA_REGISTERS_F32
#undef CUDAL2_WGMMA_REGISTERS
#undef CUDAL2_WGMMA_F16
#undef CUDAL2_WGMMA_F32
#undef CUDAL2_WGMMA
// clang-format on

}  // namespace cudal2
