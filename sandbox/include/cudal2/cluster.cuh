// Thread-block clusters and distributed shared memory (sm_90 and up).
#pragma once

namespace cudal2 {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Every thread of every CTA of the cluster; shared-memory writes before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// As cluster_sync, but publishes no writes, and so costs no memory barrier: for barriers that were initialised behind
// mbarrier_init_fence, and for waiting until no peer reaches into this CTA any more.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
}

// The address of the same shared-memory location in another CTA of the cluster.
__device__ __forceinline__ unsigned map_to_rank(unsigned smem, unsigned cta_rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem), "r"(cta_rank));
  return remote;
}

__device__ __forceinline__ float4 load_remote(unsigned remote) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(remote)
               : "memory");
  return value;
}

// Stores into another CTA's shared memory, and counts the 16 bytes at an mbarrier of the same CTA. Both are remote addresses.
__device__ __forceinline__ void push_remote(unsigned remote, unsigned remote_barrier, float4 value) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(remote),
               "r"(remote_barrier), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

}  // namespace cudal2
