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

// A bit for each line of a block of A or B. `bytes`: of a line.
inline u8 rows_of(const u8* shadow, u32 bytes = kRowBytes) {
  u8 rows = 0;
  for (u32 row = 0; row < kBlock; ++row) rows |= any_of(shadow + bytes * row, bytes) << row;
  return rows;
}

using OldElements = std::array<u8, kBlock>;  // by row, a bit for each column

// The shadow of a block of accumulators: halves in one register, wider ones in two, the even and the odd columns.
struct SumBlock {
  u8 *first, *second;
  u32 bytes;  // of an element

  u8* element(u32 row, u32 column) const {
    if (bytes == 2) return first + kRowBytes * row + 2 * column;
    return (column & 1 ? second : first) + 4 * bytes * row + column / 2 * bytes;
  }

  OldElements read() const {
    OldElements old{};
    for (u32 row = 0; row < kBlock; ++row) {
      for (u32 column = 0; column < kBlock; ++column) old[row] |= any_of(element(row, column), bytes) << column;
    }
    return old;
  }
  void write(u8 rows, u8 columns, const OldElements& sums) const {
    for (u32 row = 0; row < kBlock; ++row) {
      const u32 old = rows >> row & 1 ? 0xFF : columns | sums[row];
      for (u32 column = 0; column < kBlock; ++column) std::fill_n(element(row, column), bytes, old >> column & 1 ? 0xFF : 0);
    }
  }
};

}  // namespace emulator
