// Named barriers: subsets of a CTA's warps meet without stopping the others.
#pragma once

namespace cudal2 {

// `id` 1 to 15 (0 is __syncthreads); `threads` a multiple of 32, the same for all that meet. Orders memory as __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts towards it without waiting; `threads` is the number that arrive and wait together.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace cudal2
