// What loads, stores and atomics share: their operands, the address of a lane, and the memory there.
#pragma once

#include <utility>

#include "machine/machine.hpp"

namespace emulator {

template <typename Address>
constexpr Operand kAddressOf = address("address", Field::kA, sizeof(Address));
constexpr Operand kSpaceOf = number("space", Field::kP, "Space");
constexpr Operand kSemanticsOf = number("semantics", Field::kQ, "Semantics");
constexpr Operand kOwnShared = number("own_shared", Field::kR);  // 1 where a shared address must be one of the CTA itself
constexpr Operand kScopeOf = number("scope", Field::kS, "Scope");

// Of a load, store or atomic with these registers.
template <typename Address>
std::vector<Operand> memory_operands(std::vector<Operand> registers) {
  registers.insert(registers.end(), {kAddressOf<Address>, kSpaceOf, kSemanticsOf, kOwnShared, kScopeOf});
  return registers;
}

inline Space space_of(const Op& op) { return static_cast<Space>(kSpaceOf(op)); }

template <typename Address>
u64 effective_address(Warp& warp, const Op& op, int lane) {
  return static_cast<Address>(warp.lanes<Address>(kAddressOf<Address>(op))[lane] + static_cast<Address>(op.imm));
}

// Null after a report. `poison`: as in memory_at.
inline u8* reach(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison) {
  if (kOwnShared(op) && (address & ~u64{kOffsetMask}) != u64{warp.cta->rank} << kRankShift) {
    report(warp, op, 1u << lane, detector::kSharedOutOfBounds, address, "not an address of the CTA's own shared memory");
    return nullptr;
  }
  Touch touch;
  touch.strong = kSemanticsOf(op) != kWeak;
  return memory_at(warp, op, lane, space_of(op), address, bytes, access, poison, touch);
}

inline MemoryOrder order_of(const Op& op) {
  return {static_cast<Semantics>(kSemanticsOf(op)), static_cast<Scope>(kScopeOf(op))};
}
inline bool has_order(const OpRecord& op) { return kSemanticsOf(op) <= kAcquireRelease && kScopeOf(op) < kScopes; }

inline const u32* listed(Warp& warp, const Op& op) { return warp.run->program.lists.data() + op.list; }

}  // namespace emulator
