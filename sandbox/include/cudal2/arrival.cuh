// Arrival counters in global memory: the last of several CTAs to finish goes on alone with what all of them wrote.
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

}  // namespace cudal2
