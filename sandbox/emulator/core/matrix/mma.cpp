// mma and wmma.mma: products of fragments in the registers of one warp.
//
// A fragment of A has a register for every block of eight rows: those of 16 rows before those of the next 16, and among them
// the first k of both row blocks before the next ones. Fragments of B: the k blocks of 8 columns, then those of the next 8.
// Accumulators: the row blocks of 8 columns, then those of the next 8. That is PTX's layout for mma; for wmma, where PTX leaves
// it open, it is what ptxas makes of wmma.load for sm_80 and sm_90. m8n32k16 is m32n8k16 with the operands exchanged and the
// product transposed. A block of f64 is the same with four k in a line of 32 bytes.
#include <algorithm>
#include <cmath>

#include "machine/machine.hpp"
#include "matrix/block.hpp"

namespace emulator {

namespace {

// Blocks of rows, columns and k of a product.
struct Extent {
  int rows, columns, depth;
};
constexpr Extent kOne{1, 1, 1}, kTwoByOne{2, 1, 1}, kTwoByTwo{2, 1, 2}, kTwoByFour{2, 1, 4};
constexpr Extent kSquareBy1{2, 2, 1}, kSquareBy2{2, 2, 2}, kTallBy1{4, 1, 1}, kTallBy2{4, 1, 2};
constexpr Operand kBytes = optional(number("bytes", Field::kP, "ByteForm"));

constexpr int left_register(Extent extent, int row, int k) { return (row & 1) + 2 * k + 2 * extent.depth * (row >> 1); }

constexpr int sum_registers(Sum sum, Extent extent) { return (sum == Sum::kHalf ? 1 : 2) * extent.rows * extent.columns; }

template <Extent kExtent, Element kElement, Sum kTo, Sum kFrom>
struct FragmentProduct {
  static constexpr Order kOrder = kTo != Sum::kHalf || kFrom != Sum::kHalf ? Order::kSplit : Order::kPlain;
  static constexpr int kBlockDepth = kLine<kElement>, kDepth = kBlockDepth * kExtent.depth;
  static constexpr int kBlocks = kExtent.rows * kExtent.columns;
  static constexpr int kLeft = sum_registers(kTo, kExtent);
  static constexpr int kRight = kLeft + kExtent.rows * kExtent.depth;
  static constexpr int kSums = kRight + kExtent.columns * kExtent.depth;
  static constexpr int kRegisters = kSums + sum_registers(kFrom, kExtent);

  // Slots in the list: d, a, b, c.
  static void run(Warp& warp, const Op& op, u32 mask) {
    if (!require_whole_warp(warp, op, mask)) return;
    const u32* slots = warp.run->program.lists.data() + op.list;
    alignas(32) float left[kExtent.rows][kBlock * kDepth];
    alignas(32) float right[kExtent.columns][kDepth * kBlock];
    const auto lanes = [&](int index) { return warp.registers + slots[index]; };
    const u32 bytes = kBytes(op);
    for (int k = 0; k < kExtent.depth; ++k) {
      __m128i rows[kBlock];
      for (int i = 0; i < kExtent.rows; ++i) {
        load_block(lanes(kLeft + left_register(kExtent, i, k)), rows);
        widen_left<kElement>(rows, left[i] + k * kBlockDepth, kDepth, bytes & kSignedA);
      }
      for (int j = 0; j < kExtent.columns; ++j) {
        load_block(lanes(kRight + k + kExtent.depth * j), rows);
        widen_right<kElement, kOrder>(rows, right[j] + k * kBlockDepth * kBlock, bytes & kSignedB);
      }
    }
    // Everything is read before anything is written: d may name the registers of c in another order.
    __m256 sums[kBlocks][kBlock];
    for (int i = 0; i < kBlocks; ++i) {
      constexpr int kStep = kFrom == Sum::kHalf ? 1 : 2;
      const auto load = [&](__m256(&to)[kBlock]) {
        load_sums<kFrom, kOrder>(lanes(kSums + kStep * i), lanes(kSums + kStep * i + kStep - 1), to);
      };
      accumulate_from<kElement, kDepth>(load, sums[i], left[i % kExtent.rows], right[i / kExtent.rows], bytes & kSaturated);
    }
    for (int i = 0; i < kBlocks; ++i) {
      constexpr int kStep = kTo == Sum::kHalf ? 1 : 2;
      store_sums<kTo, kOrder>(lanes(kStep * i), lanes(kStep * i + kStep - 1), sums[i]);
    }
  }
};

// Each sum is a chain of fused multiply-adds in the order of k.
template <Extent kExtent>
struct DoubleProduct {
  static constexpr int kBlocks = kExtent.rows * kExtent.columns, kBlockDepth = 4;
  static constexpr int kLeft = 2 * kBlocks, kRight = kLeft + kExtent.rows * kExtent.depth;
  static constexpr int kSums = kRight + kExtent.columns * kExtent.depth, kRegisters = kSums + 2 * kBlocks;

  static void run(Warp& warp, const Op& op, u32 mask) {
    if (!require_whole_warp(warp, op, mask)) return;
    const u32* slots = warp.run->program.lists.data() + op.list;
    const auto lanes = [&](int index) { return warp.lanes<double>(slots[index]); };
    double sums[2 * kBlocks][kLanes];
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int block = i / 2, odd = i % 2;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2 + odd;
        double sum = lanes(kSums + i)[lane];
        for (int k = 0; k < kExtent.depth * kBlockDepth; ++k) {
          const double* left = lanes(kLeft + left_register(kExtent, block % kExtent.rows, k / kBlockDepth));
          const double* right = lanes(kRight + k / kBlockDepth + kExtent.depth * (block / kExtent.rows));
          sum = std::fma(left[row * 4 + k % kBlockDepth], right[column * 4 + k % kBlockDepth], sum);
        }
        sums[i][lane] = sum;
      }
    }
    for (int i = 0; i < 2 * kBlocks; ++i) std::copy_n(sums[i], kLanes, lanes(i));
  }
};

template <typename Product>
void add(Registry& registry, const char* name, u8 bytes) {
  constexpr u8 kTotal = Product::kRegisters, kFirstOfA = Product::kLeft, kFirstOfB = Product::kRight,
               kFirstOfC = Product::kSums;
  const auto registers = [bytes](const char* matrix, u8 count) { return list(matrix, bytes, count, count); };
  registry.add(name, Product::run,
               {registers("d", kFirstOfA), registers("a", kFirstOfB - kFirstOfA), registers("b", kFirstOfC - kFirstOfB),
                registers("c", kTotal - kFirstOfC), kBytes});
}

template <Extent kExtent, Element kElement, Sum kTo, Sum kFrom>
void add(Registry& registry, const char* name) {
  add<FragmentProduct<kExtent, kElement, kTo, kFrom>>(registry, name, 4);
}

template <Extent kExtent>
void add_doubles(Registry& registry, const char* name) {
  add<DoubleProduct<kExtent>>(registry, name, 8);
}

}  // namespace

// Names: shape, type of D, of A and B, of C. b8: s8 or u8.
void register_mma(Registry& registry) {
  constexpr Element kHalf = Element::kHalf, kBfloat = Element::kBfloat, kTf32 = Element::kTf32, kByte = Element::kByte;
  constexpr Sum kF32 = Sum::kFloat, kF16 = Sum::kHalf, kS32 = Sum::kInteger;
  add<kTwoByTwo, kHalf, kF32, kF32>(registry, "mma.m16n8k16.f32.f16.f32");
  add<kTwoByTwo, kBfloat, kF32, kF32>(registry, "mma.m16n8k16.f32.bf16.f32");
  add<kTwoByTwo, kHalf, kF16, kF16>(registry, "mma.m16n8k16.f16.f16.f16");
  add<kTwoByOne, kHalf, kF32, kF32>(registry, "mma.m16n8k8.f32.f16.f32");
  add<kTwoByOne, kBfloat, kF32, kF32>(registry, "mma.m16n8k8.f32.bf16.f32");
  add<kTwoByOne, kHalf, kF16, kF16>(registry, "mma.m16n8k8.f16.f16.f16");
  add<kSquareBy2, kHalf, kF32, kF32>(registry, "mma.m16n16k16.f32.f16.f32");
  add<kSquareBy2, kHalf, kF32, kF16>(registry, "mma.m16n16k16.f32.f16.f16");
  add<kSquareBy2, kHalf, kF16, kF32>(registry, "mma.m16n16k16.f16.f16.f32");
  add<kSquareBy2, kHalf, kF16, kF16>(registry, "mma.m16n16k16.f16.f16.f16");
  add<kSquareBy2, kBfloat, kF32, kF32>(registry, "mma.m16n16k16.f32.bf16.f32");
  add<kTallBy2, kHalf, kF32, kF32>(registry, "mma.m32n8k16.f32.f16.f32");
  add<kTallBy2, kHalf, kF32, kF16>(registry, "mma.m32n8k16.f32.f16.f16");
  add<kTallBy2, kHalf, kF16, kF32>(registry, "mma.m32n8k16.f16.f16.f32");
  add<kTallBy2, kHalf, kF16, kF16>(registry, "mma.m32n8k16.f16.f16.f16");
  add<kTallBy2, kBfloat, kF32, kF32>(registry, "mma.m32n8k16.f32.bf16.f32");
  add<kTwoByOne, kTf32, kF32, kF32>(registry, "mma.m16n8k4.f32.tf32.f32");
  add<kTwoByTwo, kTf32, kF32, kF32>(registry, "mma.m16n8k8.f32.tf32.f32");
  add<kSquareBy2, kTf32, kF32, kF32>(registry, "mma.m16n16k8.f32.tf32.f32");
  add<kOne, kByte, kS32, kS32>(registry, "mma.m8n8k16.s32.b8.s32");
  add<kTwoByOne, kByte, kS32, kS32>(registry, "mma.m16n8k16.s32.b8.s32");
  add<kTwoByTwo, kByte, kS32, kS32>(registry, "mma.m16n8k32.s32.b8.s32");
  add<kSquareBy1, kByte, kS32, kS32>(registry, "mma.m16n16k16.s32.b8.s32");
  add<kTallBy1, kByte, kS32, kS32>(registry, "mma.m32n8k16.s32.b8.s32");
  add_doubles<kOne>(registry, "mma.m8n8k4.f64.f64.f64");
  add_doubles<kTwoByOne>(registry, "mma.m16n8k4.f64.f64.f64");
  add_doubles<kTwoByTwo>(registry, "mma.m16n8k8.f64.f64.f64");
  add_doubles<kTwoByFour>(registry, "mma.m16n8k16.f64.f64.f64");
}

}  // namespace emulator
