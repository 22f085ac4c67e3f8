// Rules of loads, stores, atomics and fragments in memory.
#include "taint/rule.hpp"

namespace emulator {

namespace {

u64 address_of(Warp& warp, const Op& op, int lane, const Rule& rule) {
  return rule.real->signature.a == 4 ? effective_address<u32>(warp, op, lane) : effective_address<u64>(warp, op, lane);
}

u8* shadow_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes) {
  warp.run->shadowing = true;
  u8* at = reach(warp, op, lane, address, bytes, Access::kWrite, nullptr);
  warp.run->shadowing = false;
  return at;
}

}  // namespace

// A value from an old address is old.
void taint_load(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kA | kB) & mask;
  on_shadows(warp, op, mask, rule);
  spoil(warp, op, rule, lost);
}

void taint_load_fragment(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kA | kB) & mask;
  on_shadows(warp, op, mask, rule);
  spoil(warp, op, rule, lost ? mask : 0);
}

void taint_store(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  reach_fault(warp, op, old_sources(warp, op, rule, kA | kB) & mask, kAddressFault);
  on_shadows(warp, op, mask, rule);
}

// Results are what memory held; it then holds what depends on all that took part, but after an exchange.
void taint_atomic(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  reach_fault(warp, op, old_sources(warp, op, rule, kA) & mask, kAddressFault);
  const u32 bytes = rule.real->signature.list, sets = rule.real->signature.minimum, count = std::min(op.count / sets, 8u);
  const u32* slots = listed(warp, op);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u8* at = shadow_at(warp, op, lane, address_of(warp, op, lane, rule), bytes * count);
    const auto of_lane = [&](u32 i) { return warp.registers + shadow(warp, slots[i]) + static_cast<u32>(lane) * bytes; };
    for (u32 i = 0; i < count && at; ++i, at += bytes) {
      u8 held[16], given[16];
      std::memcpy(held, at, bytes);
      std::memcpy(given, of_lane(count + i), bytes);
      bool any = any_of(held, bytes) | any_of(given, bytes);
      if (sets > 2) any |= any_of(of_lane(2 * count + i), bytes);
      if (rule.moved) {
        std::memcpy(at, given, bytes);
      } else {
        std::memset(at, any ? 0xFF : 0, bytes);
      }
      std::memcpy(of_lane(i), held, bytes);
    }
  }
}

void taint_discard(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  constexpr u32 kLine = 128;
  reach_fault(warp, op, old_sources(warp, op, rule, kA) & mask, kAddressFault);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (u8* at = shadow_at(warp, op, lane, address_of(warp, op, lane, rule), kLine)) std::memset(at, 0xFF, kLine);
  }
}

}  // namespace emulator
