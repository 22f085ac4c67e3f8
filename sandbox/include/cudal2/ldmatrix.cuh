// ldmatrix: a warp loads 8x8 tiles of 16-bit elements from shared memory into tensor-core fragments (sm_75 and up).
#pragma once

namespace cudal2 {

// Lane l gives the address of row l%8 of tile l/8 (16 aligned bytes). Its register t gets row l/4, columns 2*(l%4) and the next
// one, of tile t. Eight rows of a tile in eight different 16-byte bank groups load without conflict.
__device__ __forceinline__ void ldmatrix_x4(unsigned row, unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(row)
               : "memory");
}

// As ldmatrix_x4, each tile transposed: for an operand whose rows in shared memory run along M or N.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned row, unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(row)
               : "memory");
}

}  // namespace cudal2
