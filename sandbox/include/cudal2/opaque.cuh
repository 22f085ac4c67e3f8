// Values whose origin the compiler does not see: it can then neither precompute nor keep what is derived from them.
#pragma once

namespace cudal2 {

// Costs no instruction. Use where recomputing an address is cheaper than the register that would hold it.
template <typename Pointee>
__device__ __forceinline__ void hide(Pointee*& pointer) {
  asm volatile("" : "+l"(pointer));
}

__device__ __forceinline__ void hide(unsigned& value) { asm volatile("" : "+r"(value)); }

}  // namespace cudal2
