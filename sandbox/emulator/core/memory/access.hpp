// What loads, stores and atomics share: the address of a lane, and the memory there.
//
// Operations of this kind have a: the address, 4 or 8 bytes a lane; imm: an offset; list: their registers; p: Space;
// q: Semantics, s: its Scope; r: 1 where a shared address must be one of the CTA itself.
#pragma once

#include "machine/machine.hpp"

namespace emulator {

template <typename Address>
u64 effective_address(Warp& warp, const Op& op, int lane) {
  return static_cast<Address>(warp.lanes<Address>(op.a)[lane] + static_cast<Address>(op.imm));
}

// Null after a report. `poison`: as in memory_at.
inline u8* reach(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison) {
  if (op.r && (address & ~u64{kOffsetMask}) != u64{warp.cta->rank} << kRankShift) {
    report(warp, op, 1u << lane, "shared-out-of-bounds", address, "not an address of the CTA's own shared memory");
    return nullptr;
  }
  Touch touch;
  touch.strong = op.q != kWeak;
  return memory_at(warp, op, lane, static_cast<Space>(op.p), address, bytes, access, poison, touch);
}

inline MemoryOrder order_of(const Op& op) { return {static_cast<Semantics>(op.q), static_cast<Scope>(op.s)}; }
inline bool has_order(const OpRecord& op) { return op.q <= kAcquireRelease && op.s < kScopes; }

inline const u32* listed(Warp& warp, const Op& op) { return warp.run->program.lists.data() + op.list; }

}  // namespace emulator
