// XOR swizzle of a shared-memory tile of 16-bit elements, so that neither 16-byte copies along rows nor ldmatrix down a
// column meet a bank conflict.
#pragma once

namespace cudal2 {

// Byte offset of (row, column) in a tile of kColumns columns (a multiple of 16) stored row by row. For 64, 32 and 16 columns it
// is the 128-, 64- and 32-byte swizzle of TMA and wgmma in a tile that starts on 1024, 512 and 256 bytes.
template <int kColumns>
__device__ __forceinline__ unsigned swizzled(int row, int column) {
  // A row is kChunks chunks of 16 bytes, and eight chunks fill the 32 banks once. kGroup is the largest power of two, at most
  // 8, that divides kChunks: 8/kGroup rows start at different bank groups by themselves, and the chunk index is XORed with the
  // next bits of the row number, so that eight consecutive rows at one column use all banks.
  constexpr int kChunks = kColumns / 8;
  constexpr int kGroup = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static_assert(kColumns % 16 == 0, "a row is a whole number of pairs of 16-byte chunks");
  const int phase = row / (8 / kGroup) % kGroup;
  const int chunk = column / 8 ^ phase;
  return static_cast<unsigned>((row * kChunks + chunk) * 16 + column % 8 * 2);
}

}  // namespace cudal2
