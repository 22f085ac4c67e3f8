// ldmatrix, stmatrix, movmatrix. in: 64 rows of 16 bytes, the row of every lane, then registers [register][lane].
#include "golden.cuh"

#define TILES                                      \
  __shared__ __align__(128) byte tiles[1024];      \
  const int lane = threadIdx.x;                    \
  const int row = ((const int*)(in + 1024))[lane]; \
  const unsigned address = shared_address(tiles + 16 * row);

#define LOAD(NAME, FORM, COUNT, LIST, ADDRESS, ...)                                        \
  GOLDEN(NAME) {                                                                           \
    TILES                                                                                  \
    copy_words(tiles, in, 1024);                                                           \
    __syncwarp();                                                                          \
    unsigned r[COUNT];                                                                     \
    asm volatile("ldmatrix.sync.aligned.m8n8." FORM ".shared.b16 " LIST ", [" ADDRESS "];" \
                 : __VA_ARGS__                                                             \
                 : "r"(address)                                                            \
                 : "memory");                                                              \
    for (int i = 0; i < COUNT; ++i) ((unsigned*)out)[i * 32 + lane] = r[i];                \
  }

#define STORE(NAME, FORM, COUNT, LIST, ...)                                                                         \
  GOLDEN(NAME) {                                                                                                    \
    TILES                                                                                                           \
    fill_words(tiles, 0xA5A5A5A5u, 1024);                                                                           \
    __syncwarp();                                                                                                   \
    unsigned r[COUNT];                                                                                              \
    for (int i = 0; i < COUNT; ++i) r[i] = ((const unsigned*)(in + 1152))[i * 32 + lane];                           \
    asm volatile("stmatrix.sync.aligned.m8n8." FORM ".shared.b16 [%0], " LIST ";" ::"r"(address), __VA_ARGS__ : "memory"); \
    __syncwarp();                                                                                                   \
    copy_words(out, tiles, 1024);                                                                                   \
  }

LOAD(ldmatrix_x1, "x1", 1, "{%0}", "%1", "=r"(r[0]))
LOAD(ldmatrix_x2, "x2", 2, "{%0,%1}", "%2", "=r"(r[0]), "=r"(r[1]))
LOAD(ldmatrix_x4, "x4", 4, "{%0,%1,%2,%3}", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
LOAD(ldmatrix_x1_trans, "x1.trans", 1, "{%0}", "%1", "=r"(r[0]))
LOAD(ldmatrix_x2_trans, "x2.trans", 2, "{%0,%1}", "%2", "=r"(r[0]), "=r"(r[1]))
LOAD(ldmatrix_x4_trans, "x4.trans", 4, "{%0,%1,%2,%3}", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
STORE(stmatrix_x1, "x1", 1, "{%1}", "r"(r[0]))
STORE(stmatrix_x2, "x2", 2, "{%1,%2}", "r"(r[0]), "r"(r[1]))
STORE(stmatrix_x4, "x4", 4, "{%1,%2,%3,%4}", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))
STORE(stmatrix_x1_trans, "x1.trans", 1, "{%1}", "r"(r[0]))
STORE(stmatrix_x2_trans, "x2.trans", 2, "{%1,%2}", "r"(r[0]), "r"(r[1]))
STORE(stmatrix_x4_trans, "x4.trans", 4, "{%1,%2,%3,%4}", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))

GOLDEN(movmatrix) {
  unsigned d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(((const unsigned*)(in + 1152))[threadIdx.x]));
  ((unsigned*)out)[threadIdx.x] = d;
}
