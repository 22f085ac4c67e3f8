// TMA: bulk tensor copies between global and shared memory through a tensor map (sm_90 and up).
// One thread copies one box. `smem` is a multiple of 128 bytes; of 1024 for the 128-byte swizzle. x (contiguous) and y (strided)
// are in elements, x a multiple of 16 bytes: another is an illegal instruction on an H200, though no manual says so. A swizzled
// box is as wide as its swizzle. Elements outside load as zero, and a barrier always expects the whole box. They are not stored,
// but a store must start inside of the operand. `policy` is an l2_policy.
#pragma once

namespace cudal2 {

// A kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// Fetches the descriptor; may precede wait_for_dependencies.
__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The bytes complete on `barrier`, of this CTA.
__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// A box of a map with three dims.
__device__ __forceinline__ void tma_load_3d(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// One read, delivered to the same shared address and the same barrier of every CTA in the mask (bit = rank).
__device__ __forceinline__ void tma_load_multicast(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y,
                                                   unsigned short cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(cta_mask)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast_3d(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y, int z,
                                                      unsigned short cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(cta_mask)
      : "memory");
}

// Behind fence_proxy_async; then tma_store_commit and a wait by the same thread.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned smem, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(smem), "r"(x),
               "r"(y)
               : "memory");
}

__device__ __forceinline__ void tma_store_3d(const TensorMap& map, unsigned smem, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(smem),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

// 1 marks lines of L2 to be evicted first, 2 last. Made anew for each copy: a producer has no registers to keep it in.
template <int kEviction>
__device__ __forceinline__ unsigned long long l2_policy() {
  static_assert(kEviction == 1 || kEviction == 2, "lines are evicted first or last");
  unsigned long long policy;
  if constexpr (kEviction == 1) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y,
                                         unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y,
                                                   unsigned short cta_mask, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(cta_mask), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned smem, int x, int y, unsigned long long policy) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(&map),
               "r"(smem), "r"(x), "r"(y), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending groups of this thread still read shared memory; <0> before it ends.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until at most kPending groups are complete in global memory; only where this launch reads what was stored.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// By every thread that wrote shared memory which TMA or wgmma reads next; a barrier among the writers follows.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace cudal2
