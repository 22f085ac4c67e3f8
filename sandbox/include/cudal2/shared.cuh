// Shared-memory addresses as the 32-bit numbers that PTX instructions take.
#pragma once

namespace cudal2 {

// `pointer` points into shared memory.
__device__ __forceinline__ unsigned smem_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// First address at or above `address` that is a multiple of kAlign (a power of two).
template <unsigned kAlign>
__device__ __forceinline__ unsigned align_up(unsigned address) {
  static_assert((kAlign & (kAlign - 1)) == 0, "alignment is a power of two");
  return (address + kAlign - 1) & ~(kAlign - 1);
}

// 16 aligned bytes.
__device__ __forceinline__ float4 load_shared(unsigned address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace cudal2
