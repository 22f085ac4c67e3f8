// TMA through a tensor map: loads, stores and reductions of one box. Numbers: five coordinates, then the bytes of the box.
// A load dumps the box and 128 bytes behind it; its barrier lies behind those, so that the box starts shared memory.
// A store or a reduction takes the box from in, as it is to lie in shared memory.
#include "golden.cuh"

#define COORDINATES_1 "{%2}"
#define COORDINATES_2 "{%2, %3}"
#define COORDINATES_3 "{%2, %3, %4}"
#define COORDINATES_4 "{%2, %3, %4, %5}"
#define COORDINATES_5 "{%2, %3, %4, %5, %6}"
#define POSITION "r"(n.v[0]), "r"(n.v[1]), "r"(n.v[2]), "r"(n.v[3]), "r"(n.v[4])

#define WAIT_LOADED                                                                                              \
  asm volatile("{.reg .pred p;\nagain%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again%=;}" \
               ::"r"(barrier) : "memory");

#define LOAD(RANK)                                                                                                       \
  GOLDEN_MAP(load_##RANK##d) {                                                                                           \
    extern __shared__ __align__(1024) byte box[];                                                                        \
    const unsigned barrier = shared_address(box) + n.v[5] + 128;                                                         \
    fill_words(box, 0xA5A5A5A5u, n.v[5] + 128);                                                                          \
    if (threadIdx.x == 0) {                                                                                              \
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");                                  \
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");                                                 \
    }                                                                                                                    \
    asm volatile("fence.proxy.async;" ::: "memory");                                                                     \
    __syncthreads();                                                                                                     \
    if (threadIdx.x == 0) {                                                                                              \
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n.v[5]) : "memory");     \
      asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"            \
                   " [%0], [%1, " COORDINATES_##RANK "], [%7];" ::"r"(shared_address(box)),                              \
                   "l"(&map), POSITION, "r"(barrier)                                                                     \
                   : "memory");                                                                                          \
    }                                                                                                                    \
    WAIT_LOADED                                                                                                          \
    copy_words(out, box, n.v[5] + 128);                                                                                  \
  }

#define GIVE(NAME, RANK, HEAD)                                                                                           \
  GOLDEN_MAP(NAME) {                                                                                                     \
    extern __shared__ __align__(1024) byte box[];                                                                        \
    copy_words(box, in, n.v[5]);                                                                                         \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                         \
    __syncthreads();                                                                                                     \
    if (threadIdx.x == 0) {                                                                                              \
      asm volatile(HEAD ".global.shared::cta" TILE " [%1, " COORDINATES_##RANK "], [%0];" ::"r"(shared_address(box)),    \
                   "l"(&map), POSITION                                                                                   \
                   : "memory");                                                                                          \
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");                                                          \
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");                                                          \
    }                                                                                                                    \
  }

LOAD(1)
LOAD(2)
LOAD(3)
LOAD(4)
LOAD(5)

#define TILE ".tile.bulk_group"
GIVE(store_1d, 1, "cp.async.bulk.tensor.1d")
GIVE(store_2d, 2, "cp.async.bulk.tensor.2d")
GIVE(store_3d, 3, "cp.async.bulk.tensor.3d")
GIVE(store_4d, 4, "cp.async.bulk.tensor.4d")
GIVE(store_5d, 5, "cp.async.bulk.tensor.5d")
#undef TILE

#define TILE ".add.tile.bulk_group"
GIVE(reduce_add_1d, 1, "cp.reduce.async.bulk.tensor.1d")
GIVE(reduce_add_2d, 2, "cp.reduce.async.bulk.tensor.2d")
GIVE(reduce_add_3d, 3, "cp.reduce.async.bulk.tensor.3d")
GIVE(reduce_add_4d, 4, "cp.reduce.async.bulk.tensor.4d")
GIVE(reduce_add_5d, 5, "cp.reduce.async.bulk.tensor.5d")
#undef TILE
#define TILE ".min.tile.bulk_group"
GIVE(reduce_min_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".max.tile.bulk_group"
GIVE(reduce_max_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".inc.tile.bulk_group"
GIVE(reduce_inc_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".dec.tile.bulk_group"
GIVE(reduce_dec_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".and.tile.bulk_group"
GIVE(reduce_and_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".or.tile.bulk_group"
GIVE(reduce_or_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE
#define TILE ".xor.tile.bulk_group"
GIVE(reduce_xor_2d, 2, "cp.reduce.async.bulk.tensor.2d")
#undef TILE

// One box to every CTA of the mask in numbers[6]; the CTA of rank numbers[7] issues it; each dumps its own.
GOLDEN_MAP(multicast_2d) {
  extern __shared__ __align__(1024) byte box[];
  const unsigned barrier = shared_address(box) + n.v[5] + 128;
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  fill_words(box, 0xA5A5A5A5u, n.v[5] + 128);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const int bytes = n.v[6] >> rank & 1 ? n.v[5] : 0;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0 && rank == n.v[7]) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(box)),
        "l"(&map), "r"(barrier), "r"(n.v[0]), "r"(n.v[1]), "h"((unsigned short)n.v[6])
        : "memory");
  }
  WAIT_LOADED
  copy_words(out + rank * (n.v[5] + 128), box, n.v[5] + 128);
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
