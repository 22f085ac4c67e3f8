// cp.async. Thread i copies to byte 16 * i of shared memory from byte 16 * i of in; sizes and predicates follow the data,
// one word a thread, at byte 2048.
#include "golden.cuh"

#define BEGIN                                                           \
  __shared__ __align__(128) byte tile[2048];                            \
  const int i = threadIdx.x;                                            \
  const unsigned size = ((const unsigned*)(in + 2048))[i];              \
  const unsigned to = shared_address(tile) + 16 * i;                    \
  const byte* from = in + 16 * i;                                       \
  (void)size;                                                           \
  fill_words(tile, 0xA5A5A5A5u, 2048);                                  \
  __syncthreads();

#define END        \
  __syncthreads(); \
  copy_words(out, tile, 2048);

#define WAIT asm volatile("cp.async.wait_all;" ::: "memory");

#define PLAIN(NAME, TEXT)                                              \
  GOLDEN(NAME) {                                                       \
    BEGIN                                                              \
    asm volatile(TEXT ::"r"(to), "l"(from), "r"(size) : "memory");     \
    WAIT END                                                           \
  }

PLAIN(ca_4, "cp.async.ca.shared.global [%0], [%1], 4;")
PLAIN(ca_8, "cp.async.ca.shared.global [%0], [%1], 8;")
PLAIN(ca_16, "cp.async.ca.shared.global [%0], [%1], 16;")
PLAIN(cg_16, "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;")
PLAIN(ca_4_size, "cp.async.ca.shared.global [%0], [%1], 4, %2;")
PLAIN(ca_8_size, "cp.async.ca.shared.global [%0], [%1], 8, %2;")
PLAIN(ca_16_size, "cp.async.ca.shared.global [%0], [%1], 16, %2;")
PLAIN(cg_16_size, "cp.async.cg.shared::cta.global [%0], [%1], 16, %2;")
PLAIN(ca_4_ignore, "{.reg .pred p; setp.gt.u32 p, %2, 5; cp.async.ca.shared.global [%0], [%1], 4, p;}")
PLAIN(cg_16_ignore, "{.reg .pred p; setp.gt.u32 p, %2, 5; cp.async.cg.shared.global [%0], [%1], 16, p;}")
PLAIN(cg_16_predicated, "{.reg .pred p; setp.gt.u32 p, %2, 5; @p cp.async.cg.shared.global [%0], [%1], 16;}")

// Three groups to the same bytes, one after the other; each wait makes one more visible.
GOLDEN(groups) {
  BEGIN
  unsigned seen[3];
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 4), "l"(from + 8) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 8), "l"(from + 4) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 3;" ::: "memory");
  seen[0] = *(volatile unsigned*)(tile + 16 * i);
  asm volatile("cp.async.wait_group 2;" ::: "memory");
  seen[1] = *(volatile unsigned*)(tile + 16 * i + 4);
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  seen[2] = *(volatile unsigned*)(tile + 16 * i + 8);
  for (int j = 0; j < 3; ++j) ((unsigned*)(out + 2048))[3 * i + j] = seen[j];
  END
}

__device__ __forceinline__ unsigned done(unsigned barrier, unsigned parity) {
  unsigned d;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(d) : "r"(barrier), "r"(parity) : "memory");
  return d;
}

// The barrier counts every thread once (noinc), or twice: the copy's own arrival raises the pending count first.
#define ARRIVE(NAME, FORM, COUNT, AFTER)                                                      \
  GOLDEN(NAME) {                                                                              \
    __shared__ __align__(8) unsigned long long storage;                                       \
    const unsigned barrier = shared_address(&storage);                                        \
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(COUNT) : "memory"); \
    BEGIN                                                                                     \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); \
    asm volatile("cp.async.mbarrier.arrive" FORM ".shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); \
    AFTER                                                                                     \
    while (!done(barrier, 0)) {                                                               \
    }                                                                                         \
    ((unsigned*)(out + 2048))[i] = done(barrier, 1);                                          \
    END                                                                                       \
  }

ARRIVE(arrive_noinc, ".noinc", 128, )
ARRIVE(arrive, "", 128, asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");)
