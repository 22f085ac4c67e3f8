// Bulk copies and reductions without a tensor map. Numbers: bytes. A load dumps shared memory; the others change out.
// The barrier lies behind the bytes in dynamic shared memory.
#include "golden.cuh"

#define INIT                                                                                        \
  extern __shared__ __align__(128) byte tile[];                                                     \
  const unsigned at = shared_address(tile), bytes = n.v[0], barrier = at + bytes + 32;     \
  if (threadIdx.x == 0) {                                                                           \
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");               \
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");                              \
  }

#define EXPECT(BARRIER, BYTES) \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(BARRIER), "r"(BYTES) : "memory");

#define WAIT                                                                                                     \
  asm volatile("{.reg .pred p;\nagain%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again%=;}" \
               ::"r"(barrier) : "memory");

#define FENCE asm volatile("fence.proxy.async;" ::: "memory");
#define MEET asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");

// From byte 32 of in to byte 16 of shared memory.
GOLDEN(load) {
  INIT fill_words(tile, 0xA5A5A5A5u, bytes + 32);
  FENCE __syncthreads();
  if (threadIdx.x == 0) {
    EXPECT(barrier, bytes)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at + 16),
                 "l"(in + 32), "r"(bytes), "r"(barrier)
                 : "memory");
  }
  WAIT copy_words(out, tile, bytes + 32);
}

#define GIVE(NAME, HEAD)                                                                            \
  GOLDEN(NAME) {                                                                                    \
    extern __shared__ __align__(128) byte tile[];                                                   \
    const unsigned at = shared_address(tile), bytes = n.v[0];                                       \
    copy_words(tile, in, bytes);                                                                    \
    FENCE __syncthreads();                                                                          \
    if (threadIdx.x == 0) {                                                                         \
      asm volatile(HEAD " [%0], [%1], %2;" ::"l"(out + 16), "r"(at), "r"(bytes) : "memory");        \
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");                                     \
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");                                \
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");                                     \
    }                                                                                               \
  }

GIVE(store, "cp.async.bulk.global.shared::cta.bulk_group")
#define REDUCE(NAME, FORM) GIVE(reduce_##NAME, "cp.reduce.async.bulk.global.shared::cta.bulk_group." FORM)
REDUCE(add_u32, "add.u32")
REDUCE(add_s32, "add.s32")
REDUCE(add_u64, "add.u64")
REDUCE(add_f32, "add.f32")
REDUCE(add_f64, "add.f64")
REDUCE(add_f16, "add.noftz.f16")
REDUCE(add_bf16, "add.noftz.bf16")
REDUCE(min_u32, "min.u32")
REDUCE(min_s32, "min.s32")
REDUCE(min_u64, "min.u64")
REDUCE(min_s64, "min.s64")
REDUCE(min_f16, "min.f16")
REDUCE(min_bf16, "min.bf16")
REDUCE(max_u32, "max.u32")
REDUCE(max_s32, "max.s32")
REDUCE(max_u64, "max.u64")
REDUCE(max_s64, "max.s64")
REDUCE(max_f16, "max.f16")
REDUCE(max_bf16, "max.bf16")
REDUCE(inc_u32, "inc.u32")
REDUCE(dec_u32, "dec.u32")
REDUCE(and_u32, "and.b32")
REDUCE(and_u64, "and.b64")
REDUCE(or_u32, "or.b32")
REDUCE(or_u64, "or.b64")
REDUCE(xor_u32, "xor.b32")
REDUCE(xor_u64, "xor.b64")

// CTA 0 of two sends its bytes to CTA 1, which holds the second half of in; both dump.
#define SEND(NAME, HEAD)                                                                                        \
  GOLDEN(NAME) {                                                                                                \
    INIT unsigned rank;                                                                                         \
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));                                                \
    copy_words(tile, in + rank * bytes, bytes);                                                                 \
    FENCE __syncthreads();                                                                                      \
    if (threadIdx.x == 0 && rank == 1) EXPECT(barrier, bytes)                                                   \
    MEET if (threadIdx.x == 0 && rank == 0) {                                                                   \
      asm volatile(                                                                                             \
          "{.reg .b32 to, done;\nmapa.shared::cluster.u32 to, %0, 1;\nmapa.shared::cluster.u32 done, %2, 1;\n"   \
          HEAD " [to], [%0], %1, [done];}" ::"r"(at), "r"(bytes), "r"(barrier) : "memory");                     \
    }                                                                                                           \
    if (rank == 1) WAIT                                                                                         \
    copy_words(out + rank * bytes, tile, bytes);                                                                \
    MEET                                                                                                        \
  }

SEND(send, "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
#define SEND_REDUCE(NAME, FORM) \
  SEND(send_##NAME, "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." FORM)
SEND_REDUCE(add_u32, "add.u32")
SEND_REDUCE(add_s32, "add.s32")
SEND_REDUCE(add_u64, "add.u64")
SEND_REDUCE(min_u32, "min.u32")
SEND_REDUCE(min_s32, "min.s32")
SEND_REDUCE(max_u32, "max.u32")
SEND_REDUCE(max_s32, "max.s32")
SEND_REDUCE(inc_u32, "inc.u32")
SEND_REDUCE(dec_u32, "dec.u32")
SEND_REDUCE(and_u32, "and.b32")
SEND_REDUCE(or_u32, "or.b32")
SEND_REDUCE(xor_u32, "xor.b32")

// A bulk copy from global memory to the CTAs in numbers[1].
GOLDEN(multicast) {
  INIT unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  fill_words(tile, 0xA5A5A5A5u, bytes);
  FENCE __syncthreads();
  if (threadIdx.x == 0) EXPECT(barrier, (n.v[1] >> rank & 1 ? bytes : 0))
  MEET if (threadIdx.x == 0 && rank == 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" ::"r"(at),
        "l"(in), "r"(bytes), "r"(barrier), "h"((unsigned short)n.v[1])
        : "memory");
  }
  WAIT copy_words(out + rank * bytes, tile, bytes);
  MEET
}
