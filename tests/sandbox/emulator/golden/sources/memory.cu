// Loads and stores of every width; thread i works at byte 16 * i. Loaded registers are stored as 64 bits each.
#include "golden.cuh"

#define LOAD(NAME, OPCODE, TYPE, LETTER)                                                              \
  GOLDEN(NAME) {                                                                                      \
    __shared__ __align__(16) byte copy[2048];                                                         \
    copy_words(copy, in, 2048);                                                                       \
    __syncthreads();                                                                                  \
    const int i = threadIdx.x;                                                                        \
    TYPE d, e;                                                                                        \
    asm volatile("ld.global." OPCODE " %0, [%1];" : "=" LETTER(d) : "l"(in + 16 * i + n.v[0]) : "memory");  \
    asm volatile("ld.shared." OPCODE " %0, [%1];" : "=" LETTER(e) : "r"(shared_address(copy) + 16 * i + n.v[0]) : "memory"); \
    ((unsigned long long*)out)[2 * i] = d;                                                            \
    ((unsigned long long*)out)[2 * i + 1] = e;                                                        \
  }

LOAD(ld_u8_16, "u8", unsigned short, "h")
LOAD(ld_s8_16, "s8", unsigned short, "h")
LOAD(ld_u8_32, "u8", unsigned, "r")
LOAD(ld_s8_32, "s8", unsigned, "r")
LOAD(ld_s8_64, "s8", unsigned long long, "l")
LOAD(ld_b8_32, "b8", unsigned, "r")
LOAD(ld_u16_16, "u16", unsigned short, "h")
LOAD(ld_b16_16, "b16", unsigned short, "h")
LOAD(ld_u16_32, "u16", unsigned, "r")
LOAD(ld_s16_32, "s16", unsigned, "r")
LOAD(ld_s16_64, "s16", unsigned long long, "l")
LOAD(ld_u32_32, "u32", unsigned, "r")
LOAD(ld_u32_64, "u32", unsigned long long, "l")
LOAD(ld_s32_64, "s32", unsigned long long, "l")
LOAD(ld_b64_64, "b64", unsigned long long, "l")

#define VECTOR(NAME, OPCODE, LIST, OUTS, KEEP)                         \
  GOLDEN(NAME) {                                                                    \
    const int i = threadIdx.x;                                                      \
    unsigned long long r[4] = {0, 0, 0, 0};                                         \
    unsigned a, b, c, d;                                                            \
    unsigned long long x, y;                                                        \
    (void)a, (void)b, (void)c, (void)d, (void)x, (void)y;                           \
    asm volatile("ld.global." OPCODE " " LIST : OUTS : "l"(in + 16 * i) : "memory"); \
    KEEP;                                                                           \
    for (int j = 0; j < 4; ++j) ((unsigned long long*)out)[4 * i + j] = r[j];   \
  }

#define TWO "=r"(a), "=r"(b)
#define FOUR "=r"(a), "=r"(b), "=r"(c), "=r"(d)
#define TWO_LONG "=l"(x), "=l"(y)
#define KEEP_TWO r[0] = a, r[1] = b
#define KEEP_LONG r[0] = x, r[1] = y
#define KEEP_FOUR r[0] = a, r[1] = b, r[2] = c, r[3] = d
VECTOR(ld_v2_u8, "v2.u8", "{%0,%1}, [%2];", TWO, KEEP_TWO)
VECTOR(ld_v4_s8, "v4.s8", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_v2_s16, "v2.s16", "{%0,%1}, [%2];", TWO, KEEP_TWO)
VECTOR(ld_v4_u16, "v4.u16", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_v2_b32, "v2.b32", "{%0,%1}, [%2];", TWO, KEEP_TWO)
VECTOR(ld_v4_u32, "v4.u32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_v2_b64, "v2.b64", "{%0,%1}, [%2];", TWO_LONG, KEEP_LONG)
VECTOR(ld_nc_v4, "nc.L1::no_allocate.L2::128B.v4.b32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_nc_u32, "nc.u32", "%0, [%2]; mov.b32 %1, 7;", TWO, KEEP_TWO)
VECTOR(ld_ca_v4, "ca.v4.u32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_cg_v4, "cg.v4.u32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_cs_v4, "cs.v4.u32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_lu_v4, "lu.v4.u32", "{%0,%1,%2,%3}, [%4];", FOUR, KEEP_FOUR)
VECTOR(ld_cv_u32, "cv.u32", "%0, [%2]; mov.b32 %1, 7;", TWO, KEEP_TWO)

// Generic, relaxed, acquire and volatile loads of one word, and predicated ones.
GOLDEN(ld_kinds) {
  const int i = threadIdx.x;
  unsigned d[6];
  asm volatile("ld.u32 %0, [%1];" : "=r"(d[0]) : "l"(in + 16 * i) : "memory");
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(d[1]) : "l"(in + 16 * i + 4) : "memory");
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(d[2]) : "l"(in + 16 * i + 8) : "memory");
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(d[3]) : "l"(in + 16 * i + 12) : "memory");
  asm volatile("{.reg .pred p; setp.gt.s32 p, %2, 50; mov.b32 %0, 99; @p ld.global.u32 %0, [%1];}"
               : "=r"(d[4]) : "l"(in + 16 * i), "r"(i) : "memory");
  asm volatile("{.reg .pred p; setp.gt.s32 p, %2, 50; mov.b32 %0, 98; @!p ld.global.u32 %0, [%1+4];}"
               : "=r"(d[5]) : "l"(in + 16 * i), "r"(i) : "memory");
  for (int j = 0; j < 6; ++j) ((unsigned*)out)[6 * i + j] = d[j];
}

// Two words a thread come in; 32 bytes a thread go out, of which the stores write some.
#define STORE(NAME, TEXT)                                                                                     \
  GOLDEN(NAME) {                                                                                              \
    const int i = threadIdx.x;                                                                                \
    const unsigned a = ((const unsigned*)in)[2 * i], b = ((const unsigned*)in)[2 * i + 1];                    \
    asm volatile(TEXT ::"l"(out + 32 * i), "r"(a), "r"(b), "l"((unsigned long long)b << 32 | a) : "memory");   \
  }

STORE(st_u8, "st.global.u8 [%0+3], %1;")
STORE(st_b16, "{.reg .b16 h, k; mov.b32 {h, k}, %1; st.global.b16 [%0+2], k;}")
STORE(st_u32, "st.global.u32 [%0+4], %1;")
STORE(st_b64, "st.global.b64 [%0+8], %3;")
STORE(st_v2_u8, "st.global.v2.u8 [%0+2], {%1, %2};")
STORE(st_v4_b8, "st.global.v4.b8 [%0+4], {%1, %2, %2, %1};")
STORE(st_v2_b16, "{.reg .b16 h, k; mov.b32 {h, k}, %1; st.global.v2.b16 [%0+4], {k, h};}")
STORE(st_v4_b16, "{.reg .b16 h, k; mov.b32 {h, k}, %1; st.global.v4.b16 [%0+8], {k, h, h, k};}")
STORE(st_v2_b32, "st.global.v2.b32 [%0+8], {%2, %1};")
STORE(st_v4_b32, "st.global.v4.b32 [%0+16], {%2, %1, %1, %2};")
STORE(st_v2_b64, "st.global.v2.b64 [%0+16], {%3, %3};")
STORE(st_generic, "st.u32 [%0+28], %2;")
STORE(st_release, "st.release.gpu.global.u32 [%0], %1; "
      "st.relaxed.cta.global.u32 [%0+4], %2; st.volatile.global.u32 [%0+8], %2;")
STORE(st_hints, "st.global.wb.u32 [%0], %1; st.global.cg.u32 [%0+4], %1; "
      "st.global.cs.u32 [%0+8], %2; st.global.wt.u32 [%0+12], %2;")
STORE(st_predicated, "{.reg .pred p; setp.lt.u32 p, %1, %2; @p st.global.u32 [%0], %1; @!p st.global.u32 [%0+4], %2;}")

// A table in constant memory and an array in local memory, both indexed by data.
__constant__ unsigned table[8] = {3, 1, 4, 1, 5, 9, 2, 6};

GOLDEN(ld_const_local) {
  const int i = threadIdx.x;
  const unsigned* words = (const unsigned*)in + 4 * i;
  unsigned kept[16];
  for (int j = 0; j < 16; ++j) kept[j] = j * 1000;
  for (int j = 0; j < 4; ++j) kept[words[j] & 15] += words[j] >> 8;
  unsigned sum = 0;
  for (int j = 0; j < 4; ++j) sum += kept[words[j] >> 4 & 15] + table[words[j] & 7];
  ((unsigned*)out)[i] = sum;
}
