// A rule by which a handler propagates taint, and the shadows of registers.
#pragma once

#include <algorithm>
#include <string>

#include "machine/machine.hpp"
#include "memory/access.hpp"
#include "taint/taint.hpp"
#include "taint/taint_rows.hpp"

namespace emulator {

struct Rule;
using Propagate = void (*)(Warp&, const Op&, u32 mask, const Rule&);

enum Operands : u8 { kA = 1, kB = 2, kC = 4, kE = 8 };

struct Rule {
  Propagate propagate = nullptr;
  const Registered* real = nullptr;
  u8 moved = 0;                         // sources whose bits go into the result; the other sources select which
  u8 truth = 0;                         // of a bitwise operation, as of lop3
  bool effect = false;                  // has an effect besides its results in registers: memory, a barrier, asynchronous work
  bool second = false;                  // slot e is a result
  u32 results = 0;                      // maximum of listed slots that are results
  u8 rows = 0, columns = 0, depth = 0;  // blocks of an mma
  u8 to_bytes = 0, from_bytes = 0;      // of an element of its D and C
};

// ---- shadows of registers ---------------------------------------------------------------------------------------------------
inline u32 shadow(Warp& warp, u32 slot) { return slot + warp.run->shadow_offset; }

template <typename T>
inline u32 lanes_set(const T* values) {
  u32 lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= static_cast<u32>(values[lane] != 0) << lane;
  return lanes;
}

// Lanes of a slot with an old bit. `bytes`: per lane, kMask for a predicate, 0 for no operand.
inline u32 old_lanes(Warp& warp, u32 slot, u32 bytes) {
  const u32 at = shadow(warp, slot);
  switch (bytes) {
    case 0:
      return 0;
    case 1:
      return lanes_set(warp.lanes<u8>(at));
    case 2:
      return lanes_set(warp.lanes<u16>(at));
    case 4:
      return lanes_set(warp.lanes<u32>(at));
    case 8:
      return lanes_set(warp.lanes<u64>(at));
    case 16:
      return lanes_set(warp.lanes<unsigned __int128>(at));
    default:
      return warp.mask(at);
  }
}

// All bits of the lanes.
inline void set_lanes(Warp& warp, u32 slot, u32 bytes, u32 lanes, u32 old) {
  const u32 at = shadow(warp, slot);
  if (!bytes || !slot) return;  // 0 is no slot
  if (bytes == kMask) {
    u32& held = warp.mask(at);
    held = (held & ~lanes) | (old & lanes);
    return;
  }
  for (u32 left = lanes; left; left &= left - 1) {
    const u32 lane = static_cast<u32>(std::countr_zero(left));
    std::memset(warp.registers + at + lane * bytes, old >> lane & 1 ? 0xFF : 0, bytes);
  }
}

inline u32 old_sources(Warp& warp, const Op& op, const Rule& rule, u8 which) {
  const Signature& bytes = rule.real->signature;
  u32 old = 0;
  if (which & kA) old |= old_lanes(warp, op.a, bytes.a);
  if (which & kB) old |= old_lanes(warp, op.b, bytes.b);
  if (which & kC) old |= old_lanes(warp, op.c, bytes.c);
  if (which & kE && !rule.second) old |= old_lanes(warp, op.e, bytes.e);
  return old;
}

// Makes all results of an operation old in these lanes.
inline void spoil(Warp& warp, const Op& op, const Rule& rule, u32 lanes) {
  if (!lanes) return;
  const Signature& bytes = rule.real->signature;
  set_lanes(warp, op.d, bytes.d, lanes, lanes);
  if (rule.second) set_lanes(warp, op.e, bytes.e, lanes, lanes);
  const u32* slots = listed(warp, op);
  for (u32 i = 0; i < std::min(op.count, rule.results); ++i) set_lanes(warp, slots[i], bytes.list, lanes, lanes);
}

inline void reach_fault(Warp& warp, const Op& op, u32 lanes, const char* what) {
  if (lanes) report(warp, op, lanes, detector::kUninitialisedRead, 0, std::string("old, uninitialised contents reach ") + what);
}

constexpr const char* kBranchFault = "a branch";
constexpr const char* kAddressFault = "an address";
constexpr const char* kGuardFault = "the guard of a memory access or barrier";
constexpr const char* kControlFault = "an operand of a barrier, a shuffle mask or an asynchronous operation";

// Executes the handler on shadows: results and listed slots, and of the sources those in `moved`.
void on_shadows(Warp& warp, const Op& op, u32 mask, const Rule& rule);

// ---- rules ------------------------------------------------------------------------------------------------------------------
void taint_general(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_clean(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_move(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_bitwise(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_halves(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_narrow_two(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_across(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_vote(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_shuffle(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_load(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_load_fragment(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_store(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_atomic(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_discard(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_multiply(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_barrier(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_mbarrier(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_bulk(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_copy(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_warpgroup_product(Warp& warp, const Op& op, u32 mask, const Rule& rule);
void taint_nothing(Warp& warp, const Op& op, u32 mask, const Rule& rule);

}  // namespace emulator
