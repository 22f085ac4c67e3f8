// Blocks of eight lines: what one register of a matrix fragment holds, and products of them.
//
// A register of A or B is a block of eight rows of A, or columns of B, each with a line of 16 bytes along k: eight halves, four
// tf32, sixteen 8-bit integers. Lanes 4*r to 4*r + 3 hold line r. An accumulator block has 8x8 elements. Halves take one
// register, lane 4*r + c/2 with columns c and c + 1 of row r; f32 and s32 take two, the even columns and the odd ones.
// Source: PTX ISA, "Matrix Fragments for mma" of each shape.
#pragma once

#include <cmath>

#include "bits.hpp"

namespace emulator {

#define EMULATOR_INLINE inline __attribute__((always_inline))

constexpr int kBlock = 8;

// Layouts of wmma fragments by blocks: two rows of blocks and two along k (A); two along k and any columns (B); two rows and
// any columns; a column of blocks; a row of blocks.
enum Fragment : u32 { kLeft, kRight, kSquare, kTall, kFlat };

enum class Element : u8 { kHalf, kBfloat, kTf32, kByte };
enum class Sum : u8 { kFloat, kHalf, kInteger };

// How 8-bit integers are multiplied.
enum ByteForm : u32 { kSignedA = 1, kSignedB = 2, kSaturated = 4 };

// Elements of a line of 16 bytes.
template <Element kElement>
constexpr int kLine = kElement == Element::kTf32   ? 4
                      : kElement == Element::kByte ? 16
                                                   : 8;

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

// A line along k. The hardware reads the upper 19 bits of a tf32 operand. `is_signed`: of 8-bit integers.
template <Element kElement>
EMULATOR_INLINE void widen_line(__m128i line, float* out, bool is_signed) {
  if constexpr (kElement == Element::kTf32) {
    _mm_store_ps(out, _mm_castsi128_ps(_mm_and_si128(line, _mm_set1_epi32(~0x1FFF))));
  } else if constexpr (kElement == Element::kByte) {
    const __m128i upper = _mm_srli_si128(line, 8);
    _mm256_store_ps(out, _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(line) : _mm256_cvtepu8_epi32(line)));
    _mm256_store_ps(out + 8, _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(upper) : _mm256_cvtepu8_epi32(upper)));
  } else {
    _mm256_store_ps(out, widen<kElement>(line));
  }
}

// Left operand: the rows of a block along k, widened, into a matrix with `depth` columns.
template <Element kElement>
EMULATOR_INLINE void widen_left(const __m128i (&rows)[kBlock], float* out, int depth, bool is_signed = false) {
  for (int i = 0; i < kBlock; ++i) widen_line<kElement>(rows[i], out + i * depth, is_signed);
}

// Right operand: out[k][n] of a block whose rows are n, with the columns in the order of the accumulators.
template <Element kElement, Order kOrder>
EMULATOR_INLINE void widen_right(const __m128i (&rows)[kBlock], float* out, bool is_signed = false) {
  __m128i ordered[kBlock];
  for (int i = 0; i < kBlock; ++i) ordered[i] = rows[kOrder == Order::kPlain ? i : i < 4 ? 2 * i : 2 * i - 7];
  if constexpr (kLine<kElement> != kBlock) {
    alignas(32) float lines[kBlock][kLine<kElement>];
    for (int i = 0; i < kBlock; ++i) widen_line<kElement>(ordered[i], lines[i], is_signed);
    for (int k = 0; k < kLine<kElement>; ++k) {
      for (int i = 0; i < kBlock; ++i) out[k * kBlock + i] = lines[i][k];
    }
    return;
  }
  transpose(ordered);
  for (int i = 0; i < kBlock; ++i) widen_line<kElement>(ordered[i], out + i * kBlock, is_signed);
}

EMULATOR_INLINE void load_block(const u8* lanes, __m128i (&rows)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) rows[i] = load_row(lanes + 16 * i);
}
EMULATOR_INLINE void store_block(u8* lanes, const __m128i (&rows)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) store_row(lanes + 16 * i, rows[i]);
}

// Sums (8x8) += left (8 x kDepth) * right (kDepth x 8). Products of halves and tf32 are exact; sums round to nearest, in the
// order of k.
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

// Sums that left the range of f32 once more, from what they were `before`: on the hardware products of bf16 or tf32 that are
// larger than that may still cancel.
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

// Adds s32 accumulators to sums of products of 8-bit integers, which are exact in f32. The results are bits of s32.
EMULATOR_INLINE void add_integers(const __m256 (&before)[kBlock], __m256 (&sums)[kBlock], bool saturated) {
  for (int i = 0; i < kBlock; ++i) {
    const __m256i held = _mm256_castps_si256(before[i]), more = _mm256_cvtps_epi32(sums[i]);
    const __m256i sum = _mm256_add_epi32(held, more);
    const __m256i limit = _mm256_xor_si256(_mm256_srai_epi32(held, 31), _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i overflow = _mm256_andnot_si256(_mm256_xor_si256(held, more), _mm256_xor_si256(held, sum));
    sums[i] = _mm256_castsi256_ps(sum);
    if (saturated) sums[i] = _mm256_blendv_ps(sums[i], _mm256_castsi256_ps(limit), _mm256_castsi256_ps(overflow));
  }
}

// The same from what `load` fills sums with. `saturated`: of integers, which else wrap around.
template <Element kElement, int kDepth, typename Load>
EMULATOR_INLINE void accumulate_from(Load&& load, __m256 (&sums)[kBlock], const float* left, const float* right,
                                     bool saturated = false) {
  if constexpr (kElement == Element::kByte) {
    __m256 before[kBlock];
    load(before);
    for (__m256& row : sums) row = _mm256_setzero_ps();
    accumulate<kDepth>(sums, left, right);
    return add_integers(before, sums, saturated);
  }
  load(sums);
  accumulate<kDepth>(sums, left, right);
  if (kElement == Element::kHalf || all_finite(sums)) return;
  __m256 before[kBlock];
  load(before);
  accumulate_widely<kDepth>(sums, before, left, right);
}

// Accumulators of one block in the registers of a warp; the second register is not for halves. Those of s32 are bits.
template <Sum kSum, Order kOrder>
EMULATOR_INLINE void load_sums(const u8* first, const u8* second, __m256 (&sums)[kBlock]) {
  static_assert(kSum == Sum::kHalf || kOrder == Order::kSplit, "blocks of 32 bits lie split in their registers");
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
    const __m256 unordered = _mm256_cmp_ps(sums[i], sums[i], _CMP_UNORD_Q);
    const __m256 row = kSum == Sum::kInteger ? sums[i] : _mm256_blendv_ps(sums[i], nan, unordered);
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
