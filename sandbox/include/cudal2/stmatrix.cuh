// stmatrix: a warp stores 8x8 tiles of 16-bit elements from tensor-core fragments to shared memory (sm_90 and up).
#pragma once

namespace cudal2 {

// Lane l gives the row address of row l%8 of tile l/8; tile t holds register t of every lane.
__device__ __forceinline__ void stmatrix_x4(unsigned row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace cudal2
