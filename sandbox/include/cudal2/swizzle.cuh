// XOR swizzle of a shared-memory tile of 16-bit elements, so that neither 16-byte copies along rows nor ldmatrix down a
// column meet a bank conflict.
#pragma once

namespace cudal2 {

// Byte offset of (row, column) in a tile of kColumns columns stored row by row.
//
// A row is kColumns/8 chunks of 16 bytes, and eight chunks fill the 32 banks once. Let g be the largest power of two, at
// most 8, that divides the number of chunks in a row: then 8/g rows start at different bank groups by themselves, and the
// chunk index is XORed with the next bits of the row number, so that eight consecutive rows at one column use all banks.
// `column` may point inside a chunk; the offset within the chunk is kept.
template <int kColumns>
__device__ __forceinline__ unsigned swizzled(int row, int column) {
  constexpr int kChunks = kColumns / 8;
  constexpr int kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static_assert(kColumns % 16 == 0, "a row is a whole number of pairs of 16-byte chunks");
  const int phase = row / (8 / kGroup) % kGroup;
  const int chunk = column / 8 ^ phase;
  return static_cast<unsigned>((row * kChunks + chunk) * 16 + column % 8 * 2);
}

}  // namespace cudal2
