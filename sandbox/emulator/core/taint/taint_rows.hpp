// Which rows and columns of 8x8 blocks in the shadows of registers hold an old element.
#pragma once

#include <algorithm>
#include <array>

#include "matrix/block.hpp"

namespace emulator {

constexpr u32 kRowBytes = 16;

inline u8 any_of(const u8* old, u32 bytes) {
  return std::any_of(old, old + bytes, [](u8 byte) { return byte != 0; });
}

// A bit for each row of a block of 16-bit elements.
inline u8 rows_of(const u8* shadow) {
  u8 rows = 0;
  for (u32 row = 0; row < kBlock; ++row) rows |= any_of(shadow + kRowBytes * row, kRowBytes) << row;
  return rows;
}

using OldElements = std::array<u8, kBlock>;  // by row, a bit for each column

// The shadow of a block of accumulators: f32 ones in two registers, the even and the odd columns; halves in one.
struct SumBlock {
  u8 *first, *second;
  bool floats;

  u8* element(u32 row, u32 column) const {
    if (floats) return (column & 1 ? second : first) + kRowBytes * row + column / 2 * 4;
    return first + kRowBytes * row + 2 * column;
  }
  u32 bytes() const { return floats ? 4 : 2; }

  OldElements read() const {
    OldElements old{};
    for (u32 row = 0; row < kBlock; ++row) {
      for (u32 column = 0; column < kBlock; ++column) old[row] |= any_of(element(row, column), bytes()) << column;
    }
    return old;
  }
  void write(u8 rows, u8 columns, const OldElements& sums) const {
    for (u32 row = 0; row < kBlock; ++row) {
      const u32 old = rows >> row & 1 ? 0xFF : columns | sums[row];
      for (u32 column = 0; column < kBlock; ++column) std::fill_n(element(row, column), bytes(), old >> column & 1 ? 0xFF : 0);
    }
  }
};

}  // namespace emulator
