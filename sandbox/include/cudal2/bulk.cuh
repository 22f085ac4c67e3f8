// Bulk copies of contiguous bytes, without a tensor map and without swizzle, by one thread (sm_90 and up).
// Addresses and sizes are multiples of 16 bytes. `policy` is an l2_policy.
#pragma once

namespace cudal2 {

// The bytes complete on `barrier`, of this CTA.
__device__ __forceinline__ void bulk_load(unsigned smem, const void* source, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(source),
               "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void bulk_load(unsigned smem, const void* source, unsigned bytes, unsigned barrier,
                                          unsigned long long policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   smem),
               "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}

// Behind fence_proxy_async; then tma_store_commit and a wait, as for tma_store.
__device__ __forceinline__ void bulk_store(void* target, unsigned smem, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(smem), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bulk_store(void* target, unsigned smem, unsigned bytes, unsigned long long policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(target), "r"(smem),
               "r"(bytes), "l"(policy)
               : "memory");
}

// Brings bytes into L2; may precede wait_for_dependencies.
__device__ __forceinline__ void bulk_prefetch(const void* source, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

}  // namespace cudal2
