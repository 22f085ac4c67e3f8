// mma and wmma.mma: products of fragments in the registers of one warp.
//
// A fragment of A has a register for every 8x8 block: those of 16 rows before those of the next 16, and among them k 0..7 of
// both row blocks before k 8..15. Fragments of B: the two k blocks of 8 columns, then those of the next 8. Accumulators: the
// row blocks of 8 columns, then those of the next 8. That is PTX's layout for mma; for wmma, where PTX leaves it open, it is
// what ptxas makes of wmma.load for sm_90. m8n32k16 is m32n8k16 with the operands exchanged and the product transposed.
#include "machine/machine.hpp"
#include "matrix/block.hpp"

namespace emulator {

namespace {

// Blocks of rows, columns and k of a product.
struct Extent {
  int rows, columns, depth;
};
constexpr Extent kM16n8k16{2, 1, 2}, kM16n8k8{2, 1, 1}, kM16n16k16{2, 2, 2}, kM32n8k16{4, 1, 2};

constexpr int left_register(Extent extent, int row, int k) { return (row & 1) + 2 * k + 2 * extent.depth * (row >> 1); }

constexpr int sum_registers(Sum sum, Extent extent) { return (sum == Sum::kFloat ? 2 : 1) * extent.rows * extent.columns; }

template <Extent kExtent, Element kElement, Sum kTo, Sum kFrom>
struct FragmentProduct {
  static constexpr Order kOrder = kTo == Sum::kFloat || kFrom == Sum::kFloat ? Order::kSplit : Order::kPlain;
  static constexpr int kDepth = kBlock * kExtent.depth;
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
    for (int k = 0; k < kExtent.depth; ++k) {
      __m128i rows[kBlock];
      for (int i = 0; i < kExtent.rows; ++i) {
        load_block(lanes(kLeft + left_register(kExtent, i, k)), rows);
        widen_left<kElement>(rows, left[i] + k * kBlock, kDepth);
      }
      for (int j = 0; j < kExtent.columns; ++j) {
        load_block(lanes(kRight + k + kExtent.depth * j), rows);
        widen_right<kElement, kOrder>(rows, right[j] + k * kBlock * kBlock);
      }
    }
    // Everything is read before anything is written: d may name the registers of c in another order.
    __m256 sums[kBlocks][kBlock];
    for (int i = 0; i < kBlocks; ++i) {
      constexpr int kStep = kFrom == Sum::kFloat ? 2 : 1;
      const auto load = [&](__m256(&to)[kBlock]) {
        load_sums<kFrom, kOrder>(lanes(kSums + kStep * i), lanes(kSums + kStep * i + kStep - 1), to);
      };
      accumulate_from<kElement, kDepth>(load, sums[i], left[i % kExtent.rows], right[i / kExtent.rows]);
    }
    for (int i = 0; i < kBlocks; ++i) {
      constexpr int kStep = kTo == Sum::kFloat ? 2 : 1;
      store_sums<kTo, kOrder>(lanes(kStep * i), lanes(kStep * i + kStep - 1), sums[i]);
    }
  }
};

template <Extent kExtent, Element kElement, Sum kTo, Sum kFrom>
void add(Registry& registry, const char* name) {
  using Product = FragmentProduct<kExtent, kElement, kTo, kFrom>;
  constexpr u8 kTotal = Product::kRegisters, kFirstOfA = Product::kLeft, kFirstOfB = Product::kRight,
               kFirstOfC = Product::kSums;
  const auto registers = [](const char* matrix, u8 count) { return list(matrix, 4, count, count); };
  registry.add(name, Product::run,
               {registers("d", kFirstOfA), registers("a", kFirstOfB - kFirstOfA), registers("b", kFirstOfC - kFirstOfB),
                registers("c", kTotal - kFirstOfC)});
}

}  // namespace

// Names: shape, type of D, of A and B, of C.
void register_mma(Registry& registry) {
  constexpr Element kHalf = Element::kHalf, kBfloat = Element::kBfloat;
  constexpr Sum kF32 = Sum::kFloat, kF16 = Sum::kHalf;
  add<kM16n8k16, kHalf, kF32, kF32>(registry, "mma.m16n8k16.f32.f16.f32");
  add<kM16n8k16, kBfloat, kF32, kF32>(registry, "mma.m16n8k16.f32.bf16.f32");
  add<kM16n8k16, kHalf, kF16, kF16>(registry, "mma.m16n8k16.f16.f16.f16");
  add<kM16n8k8, kHalf, kF32, kF32>(registry, "mma.m16n8k8.f32.f16.f32");
  add<kM16n8k8, kBfloat, kF32, kF32>(registry, "mma.m16n8k8.f32.bf16.f32");
  add<kM16n8k8, kHalf, kF16, kF16>(registry, "mma.m16n8k8.f16.f16.f16");
  add<kM16n16k16, kHalf, kF32, kF32>(registry, "mma.m16n16k16.f32.f16.f32");
  add<kM16n16k16, kHalf, kF32, kF16>(registry, "mma.m16n16k16.f32.f16.f16");
  add<kM16n16k16, kHalf, kF16, kF32>(registry, "mma.m16n16k16.f16.f16.f32");
  add<kM16n16k16, kHalf, kF16, kF16>(registry, "mma.m16n16k16.f16.f16.f16");
  add<kM16n16k16, kBfloat, kF32, kF32>(registry, "mma.m16n16k16.f32.bf16.f32");
  add<kM32n8k16, kHalf, kF32, kF32>(registry, "mma.m32n8k16.f32.f16.f32");
  add<kM32n8k16, kHalf, kF32, kF16>(registry, "mma.m32n8k16.f32.f16.f16");
  add<kM32n8k16, kHalf, kF16, kF32>(registry, "mma.m32n8k16.f16.f16.f32");
  add<kM32n8k16, kHalf, kF16, kF16>(registry, "mma.m32n8k16.f16.f16.f16");
  add<kM32n8k16, kBfloat, kF32, kF32>(registry, "mma.m32n8k16.f32.bf16.f32");
}

}  // namespace emulator
