// setmaxnreg: warpgroups hand registers to one another (sm_90a). Every warp of the warpgroup executes it; counts per thread are
// multiples of 8 from 24 to 256, and together no more than the CTA had at launch.
#pragma once

namespace cudal2 {

template <int kCount>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace cudal2
