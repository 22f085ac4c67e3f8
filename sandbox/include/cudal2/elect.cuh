// elect.sync: one lane of a warp, chosen by the hardware (sm_90 and up).
#pragma once

namespace cudal2 {

// True in one lane, always the same. All 32 lanes execute it together. ptxas then knows that one thread takes the branch.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace cudal2
