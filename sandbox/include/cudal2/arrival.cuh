// Arrival counters in global memory: the last of several CTAs to finish goes on alone with what all of them wrote, or all of
// them meet.
#pragma once

namespace cudal2 {

// True in every thread of the last of `ctas` CTAs to call this with the same counter; all threads of a CTA must call it. It then
// sees what those CTAs wrote to global memory before. The counter starts at zero and is zero again after the last arrival
// (workspace with "zero": "restored").
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned ctas) {
  __shared__ bool is_last;
  // Each thread orders its own writes before the barrier; thread 0 then publishes the arrival of all of them.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(counter, ctas - 1) == ctas - 1;
  __syncthreads();
  // Pairs with the writers' fences: no read below may be satisfied from before the counter was seen.
  __threadfence();
  return is_last;
}

// Waits until `ctas` CTAs have called this with the same counter, and then sees what they wrote to global memory before; all
// threads of a CTA must call it. All of these CTAs must be resident at once. The counter starts at zero and is zero again when
// the last of them has left: each increments it twice, and the last time wraps it.
__device__ __forceinline__ void meet_resident(unsigned* counter, unsigned ctas) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned most = 2 * ctas - 1;
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
    unsigned arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    } while (arrived < ctas);
    asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
  }
  __syncthreads();
}

}  // namespace cudal2
