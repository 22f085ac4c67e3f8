// cp.async: copies from global to shared memory that complete in the background, a few bytes a thread (sm_80 and up).
#pragma once

namespace cudal2 {

// Copies kBytes (4, 8 or 16), both addresses aligned to kBytes. 16 bytes bypass L1; smaller copies cannot.
template <int kBytes>
__device__ __forceinline__ void cp_async(unsigned smem, const void* source) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem), "l"(source) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem), "l"(source), "n"(kBytes) : "memory");
  }
}

// As cp_async where `inside`; elsewhere writes zeros and does not read `source`, which may then be any address.
template <int kBytes>
__device__ __forceinline__ void cp_async_or_zero(unsigned smem, const void* source, bool inside) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  const int source_bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(source), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem), "l"(source), "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
}

// Closes the group of this thread's copies since the last commit; an empty group is legal and completes at once.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are incomplete; other threads' copies need a barrier after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cudal2
