// mbarrier: the transaction barrier of sm_90 and up; 8 aligned bytes of shared memory, named by their address.
// A phase completes when its arrivals and announced bytes are in; phases have parity 0, 1, 0, … A wait for the parity of the
// open phase blocks; on a fresh barrier a wait for parity 1 passes.
#pragma once

namespace cudal2 {

// One thread, once; `arrivals` per phase, 1 to 2^20 - 1.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// By the thread that initialised; __syncthreads or cluster_meet follows. Shows the barriers to async copies and to peers.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Releases at CTA scope what this thread wrote.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once and announces the bytes that copies and pushes deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives on the barrier at this address in a CTA of the cluster, its own included. Says that asynchronous reads are over (after
// wgmma_wait), but publishes no writes: a cluster-scope release costs a GPU-wide memory barrier. The other CTA must not end
// before it has waited for the arrival.
__device__ __forceinline__ void mbarrier_arrive_remote(unsigned barrier, unsigned cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier), "r"(cta_rank)
      : "memory");
}

// Blocks until the phase has completed. Acquires at CTA scope: the bytes that copies and pushes delivered in it, and what this
// CTA's threads wrote before they arrived. Ordinary stores of other CTAs need cluster_sync.
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
