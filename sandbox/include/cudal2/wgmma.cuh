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
// kN: every multiple of 8 from 8 to 256
template <typename Element, typename Register, int kN, int kTransposeB, int kTransposeA = 0>
struct wgmma_shared {
  static_assert(kN == 0, "wgmma_shared has no specialisation for these types and this kN, a multiple of 8 to 256");
  static constexpr int kRegisters = kN / 2;  // kN / 4 of unsigned
  static __device__ __forceinline__ void run(Register (&d)[kRegisters], unsigned long long a, unsigned long long b,
                                             int accumulate);
};

// A in registers: a[0] of thread t holds row 16*(t/32) + (t%32)/4, columns 2*(t%4) and the next one; a[1] 8 rows below, a[2]
// 8 columns to the right, a[3] both, as ldmatrix_x4 loads it. A is not written before the wait for the group. kN as above.
template <typename Element, typename Register, int kN, int kTransposeB>
struct wgmma_registers {
  static_assert(kN == 0, "wgmma_registers has no specialisation for these types and this kN, a multiple of 8 to 256");
  static constexpr int kRegisters = kN / 2;  // kN / 4 of unsigned
  static __device__ __forceinline__ void run(Register (&d)[kRegisters], const unsigned (&a)[4], unsigned long long b,
                                             int accumulate);
};

// clang-format off
// The first registers of d, as text and as operands of the kind C.
#define CUDAL2_REGS_2 "%0,%1"
#define CUDAL2_REGS_4 "%0,%1,%2,%3"
#define CUDAL2_REGS_6 CUDAL2_REGS_4 ",%4,%5"
#define CUDAL2_REGS_8 CUDAL2_REGS_4 ",%4,%5,%6,%7"
#define CUDAL2_REGS_10 CUDAL2_REGS_8 ",%8,%9"
#define CUDAL2_REGS_12 CUDAL2_REGS_8 ",%8,%9,%10,%11"
#define CUDAL2_REGS_14 CUDAL2_REGS_12 ",%12,%13"
#define CUDAL2_REGS_16 CUDAL2_REGS_12 ",%12,%13,%14,%15"
#define CUDAL2_REGS_18 CUDAL2_REGS_16 ",%16,%17"
#define CUDAL2_REGS_20 CUDAL2_REGS_16 ",%16,%17,%18,%19"
#define CUDAL2_REGS_22 CUDAL2_REGS_20 ",%20,%21"
#define CUDAL2_REGS_24 CUDAL2_REGS_20 ",%20,%21,%22,%23"
#define CUDAL2_REGS_26 CUDAL2_REGS_24 ",%24,%25"
#define CUDAL2_REGS_28 CUDAL2_REGS_24 ",%24,%25,%26,%27"
#define CUDAL2_REGS_30 CUDAL2_REGS_28 ",%28,%29"
#define CUDAL2_REGS_32 CUDAL2_REGS_28 ",%28,%29,%30,%31"
#define CUDAL2_REGS_34 CUDAL2_REGS_32 ",%32,%33"
#define CUDAL2_REGS_36 CUDAL2_REGS_32 ",%32,%33,%34,%35"
#define CUDAL2_REGS_38 CUDAL2_REGS_36 ",%36,%37"
#define CUDAL2_REGS_40 CUDAL2_REGS_36 ",%36,%37,%38,%39"
#define CUDAL2_REGS_42 CUDAL2_REGS_40 ",%40,%41"
#define CUDAL2_REGS_44 CUDAL2_REGS_40 ",%40,%41,%42,%43"
#define CUDAL2_REGS_46 CUDAL2_REGS_44 ",%44,%45"
#define CUDAL2_REGS_48 CUDAL2_REGS_44 ",%44,%45,%46,%47"
#define CUDAL2_REGS_50 CUDAL2_REGS_48 ",%48,%49"
#define CUDAL2_REGS_52 CUDAL2_REGS_48 ",%48,%49,%50,%51"
#define CUDAL2_REGS_54 CUDAL2_REGS_52 ",%52,%53"
#define CUDAL2_REGS_56 CUDAL2_REGS_52 ",%52,%53,%54,%55"
#define CUDAL2_REGS_58 CUDAL2_REGS_56 ",%56,%57"
#define CUDAL2_REGS_60 CUDAL2_REGS_56 ",%56,%57,%58,%59"
#define CUDAL2_REGS_62 CUDAL2_REGS_60 ",%60,%61"
#define CUDAL2_REGS_64 CUDAL2_REGS_60 ",%60,%61,%62,%63"
#define CUDAL2_REGS_68 CUDAL2_REGS_64 ",%64,%65,%66,%67"
#define CUDAL2_REGS_72 CUDAL2_REGS_68 ",%68,%69,%70,%71"
#define CUDAL2_REGS_76 CUDAL2_REGS_72 ",%72,%73,%74,%75"
#define CUDAL2_REGS_80 CUDAL2_REGS_76 ",%76,%77,%78,%79"
#define CUDAL2_REGS_84 CUDAL2_REGS_80 ",%80,%81,%82,%83"
#define CUDAL2_REGS_88 CUDAL2_REGS_84 ",%84,%85,%86,%87"
#define CUDAL2_REGS_92 CUDAL2_REGS_88 ",%88,%89,%90,%91"
#define CUDAL2_REGS_96 CUDAL2_REGS_92 ",%92,%93,%94,%95"
#define CUDAL2_REGS_100 CUDAL2_REGS_96 ",%96,%97,%98,%99"
#define CUDAL2_REGS_104 CUDAL2_REGS_100 ",%100,%101,%102,%103"
#define CUDAL2_REGS_108 CUDAL2_REGS_104 ",%104,%105,%106,%107"
#define CUDAL2_REGS_112 CUDAL2_REGS_108 ",%108,%109,%110,%111"
#define CUDAL2_REGS_116 CUDAL2_REGS_112 ",%112,%113,%114,%115"
#define CUDAL2_REGS_120 CUDAL2_REGS_116 ",%116,%117,%118,%119"
#define CUDAL2_REGS_124 CUDAL2_REGS_120 ",%120,%121,%122,%123"
#define CUDAL2_REGS_128 CUDAL2_REGS_124 ",%124,%125,%126,%127"

#define CUDAL2_D2(C, i) C(d[i]), C(d[i + 1])
#define CUDAL2_D4(C, i) CUDAL2_D2(C, i), CUDAL2_D2(C, i + 2)
#define CUDAL2_OUT_2(C) CUDAL2_D2(C, 0)
#define CUDAL2_OUT_4(C) CUDAL2_D4(C, 0)
#define CUDAL2_OUT_6(C) CUDAL2_OUT_4(C), CUDAL2_D2(C, 4)
#define CUDAL2_OUT_8(C) CUDAL2_OUT_4(C), CUDAL2_D4(C, 4)
#define CUDAL2_OUT_10(C) CUDAL2_OUT_8(C), CUDAL2_D2(C, 8)
#define CUDAL2_OUT_12(C) CUDAL2_OUT_8(C), CUDAL2_D4(C, 8)
#define CUDAL2_OUT_14(C) CUDAL2_OUT_12(C), CUDAL2_D2(C, 12)
#define CUDAL2_OUT_16(C) CUDAL2_OUT_12(C), CUDAL2_D4(C, 12)
#define CUDAL2_OUT_18(C) CUDAL2_OUT_16(C), CUDAL2_D2(C, 16)
#define CUDAL2_OUT_20(C) CUDAL2_OUT_16(C), CUDAL2_D4(C, 16)
#define CUDAL2_OUT_22(C) CUDAL2_OUT_20(C), CUDAL2_D2(C, 20)
#define CUDAL2_OUT_24(C) CUDAL2_OUT_20(C), CUDAL2_D4(C, 20)
#define CUDAL2_OUT_26(C) CUDAL2_OUT_24(C), CUDAL2_D2(C, 24)
#define CUDAL2_OUT_28(C) CUDAL2_OUT_24(C), CUDAL2_D4(C, 24)
#define CUDAL2_OUT_30(C) CUDAL2_OUT_28(C), CUDAL2_D2(C, 28)
#define CUDAL2_OUT_32(C) CUDAL2_OUT_28(C), CUDAL2_D4(C, 28)
#define CUDAL2_OUT_34(C) CUDAL2_OUT_32(C), CUDAL2_D2(C, 32)
#define CUDAL2_OUT_36(C) CUDAL2_OUT_32(C), CUDAL2_D4(C, 32)
#define CUDAL2_OUT_38(C) CUDAL2_OUT_36(C), CUDAL2_D2(C, 36)
#define CUDAL2_OUT_40(C) CUDAL2_OUT_36(C), CUDAL2_D4(C, 36)
#define CUDAL2_OUT_42(C) CUDAL2_OUT_40(C), CUDAL2_D2(C, 40)
#define CUDAL2_OUT_44(C) CUDAL2_OUT_40(C), CUDAL2_D4(C, 40)
#define CUDAL2_OUT_46(C) CUDAL2_OUT_44(C), CUDAL2_D2(C, 44)
#define CUDAL2_OUT_48(C) CUDAL2_OUT_44(C), CUDAL2_D4(C, 44)
#define CUDAL2_OUT_50(C) CUDAL2_OUT_48(C), CUDAL2_D2(C, 48)
#define CUDAL2_OUT_52(C) CUDAL2_OUT_48(C), CUDAL2_D4(C, 48)
#define CUDAL2_OUT_54(C) CUDAL2_OUT_52(C), CUDAL2_D2(C, 52)
#define CUDAL2_OUT_56(C) CUDAL2_OUT_52(C), CUDAL2_D4(C, 52)
#define CUDAL2_OUT_58(C) CUDAL2_OUT_56(C), CUDAL2_D2(C, 56)
#define CUDAL2_OUT_60(C) CUDAL2_OUT_56(C), CUDAL2_D4(C, 56)
#define CUDAL2_OUT_62(C) CUDAL2_OUT_60(C), CUDAL2_D2(C, 60)
#define CUDAL2_OUT_64(C) CUDAL2_OUT_60(C), CUDAL2_D4(C, 60)
#define CUDAL2_OUT_68(C) CUDAL2_OUT_64(C), CUDAL2_D4(C, 64)
#define CUDAL2_OUT_72(C) CUDAL2_OUT_68(C), CUDAL2_D4(C, 68)
#define CUDAL2_OUT_76(C) CUDAL2_OUT_72(C), CUDAL2_D4(C, 72)
#define CUDAL2_OUT_80(C) CUDAL2_OUT_76(C), CUDAL2_D4(C, 76)
#define CUDAL2_OUT_84(C) CUDAL2_OUT_80(C), CUDAL2_D4(C, 80)
#define CUDAL2_OUT_88(C) CUDAL2_OUT_84(C), CUDAL2_D4(C, 84)
#define CUDAL2_OUT_92(C) CUDAL2_OUT_88(C), CUDAL2_D4(C, 88)
#define CUDAL2_OUT_96(C) CUDAL2_OUT_92(C), CUDAL2_D4(C, 92)
#define CUDAL2_OUT_100(C) CUDAL2_OUT_96(C), CUDAL2_D4(C, 96)
#define CUDAL2_OUT_104(C) CUDAL2_OUT_100(C), CUDAL2_D4(C, 100)
#define CUDAL2_OUT_108(C) CUDAL2_OUT_104(C), CUDAL2_D4(C, 104)
#define CUDAL2_OUT_112(C) CUDAL2_OUT_108(C), CUDAL2_D4(C, 108)
#define CUDAL2_OUT_116(C) CUDAL2_OUT_112(C), CUDAL2_D4(C, 112)
#define CUDAL2_OUT_120(C) CUDAL2_OUT_116(C), CUDAL2_D4(C, 116)
#define CUDAL2_OUT_124(C) CUDAL2_OUT_120(C), CUDAL2_D4(C, 120)
#define CUDAL2_OUT_128(C) CUDAL2_OUT_124(C), CUDAL2_D4(C, 124)
#define CUDAL2_FLOAT(x) "+f"(x)
#define CUDAL2_UNSIGNED(x) "+r"(x)

// Both forms of one width: N columns, COUNT registers numbered %0.., then the operands. With A in shared memory these are A, B,
// accumulate, transpose B, A at I0.. I4; with A in registers its four at I0.. I3, then B, accumulate, transpose B.
#define CUDAL2_WGMMA(ELEMENT, TYPES, REGISTER, CONSTRAINT, N, COUNT, I0, I1, I2, I3, I4, I5, I6)                           \
  template <int kTransposeB, int kTransposeA>                                                                              \
  struct wgmma_shared<ELEMENT, REGISTER, N, kTransposeB, kTransposeA> {                                                    \
    static constexpr int kRegisters = COUNT;                                                                               \
    static __device__ __forceinline__ void run(REGISTER (&d)[COUNT], unsigned long long a, unsigned long long b,           \
                                               int accumulate) {                                                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n"                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" CUDAL2_REGS_##COUNT "}, %" #I0 ", %" #I1       \
                   ", p, 1, 1, %" #I4 ", %" #I3 ";\n}"                                                                     \
                   : CUDAL2_OUT_##COUNT(CONSTRAINT)                                                                        \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB), "n"(kTransposeA)                                   \
                   : "memory");                                                                                            \
    }                                                                                                                      \
  };                                                                                                                       \
  template <int kTransposeB>                                                                                               \
  struct wgmma_registers<ELEMENT, REGISTER, N, kTransposeB> {                                                              \
    static constexpr int kRegisters = COUNT;                                                                               \
    static __device__ __forceinline__ void run(REGISTER (&d)[COUNT], const unsigned (&a)[4], unsigned long long b,         \
                                               int accumulate) {                                                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5 ", 0;\n"                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" CUDAL2_REGS_##COUNT "}, {%" #I0 ",%" #I1       \
                   ",%" #I2 ",%" #I3 "}, %" #I4 ", p, 1, 1, %" #I6 ";\n}"                                                  \
                   : CUDAL2_OUT_##COUNT(CONSTRAINT)                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposeB)                 \
                   : "memory");                                                                                            \
    }                                                                                                                      \
  };

#define CUDAL2_WGMMA_F32(N, ...)                                                                                           \
  CUDAL2_WGMMA(__half, "f32.f16.f16", float, CUDAL2_FLOAT, N, __VA_ARGS__)                                                 \
  CUDAL2_WGMMA(__nv_bfloat16, "f32.bf16.bf16", float, CUDAL2_FLOAT, N, __VA_ARGS__)
#define CUDAL2_WGMMA_F16(N, ...) CUDAL2_WGMMA(__half, "f16.f16.f16", unsigned, CUDAL2_UNSIGNED, N, __VA_ARGS__)

CUDAL2_WGMMA_F32(8, 4, 4, 5, 6, 7, 8, 9, 10)
CUDAL2_WGMMA_F32(16, 8, 8, 9, 10, 11, 12, 13, 14)
CUDAL2_WGMMA_F32(24, 12, 12, 13, 14, 15, 16, 17, 18)
CUDAL2_WGMMA_F32(32, 16, 16, 17, 18, 19, 20, 21, 22)
CUDAL2_WGMMA_F32(40, 20, 20, 21, 22, 23, 24, 25, 26)
CUDAL2_WGMMA_F32(48, 24, 24, 25, 26, 27, 28, 29, 30)
CUDAL2_WGMMA_F32(56, 28, 28, 29, 30, 31, 32, 33, 34)
CUDAL2_WGMMA_F32(64, 32, 32, 33, 34, 35, 36, 37, 38)
CUDAL2_WGMMA_F32(72, 36, 36, 37, 38, 39, 40, 41, 42)
CUDAL2_WGMMA_F32(80, 40, 40, 41, 42, 43, 44, 45, 46)
CUDAL2_WGMMA_F32(88, 44, 44, 45, 46, 47, 48, 49, 50)
CUDAL2_WGMMA_F32(96, 48, 48, 49, 50, 51, 52, 53, 54)
CUDAL2_WGMMA_F32(104, 52, 52, 53, 54, 55, 56, 57, 58)
CUDAL2_WGMMA_F32(112, 56, 56, 57, 58, 59, 60, 61, 62)
CUDAL2_WGMMA_F32(120, 60, 60, 61, 62, 63, 64, 65, 66)
CUDAL2_WGMMA_F32(128, 64, 64, 65, 66, 67, 68, 69, 70)
CUDAL2_WGMMA_F32(136, 68, 68, 69, 70, 71, 72, 73, 74)
CUDAL2_WGMMA_F32(144, 72, 72, 73, 74, 75, 76, 77, 78)
CUDAL2_WGMMA_F32(152, 76, 76, 77, 78, 79, 80, 81, 82)
CUDAL2_WGMMA_F32(160, 80, 80, 81, 82, 83, 84, 85, 86)
CUDAL2_WGMMA_F32(168, 84, 84, 85, 86, 87, 88, 89, 90)
CUDAL2_WGMMA_F32(176, 88, 88, 89, 90, 91, 92, 93, 94)
CUDAL2_WGMMA_F32(184, 92, 92, 93, 94, 95, 96, 97, 98)
CUDAL2_WGMMA_F32(192, 96, 96, 97, 98, 99, 100, 101, 102)
CUDAL2_WGMMA_F32(200, 100, 100, 101, 102, 103, 104, 105, 106)
CUDAL2_WGMMA_F32(208, 104, 104, 105, 106, 107, 108, 109, 110)
CUDAL2_WGMMA_F32(216, 108, 108, 109, 110, 111, 112, 113, 114)
CUDAL2_WGMMA_F32(224, 112, 112, 113, 114, 115, 116, 117, 118)
CUDAL2_WGMMA_F32(232, 116, 116, 117, 118, 119, 120, 121, 122)
CUDAL2_WGMMA_F32(240, 120, 120, 121, 122, 123, 124, 125, 126)
CUDAL2_WGMMA_F32(248, 124, 124, 125, 126, 127, 128, 129, 130)
CUDAL2_WGMMA_F32(256, 128, 128, 129, 130, 131, 132, 133, 134)
CUDAL2_WGMMA_F16(8, 2, 2, 3, 4, 5, 6, 7, 8)
CUDAL2_WGMMA_F16(16, 4, 4, 5, 6, 7, 8, 9, 10)
CUDAL2_WGMMA_F16(24, 6, 6, 7, 8, 9, 10, 11, 12)
CUDAL2_WGMMA_F16(32, 8, 8, 9, 10, 11, 12, 13, 14)
CUDAL2_WGMMA_F16(40, 10, 10, 11, 12, 13, 14, 15, 16)
CUDAL2_WGMMA_F16(48, 12, 12, 13, 14, 15, 16, 17, 18)
CUDAL2_WGMMA_F16(56, 14, 14, 15, 16, 17, 18, 19, 20)
CUDAL2_WGMMA_F16(64, 16, 16, 17, 18, 19, 20, 21, 22)
CUDAL2_WGMMA_F16(72, 18, 18, 19, 20, 21, 22, 23, 24)
CUDAL2_WGMMA_F16(80, 20, 20, 21, 22, 23, 24, 25, 26)
CUDAL2_WGMMA_F16(88, 22, 22, 23, 24, 25, 26, 27, 28)
CUDAL2_WGMMA_F16(96, 24, 24, 25, 26, 27, 28, 29, 30)
CUDAL2_WGMMA_F16(104, 26, 26, 27, 28, 29, 30, 31, 32)
CUDAL2_WGMMA_F16(112, 28, 28, 29, 30, 31, 32, 33, 34)
CUDAL2_WGMMA_F16(120, 30, 30, 31, 32, 33, 34, 35, 36)
CUDAL2_WGMMA_F16(128, 32, 32, 33, 34, 35, 36, 37, 38)
CUDAL2_WGMMA_F16(136, 34, 34, 35, 36, 37, 38, 39, 40)
CUDAL2_WGMMA_F16(144, 36, 36, 37, 38, 39, 40, 41, 42)
CUDAL2_WGMMA_F16(152, 38, 38, 39, 40, 41, 42, 43, 44)
CUDAL2_WGMMA_F16(160, 40, 40, 41, 42, 43, 44, 45, 46)
CUDAL2_WGMMA_F16(168, 42, 42, 43, 44, 45, 46, 47, 48)
CUDAL2_WGMMA_F16(176, 44, 44, 45, 46, 47, 48, 49, 50)
CUDAL2_WGMMA_F16(184, 46, 46, 47, 48, 49, 50, 51, 52)
CUDAL2_WGMMA_F16(192, 48, 48, 49, 50, 51, 52, 53, 54)
CUDAL2_WGMMA_F16(200, 50, 50, 51, 52, 53, 54, 55, 56)
CUDAL2_WGMMA_F16(208, 52, 52, 53, 54, 55, 56, 57, 58)
CUDAL2_WGMMA_F16(216, 54, 54, 55, 56, 57, 58, 59, 60)
CUDAL2_WGMMA_F16(224, 56, 56, 57, 58, 59, 60, 61, 62)
CUDAL2_WGMMA_F16(232, 58, 58, 59, 60, 61, 62, 63, 64)
CUDAL2_WGMMA_F16(240, 60, 60, 61, 62, 63, 64, 65, 66)
CUDAL2_WGMMA_F16(248, 62, 62, 63, 64, 65, 66, 67, 68)
CUDAL2_WGMMA_F16(256, 64, 64, 65, 66, 67, 68, 69, 70)

#undef CUDAL2_WGMMA_F16
#undef CUDAL2_WGMMA_F32
#undef CUDAL2_WGMMA
// clang-format on

}  // namespace cudal2
