// Rules of products, barriers and asynchronous work.
#include "asynchronous/reduction.hpp"
#include "taint/rule.hpp"

namespace emulator {

namespace {

// Lanes in which a slot or an address of an operation is old; none if it is not given.
u32 old_operand(Warp& warp, const Op& op, const Operand& operand) {
  if (operand.role == Role::kNumber || operand.role == Role::kList || !operand(op)) return 0;
  const bool narrow = operand.role == Role::kAddress && operand.bytes_of(op) == 4;
  return old_lanes(warp, operand(op), narrow ? 4 : operand.bytes);
}

// Reports old contents in the operands that an operation reads: all that it declares but its result.
void require_written(Warp& warp, const Op& op, u32 mask, const Rule& rule, Field result = Field::kNone) {
  u32 old = 0;
  for (const Operand& operand : rule.real->operands) {
    if (operand.field != result) old |= old_operand(warp, op, operand);
  }
  reach_fault(warp, op, old & mask, kControlFault);
}

}  // namespace

// Slots in the list: d, a, b, c; see mma.cpp for their order.
void taint_multiply(Warp& warp, const Op& op, u32, const Rule& rule) {
  const u32* slots = listed(warp, op);
  const auto of = [&](u32 index) { return warp.registers + shadow(warp, slots[index]); };
  const u32 blocks = rule.rows * rule.columns, to = rule.to_bytes > 2 ? 2 : 1, from = rule.from_bytes > 2 ? 2 : 1;
  const u32 line = rule.to_bytes == 8 ? 2 * kRowBytes : kRowBytes;
  const u32 left = to * blocks, right = left + rule.rows * rule.depth, sums = right + rule.columns * rule.depth;
  u8 rows[4] = {}, columns[2] = {};
  OldElements old[4];
  for (u32 k = 0; k < rule.depth; ++k) {
    for (u32 i = 0; i < rule.rows; ++i) rows[i] |= rows_of(of(left + (i & 1) + 2 * k + 2 * rule.depth * (i >> 1)), line);
    for (u32 j = 0; j < rule.columns; ++j) columns[j] |= rows_of(of(right + k + rule.depth * j), line);
  }
  for (u32 i = 0; i < blocks; ++i) {
    old[i] = SumBlock{of(sums + from * i), of(sums + from * i + from - 1), rule.from_bytes}.read();
  }
  for (u32 i = 0; i < blocks; ++i) {
    SumBlock{of(to * i), of(to * i + to - 1), rule.to_bytes}.write(rows[i % rule.rows], columns[i / rule.rows], old[i]);
  }
}

void taint_barrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  require_written(warp, op, mask, rule, Field::kD);
  if (op.d && rule.real->signature.d) {
    set_lanes(warp, op.d, op.p == kReducePopc ? 4 : u32{kMask}, mask, 0);  // a count, or a predicate
  }
}

void taint_mbarrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  require_written(warp, op, mask, rule, Field::kD);
  if (op.d) set_lanes(warp, op.d, rule.real->signature.d, mask, 0);
}

// Coordinates of a tensor are addresses.
void taint_bulk(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  require_written(warp, op, mask, rule);
  if (rule.real->signature.list != 4) return;
  const u32* slots = listed(warp, op);
  for (u32 i = 0; i < op.count; ++i) reach_fault(warp, op, slots[i] ? old_lanes(warp, slots[i], 4) & mask : 0, kAddressFault);
}

// The source is followed by keep_taint.
void taint_copy(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  reach_fault(warp, op, old_operand(warp, op, rule.real->operands.front()) & mask, kAddressFault);
}

// The registers and shared memory that it reads are followed when it is executed.
void taint_warpgroup_product(Warp& warp, const Op& op, u32 mask, const Rule& rule) { require_written(warp, op, mask, rule); }

void taint_nothing(Warp&, const Op&, u32, const Rule&) {}

}  // namespace emulator
