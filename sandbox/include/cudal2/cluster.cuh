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

// As cluster_arrive, but publishes no writes, and so costs no memory barrier: for mbarriers that were initialised behind
// mbarrier_init_fence. A cluster_wait must follow; work that touches no peer may stand between the two.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// As cluster_sync, but publishes no writes: for barriers that were initialised behind mbarrier_init_fence, and for waiting
// until peers have read this CTA's shared memory. Writes and arrivals of peers may still be on their way behind it. A CTA that
// ends before they land makes the launch fail: it waits for them on its own mbarriers, or at a cluster_sync.
__device__ __forceinline__ void cluster_meet() {
  cluster_arrive_relaxed();
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

// Stores 16 bytes into a peer's shared memory without waiting; they complete on the peer's mbarrier, as the bytes of a bulk
// copy do. Both addresses are of map_to_rank. The peer must not end before its barrier has completed.
__device__ __forceinline__ void store_remote_async(unsigned remote, float4 value, unsigned remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
               : "memory");
}

}  // namespace cudal2
