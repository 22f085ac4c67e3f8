// The arithmetic of wgmma: D (64 x N) += A (64 x K) * B (K x N) of one warpgroup, and where its operands lie. K has 32 bytes.
#pragma once

#include "matrix/block.hpp"

namespace emulator {

// An operand in shared memory as a matrix descriptor lays it out.
//
// It consists of core matrices of eight lines of 16 bytes. K-major: a line is 16 bytes along k of one row (of A, or of B
// transposed). MN-major, of halves only: a line is eight rows of one k. `group` counts eight rows, `half` 16 bytes along k.
// Without swizzle the lines of a core matrix are contiguous; with it each is a part of a line of the swizzle's width, and XOR
// moves it within that. Source: PTX ISA, "Strides" and "Matrix Descriptor Format" of wgmma; the layouts are those that
// CUTLASS's make_gmma_desc documents.
class SharedMatrix {
 public:
  SharedMatrix(u64 descriptor, bool mn_major) {
    constexpr u32 kWidths[4] = {16, 128, 64, 32};  // bytes of a line, by swizzle mode
    const u32 width = kWidths[descriptor >> 62];
    const u32 leading = field(descriptor, 16), stride = field(descriptor, 32);
    const bool swizzled = width > 16;
    start_ = field(descriptor, 0);
    pitch_ = width;
    swizzle_ = width - 16;
    half_ = mn_major && swizzled ? stride : swizzled ? 16 : leading;
    group_ = mn_major && swizzled ? leading : stride;
    groups_a_line_ = mn_major ? width / 16 : 1;
  }

  // Offset in shared memory of a line of a core matrix; a multiple of 16, and no more than 2^25.
  EMULATOR_INLINE u32 line(u32 group, u32 half, u32 index) const {
    const u32 plain = core(group, half) + index * pitch_;
    return plain ^ (plain >> 3 & swizzle_);
  }

  // Calls `visit(offset)` for each of the 16-byte lines of an operand with that many rows.
  template <typename Visitor>
  void visit_lines(u32 rows, Visitor&& visit) const {
    for (u32 group = 0; group < rows / kBlock; ++group) {
      for (u32 half = 0; half < 2; ++half) {
        for (u32 index = 0; index < kBlock; ++index) visit(line(group, half, index));
      }
    }
  }

  // Whether the descriptor has a base offset, for patterns that do not begin at a multiple of their own size. Its effect on
  // the hardware is not modelled.
  static bool has_base_offset(u64 descriptor) { return descriptor >> 49 & 7; }

 private:
  static u32 field(u64 descriptor, int bit) { return static_cast<u32>(descriptor >> bit & 0x3FFF) << 4; }
  EMULATOR_INLINE u32 core(u32 group, u32 half) const {
    return start_ + group / groups_a_line_ * group_ + group % groups_a_line_ * 16 + half * half_;
  }

  u32 start_, pitch_, swizzle_, half_, group_, groups_a_line_;
};

// Shared memory of a CTA: offsets [begin, end) of `bytes`.
struct SharedView {
  const u8* bytes;
  u32 begin, end;
};

// Bits of an operation that say what is multiplied.
enum WgmmaForm : u32 {
  kBfloatOperands = 1,
  kHalfSums = 2,
  kNegativeA = 4,
  kNegativeB = 8,
  kColumnsOfA = 16,
  kRowsOfB = 32,
  kRegistersOfA = 64,
  kTf32Operands = 128,
  kByteOperands = 256,
};

constexpr u32 kElements = kBfloatOperands | kTf32Operands | kByteOperands;  // none of them: f16

struct ProductForm {
  u32 columns = 8;  // N: 8 to 256 in steps of 8
  Element element = Element::kHalf;
  Sum sum = Sum::kFloat;
  bool negative = false;  // one of the two scale factors is -1
  bool a_mn_major = false, b_mn_major = false;
  u32 bytes = 0;  // ByteForm
};

// Registers of the warpgroup's warps: the same slots in each of four register files.
struct ProductRegisters {
  u8* files[4];
  const u32* sums;  // N/2 slots with f32 and s32 accumulators, N/4 with f16
  const u32* a;     // four slots, null where A lies in shared memory
};

// What lies outside of shared memory is read as bytes of 0xFF, which make NaN. Without `accumulate` the old D is not read.
// Half accumulators are summed in f32 and rounded at the end.
void multiply(const ProductForm& form, const SharedView& smem, u64 a, u64 b, const ProductRegisters& registers,
              bool accumulate);

}  // namespace emulator
