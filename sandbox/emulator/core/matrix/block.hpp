// Blocks of 8x8 elements: what one register of a matrix fragment holds, and products of them.
//
// A register with two halves per lane is a block in row-major order: lane 4*r + c/2 holds columns c and c + 1 of row r. An f32
// accumulator block takes two registers, the even columns and the odd ones.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include <cmath>

#include "bits.hpp"

namespace emulator {

#define EMULATOR_INLINE inline __attribute__((always_inline))

constexpr int kBlock = 8;

// Layouts of wmma fragments: of A, of B, of accumulators of m16n16k16 and of m32n8k16.
enum Fragment : u32 { kLeft, kRight, kSquare, kTall };

enum class Element : u8 { kHalf, kBfloat };
enum class Sum : u8 { kFloat, kHalf };

// In which order the eight columns of a block lie in a vector: as they are, or the even ones before the odd ones, as the two
// registers of an f32 block have them.
enum class Order : u8 { kPlain, kSplit };

EMULATOR_INLINE __m128i load_row(const u8* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }
EMULATOR_INLINE void store_row(u8* bytes, __m128i row) { _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), row); }

// The elements of a row, even ones first, and back.
EMULATOR_INLINE __m128i split(__m128i row) {
  return _mm_shuffle_epi8(row, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
}
EMULATOR_INLINE __m128i merge(__m128i row) {
  return _mm_shuffle_epi8(row, _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
}

// Transposes a block of 16-bit elements.
EMULATOR_INLINE void transpose(__m128i (&rows)[kBlock]) {
  __m128i pairs[kBlock], quads[kBlock];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
    pairs[2 * i + 1] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    quads[4 * i] = _mm_unpacklo_epi32(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 1] = _mm_unpackhi_epi32(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 2] = _mm_unpacklo_epi32(pairs[4 * i + 1], pairs[4 * i + 3]);
    quads[4 * i + 3] = _mm_unpackhi_epi32(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[2 * i] = _mm_unpacklo_epi64(quads[i], quads[i + 4]);
    rows[2 * i + 1] = _mm_unpackhi_epi64(quads[i], quads[i + 4]);
  }
}

template <Element kElement>
EMULATOR_INLINE __m256 widen(__m128i row) {
  if constexpr (kElement == Element::kHalf) return _mm256_cvtph_ps(row);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(row), 16));
}

// Left operand: the rows of a block along k, widened, into a matrix with `depth` columns.
template <Element kElement>
EMULATOR_INLINE void widen_left(const __m128i (&rows)[kBlock], float* out, int depth) {
  for (int i = 0; i < kBlock; ++i) _mm256_store_ps(out + i * depth, widen<kElement>(rows[i]));
}

// Right operand: out[k][n] of a block whose rows are n, with the columns in the order of the accumulators.
template <Element kElement, Order kOrder>
EMULATOR_INLINE void widen_right(const __m128i (&rows)[kBlock], float* out) {
  __m128i ordered[kBlock];
  for (int i = 0; i < kBlock; ++i) ordered[i] = rows[kOrder == Order::kPlain ? i : i < 4 ? 2 * i : 2 * i - 7];
  transpose(ordered);
  for (int i = 0; i < kBlock; ++i) _mm256_store_ps(out + i * kBlock, widen<kElement>(ordered[i]));
}

EMULATOR_INLINE void load_block(const u8* lanes, __m128i (&rows)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) rows[i] = load_row(lanes + 16 * i);
}
EMULATOR_INLINE void store_block(u8* lanes, const __m128i (&rows)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) store_row(lanes + 16 * i, rows[i]);
}

// Sums (8x8) += left (8 x kDepth) * right (kDepth x 8). Products of halves are exact; sums round to nearest, in the order of k.
template <int kDepth>
EMULATOR_INLINE void accumulate(__m256 (&sums)[kBlock], const float* left, const float* right) {
#pragma GCC unroll 16
  for (int k = 0; k < kDepth; ++k) {
    const __m256 row = _mm256_load_ps(right + k * kBlock);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) {
      sums[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(left + i * kDepth + k), row, sums[i]);
    }
  }
}

EMULATOR_INLINE bool all_finite(const __m256 (&sums)[kBlock]) {
  __m256 zeros = _mm256_setzero_ps();
  for (const __m256& row : sums) zeros = _mm256_fmadd_ps(row, _mm256_setzero_ps(), zeros);
  return !_mm256_movemask_ps(_mm256_cmp_ps(zeros, zeros, _CMP_UNORD_Q));
}

// Sums that left the range of f32 once more, from what they were `before`: on the hardware products of bf16 that are larger
// than that may still cancel.
template <int kDepth>
__attribute__((noinline)) void accumulate_widely(__m256 (&sums)[kBlock], const __m256 (&before)[kBlock], const float* left,
                                                 const float* right) {
  for (int i = 0; i < kBlock; ++i) {
    alignas(32) float row[kBlock], initial[kBlock];
    _mm256_store_ps(row, sums[i]);
    _mm256_store_ps(initial, before[i]);
    for (int n = 0; n < kBlock; ++n) {
      if (std::isfinite(row[n])) continue;
      double total = initial[n];
      for (int k = 0; k < kDepth; ++k) total += static_cast<double>(left[i * kDepth + k]) * right[k * kBlock + n];
      row[n] = static_cast<float>(total);
    }
    sums[i] = _mm256_load_ps(row);
  }
}

// The same from what `load` fills sums with.
template <Element kElement, int kDepth, typename Load>
EMULATOR_INLINE void accumulate_from(Load&& load, __m256 (&sums)[kBlock], const float* left, const float* right) {
  load(sums);
  accumulate<kDepth>(sums, left, right);
  if (kElement == Element::kHalf || all_finite(sums)) return;
  __m256 before[kBlock];
  load(before);
  accumulate_widely<kDepth>(sums, before, left, right);
}

// Accumulators of one block in the registers of a warp; the second register is for f32 ones only.
template <Sum kSum, Order kOrder>
EMULATOR_INLINE void load_sums(const u8* first, const u8* second, __m256 (&sums)[kBlock]) {
  static_assert(kSum == Sum::kHalf || kOrder == Order::kSplit, "f32 blocks lie split in their registers");
  for (int i = 0; i < kBlock; ++i) {
    const __m128i row = load_row(first + 16 * i);
    if constexpr (kSum == Sum::kHalf) {
      sums[i] = _mm256_cvtph_ps(kOrder == Order::kSplit ? split(row) : row);
    } else {
      sums[i] = _mm256_castsi256_ps(_mm256_set_m128i(load_row(second + 16 * i), row));
    }
  }
}

// Every NaN leaves as the hardware's one, all bits but the sign set.
template <Sum kSum, Order kOrder>
EMULATOR_INLINE void store_sums(u8* first, u8* second, const __m256 (&sums)[kBlock]) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  for (int i = 0; i < kBlock; ++i) {
    const __m256 row = _mm256_blendv_ps(sums[i], nan, _mm256_cmp_ps(sums[i], sums[i], _CMP_UNORD_Q));
    if constexpr (kSum == Sum::kHalf) {
      const __m128i halves = _mm256_cvtps_ph(row, _MM_FROUND_TO_NEAREST_INT);
      store_row(first + 16 * i, kOrder == Order::kSplit ? merge(halves) : halves);
    } else {
      store_row(first + 16 * i, _mm_castps_si128(_mm256_castps256_ps128(row)));
      store_row(second + 16 * i, _mm_castps_si128(_mm256_extractf128_ps(row, 1)));
    }
  }
}

}  // namespace emulator
