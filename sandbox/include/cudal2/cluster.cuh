// Thread-block clusters and distributed shared memory (sm_90 and up).
#pragma once

namespace cudal2 {

// 0 to the cluster's size - 1; x runs fastest.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The halves of cluster_sync; work that touches no peer may stand between them.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// By all threads of all CTAs. Release and acquire at cluster scope: writes before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// As cluster_arrive, but publishes no writes and costs no memory barrier: for mbarriers behind mbarrier_init_fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// As cluster_sync, but publishes no writes: behind mbarrier_init_fence, or until peers have read this CTA's shared memory. Peers'
// pushes and arrivals may land after it, and fail the launch if this CTA has ended: wait for them on its own mbarriers.
__device__ __forceinline__ void cluster_meet() {
  cluster_arrive_relaxed();
  cluster_wait();
}

// The address of the same shared-memory location in a CTA of the cluster.
__device__ __forceinline__ unsigned map_to_rank(unsigned smem, unsigned cta_rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem), "r"(cta_rank));
  return remote;
}

// 16 aligned bytes of a peer, behind a cluster_sync. The peer must not end before.
__device__ __forceinline__ float4 load_remote(unsigned remote) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(remote)
               : "memory");
  return value;
}

// Pushes 16 aligned bytes to a peer without waiting (st.async); they complete on an mbarrier of that peer, which announced
// them. Both addresses are of map_to_rank. The peer must not end before that phase has completed.
__device__ __forceinline__ void store_remote_async(unsigned remote, float4 value, unsigned remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
               : "memory");
}

}  // namespace cudal2
