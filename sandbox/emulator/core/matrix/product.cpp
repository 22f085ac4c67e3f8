#include "matrix/product.hpp"

namespace emulator {

namespace {

constexpr int kRows = 64, kMostColumns = 256;

template <Element kElement>
constexpr int kDepth = 2 * kLine<kElement>;

// Both operands, widened: A as rows along k, B as blocks of eight columns, each k by 8.
template <int kDepth>
struct Widened {
  alignas(32) float left[kRows / kBlock][kBlock * kDepth];
  alignas(32) float right[kMostColumns / kBlock][kDepth * kBlock];
};

EMULATOR_INLINE __m128i load_line(const SharedView& smem, u32 offset) {
  if (offset < smem.begin || offset >= smem.end || smem.end - offset < 16) return _mm_set1_epi8(-1);
  return load_row(smem.bytes + offset);
}

// A core matrix with one row of the operand, eight k, in each vector.
EMULATOR_INLINE void load_core(const SharedView& smem, const SharedMatrix& operand, bool mn_major, u32 group, u32 half,
                               __m128i (&rows)[kBlock]) {
  for (u32 i = 0; i < kBlock; ++i) rows[i] = load_line(smem, operand.line(group, half, i));
  if (mn_major) transpose(rows);
}

EMULATOR_INLINE void negate(float* values, int count) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < count; i += kBlock) _mm256_store_ps(values + i, _mm256_xor_ps(_mm256_load_ps(values + i), sign));
}

template <Element kElement>
using Operands = Widened<kDepth<kElement>>;

template <Element kElement>
void widen_shared_left(const ProductForm& form, const SharedView& smem, u64 descriptor, Operands<kElement>& out) {
  const SharedMatrix operand(descriptor, form.a_mn_major);
  for (u32 group = 0; group < kRows / kBlock; ++group) {
    for (u32 half = 0; half < 2; ++half) {
      __m128i rows[kBlock];
      load_core(smem, operand, form.a_mn_major, group, half, rows);
      widen_left<kElement>(rows, out.left[group] + half * kLine<kElement>, kDepth<kElement>, form.bytes & kSignedA);
    }
  }
}

// Warp w has rows 16*w and up: the layout of mma with 32 bytes of k.
template <Element kElement>
void widen_register_left(const ProductForm& form, const ProductRegisters& registers, Operands<kElement>& out) {
  for (int warp = 0; warp < 4; ++warp) {
    for (int i = 0; i < 4; ++i) {
      __m128i rows[kBlock];
      load_block(registers.files[warp] + registers.a[i], rows);
      float* left = out.left[2 * warp + (i & 1)] + (i >> 1) * kLine<kElement>;
      widen_left<kElement>(rows, left, kDepth<kElement>, form.bytes & kSignedA);
    }
  }
}

template <Element kElement, Order kOrder>
void widen_shared_right(const ProductForm& form, const SharedView& smem, u64 descriptor, Operands<kElement>& out) {
  const SharedMatrix operand(descriptor, form.b_mn_major);
  for (u32 group = 0; group < form.columns / kBlock; ++group) {
    for (u32 half = 0; half < 2; ++half) {
      float* block = out.right[group] + half * kLine<kElement> * kBlock;
      __m128i rows[kBlock];
      load_core(smem, operand, false, group, half, rows);
      if (!form.b_mn_major) {
        widen_right<kElement, kOrder>(rows, block, form.bytes & kSignedB);
        continue;
      }
      if constexpr (kLine<kElement> == kBlock) {
        for (int k = 0; k < kBlock; ++k) {
          const __m128i row = kOrder == Order::kSplit ? split(rows[k]) : rows[k];
          _mm256_store_ps(block + k * kBlock, widen<kElement>(row));
        }
      }
    }
  }
}

template <Element kElement, Sum kSum, Order kOrder>
void multiply_widened(const ProductForm& form, const Operands<kElement>& operands, const ProductRegisters& registers,
                      bool accumulate) {
  constexpr int kStep = kSum == Sum::kHalf ? 2 : 4;  // registers of eight columns
  for (int warp = 0; warp < 4; ++warp) {
    for (u32 group = 0; group < form.columns / kBlock; ++group) {
      for (int half = 0; half < 2; ++half) {
        const u32* slots = registers.sums + group * kStep + half * (kStep / 2);
        u8 *first = registers.files[warp] + slots[0], *second = registers.files[warp] + slots[kStep / 2 - 1];
        __m256 sums[kBlock];
        const auto load = [&](__m256(&to)[kBlock]) {
          if (accumulate) {
            load_sums<kSum, kOrder>(first, second, to);
          } else {
            for (__m256& row : to) row = _mm256_setzero_ps();
          }
        };
        accumulate_from<kElement, kDepth<kElement>>(load, sums, operands.left[2 * warp + half], operands.right[group],
                                                    form.bytes & kSaturated);
        store_sums<kSum, kOrder>(first, second, sums);
      }
    }
  }
}

template <Element kElement, Sum kSum>
void multiply_as(const ProductForm& form, const SharedView& smem, u64 a, u64 b, const ProductRegisters& registers,
                 bool accumulate) {
  constexpr Order kOrder = kSum == Sum::kHalf ? Order::kPlain : Order::kSplit;
  Operands<kElement> operands;
  if (registers.a) {
    widen_register_left<kElement>(form, registers, operands);
  } else {
    widen_shared_left<kElement>(form, smem, a, operands);
  }
  if (form.negative) negate(operands.left[0], kRows * kDepth<kElement>);
  widen_shared_right<kElement, kOrder>(form, smem, b, operands);
  multiply_widened<kElement, kSum, kOrder>(form, operands, registers, accumulate);
}

}  // namespace

void multiply(const ProductForm& form, const SharedView& smem, u64 a, u64 b, const ProductRegisters& registers,
              bool accumulate) {
  switch (form.element) {
    case Element::kBfloat:
      return multiply_as<Element::kBfloat, Sum::kFloat>(form, smem, a, b, registers, accumulate);
    case Element::kTf32:
      return multiply_as<Element::kTf32, Sum::kFloat>(form, smem, a, b, registers, accumulate);
    case Element::kByte:
      return multiply_as<Element::kByte, Sum::kInteger>(form, smem, a, b, registers, accumulate);
    case Element::kHalf:
      if (form.sum == Sum::kHalf) return multiply_as<Element::kHalf, Sum::kHalf>(form, smem, a, b, registers, accumulate);
      return multiply_as<Element::kHalf, Sum::kFloat>(form, smem, a, b, registers, accumulate);
  }
}

}  // namespace emulator
