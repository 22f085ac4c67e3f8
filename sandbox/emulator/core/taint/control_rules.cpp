// Rules of products, barriers and asynchronous work.
#include "taint/rule.hpp"

namespace emulator {

namespace {

// Addresses that may have 4 or 8 bytes say in p, q and r how many; results of barriers are not old.
struct Needed {
  u32 slot, bytes;
};

void require(Warp& warp, const Op& op, u32 mask, std::initializer_list<Needed> operands, const char* what) {
  u32 old = 0;
  for (const Needed& each : operands) old |= each.slot ? old_lanes(warp, each.slot, each.bytes) : 0;
  reach_fault(warp, op, old & mask, what);
}

}  // namespace

// Slots in the list: d, a, b, c; see mma.cpp for their order.
void taint_multiply(Warp& warp, const Op& op, u32, const Rule& rule) {
  const u32* slots = listed(warp, op);
  const auto of = [&](u32 index) { return warp.registers + shadow(warp, slots[index]); };
  const u32 blocks = rule.rows * rule.columns, to = rule.to_floats ? 2 : 1, from = rule.from_floats ? 2 : 1;
  const u32 left = to * blocks, right = left + rule.rows * rule.depth, sums = right + rule.columns * rule.depth;
  u8 rows[4] = {}, columns[2] = {};
  OldElements old[4];
  for (u32 k = 0; k < rule.depth; ++k) {
    for (u32 i = 0; i < rule.rows; ++i) rows[i] |= rows_of(of(left + (i & 1) + 2 * k + 2 * rule.depth * (i >> 1)));
    for (u32 j = 0; j < rule.columns; ++j) columns[j] |= rows_of(of(right + k + rule.depth * j));
  }
  for (u32 i = 0; i < blocks; ++i) {
    old[i] = SumBlock{of(sums + from * i), of(sums + from * i + from - 1), rule.from_floats}.read();
  }
  for (u32 i = 0; i < blocks; ++i) {
    SumBlock{of(to * i), of(to * i + to - 1), rule.to_floats}.write(rows[i % rule.rows], columns[i / rule.rows], old[i]);
  }
}

void taint_barrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  require(warp, op, mask, {{op.a, 4}, {op.b, 4}, {op.c, kMask}}, kControlFault);
  if (op.d && rule.real->signature.d) {
    set_lanes(warp, op.d, op.p == 3 ? 4 : u32{kMask}, mask, 0);  // a count, or a predicate
  }
}

void taint_mbarrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const Signature& bytes = rule.real->signature;
  const u32 second = bytes.b == 8 && op.r ? 4 : bytes.b;  // the parity or the state that is waited for
  require(warp, op, mask, {{op.a, op.p == 4 ? 4u : 8u}, {bytes.b ? op.b : 0, second}, {bytes.c ? op.c : 0, 4}}, kControlFault);
  if (op.d) set_lanes(warp, op.d, bytes.d, mask, 0);
}

void taint_bulk(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const Signature& bytes = rule.real->signature;
  const auto width = [](u32 said) { return said == 4 ? 4u : 8u; };
  const bool peer = bytes.d && bytes.c && op.r;  // a range of shared memory is copied to a peer
  require(warp, op, mask,
          {{op.a, width(op.p)},
           {bytes.b ? op.b : 0, peer ? width(op.r) : 8},
           {bytes.c ? op.c : 0, width(op.q)},
           {bytes.d ? op.d : 0, 4},
           {bytes.e ? op.e : 0, 2}},
          kControlFault);
  if (bytes.list != 4) return;
  const u32* slots = listed(warp, op);
  for (u32 i = 0; i < op.count; ++i) require(warp, op, mask, {{slots[i], 4}}, kAddressFault);
}

void taint_copy(Warp& warp, const Op& op, u32 mask, const Rule&) {
  require(warp, op, mask, {{op.a, op.q == 4 ? 4u : 8u}}, kAddressFault);
}

// The registers and shared memory that it reads are looked at when it is executed.
void taint_warpgroup_product(Warp& warp, const Op& op, u32 mask, const Rule&) {
  constexpr u32 kRegisterA = 64;
  require(warp, op, mask, {{op.q & kRegisterA ? 0 : op.a, 8}, {op.b, 8}, {op.c, kMask}}, kControlFault);
}

void taint_nothing(Warp&, const Op&, u32, const Rule&) {}

}  // namespace emulator
