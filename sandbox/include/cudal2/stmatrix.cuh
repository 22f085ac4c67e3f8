// stmatrix: a warp stores 8x8 tiles of 16-bit elements from tensor-core fragments to shared memory (sm_90 and up).
#pragma once

namespace cudal2 {

// Lane l gives the address of row l%8 of tile l/8 (16 aligned bytes). Its register t holds row l/4, columns 2*(l%4) and the next
// one, of tile t.
__device__ __forceinline__ void stmatrix_x4(unsigned row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Each tile transposed: row r in shared memory is column r of the fragment.
__device__ __forceinline__ void stmatrix_x4_transposed(unsigned row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r0), "r"(r1), "r"(r2),
               "r"(r3)
               : "memory");
}

// Two tiles, addressed by lanes 0 to 15.
__device__ __forceinline__ void stmatrix_x2(unsigned row, unsigned r0, unsigned r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r0), "r"(r1) : "memory");
}
__device__ __forceinline__ void stmatrix_x2_transposed(unsigned row, unsigned r0, unsigned r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r0), "r"(r1) : "memory");
}

}  // namespace cudal2
