// mbarrier: the transaction barrier of sm_90 and up. A barrier is 8 bytes of shared memory, named by its 32-bit address.
// Phases alternate between parity 0 and 1; waiting on the parity of the phase that is still open blocks.
#pragma once

namespace cudal2 {

__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the async proxy and to the other CTAs of the cluster; a barrier must follow.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and announces the bytes that asynchronous copies will still deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives on the barrier at the same address in another CTA of the cluster. Without a cluster-scope release, which would cost
// a GPU-wide memory barrier: it tells that asynchronous reads are over (wgmma_wait came first), it does not publish writes.
// The other CTA must not end before it has waited for the arrival.
__device__ __forceinline__ void mbarrier_arrive_remote(unsigned barrier, unsigned cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier), "r"(cta_rank)
      : "memory");
}

// Blocks until the phase of the given parity has completed.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(barrier), "r"(parity)
      : "memory");
}

}  // namespace cudal2
