// Rules of operations on registers, of one lane or of several together.
#include "taint/rule.hpp"

namespace emulator {

// Executes the handler on shadows: results and listed slots, and of the sources those in `moved`.
void on_shadows(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  Run& run = *warp.run;
  const u32 away = run.shadow_offset;
  Op moved = op;
  moved.d += away;
  if (rule.second || rule.moved & kE) moved.e += away;
  if (rule.moved & kA) moved.a += away;
  if (rule.moved & kB) moved.b += away;
  if (rule.moved & kC) moved.c += away;
  moved.list += static_cast<u32>(run.program.lists.size() / 2);
  run.shadowing = true;
  rule.real->run(warp, moved, mask);
  run.shadowing = false;
}

void taint_general(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = old_sources(warp, op, rule, kA | kB | kC | kE);
  set_lanes(warp, op.d, rule.real->signature.d, mask, old);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, old);
}

void taint_clean(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  set_lanes(warp, op.d, rule.real->signature.d, mask, 0);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, 0);
}

// Bits are moved, shifted or chosen; where what chooses is old, all of the result is.
void taint_move(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, static_cast<u8>(~rule.moved)) & mask;
  on_shadows(warp, op, mask, rule);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, 0);
  spoil(warp, op, rule, lost);
}

namespace {

template <typename T>
T truth_of(u8 truth, T a, T b, T c) {
  T result = 0;
  for (u32 term = 0; term < 8; ++term) {
    if (!(truth >> term & 1)) continue;
    result |= (term & 4 ? a : ~a) & (term & 2 ? b : ~b) & (term & 1 ? c : ~c);
  }
  return result;
}

// Bits of the result that some value of the old bits would change.
template <typename T>
T depends(u8 truth, const T (&values)[3], const T (&old)[3]) {
  const T seen = truth_of(truth, values[0], values[1], values[2]);
  T result = 0;
  for (u32 flip = 1; flip < 8; ++flip) {
    T other[3];
    for (u32 i = 0; i < 3; ++i) other[i] = flip >> i & 1 ? values[i] ^ old[i] : values[i];
    result |= seen ^ truth_of(truth, other[0], other[1], other[2]);
  }
  return result;
}

template <typename T>
void bitwise_lanes(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const Signature& bytes = rule.real->signature;
  const u8 truth = bytes.c ? static_cast<u8>(op.p) : rule.truth;
  const u32 slots[3] = {op.a, op.b, op.c};
  const u8 there[3] = {bytes.a, bytes.b, bytes.c};
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    T values[3] = {}, old[3] = {};
    for (u32 i = 0; i < 3; ++i) {
      if (!there[i]) continue;
      values[i] = warp.lanes<T>(slots[i])[lane];
      old[i] = warp.lanes<T>(shadow(warp, slots[i]))[lane];
    }
    warp.lanes<T>(shadow(warp, op.d))[lane] = depends(truth, values, old);
  }
}

}  // namespace

void taint_bitwise(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  switch (rule.real->signature.d) {
    case 2:
      return bitwise_lanes<u16>(warp, op, mask, rule);
    case 4:
      return bitwise_lanes<u32>(warp, op, mask, rule);
    case 8:
      return bitwise_lanes<u64>(warp, op, mask, rule);
    default: {
      const u32 b = rule.real->signature.b ? op.b : op.a;
      const u32 values[3] = {warp.mask(op.a), warp.mask(b), 0};
      const u32 old[3] = {warp.mask(shadow(warp, op.a)), warp.mask(shadow(warp, b)), 0};
      set_lanes(warp, op.d, kMask, mask, depends(rule.truth, values, old));
    }
  }
}

// Two 16-bit elements per lane, each of its own.
void taint_halves(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const Signature& bytes = rule.real->signature;
  const u32 slots[3] = {op.a, op.b, op.c};
  const u8 there[3] = {bytes.a, bytes.b, bytes.c};
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u32 old = 0;
    for (u32 i = 0; i < 3; ++i) old |= there[i] ? warp.lanes<u32>(shadow(warp, slots[i]))[lane] : 0;
    warp.lanes<u32>(shadow(warp, op.d))[lane] = (old & 0xFFFF ? 0xFFFFu : 0) | (old >> 16 ? 0xFFFF0000u : 0);
  }
}

// Two f32 become the upper and the lower half.
void taint_narrow_two(Warp& warp, const Op& op, u32 mask, const Rule&) {
  const u32 upper = old_lanes(warp, op.a, 4), lower = old_lanes(warp, op.b, 4);
  u32* d = warp.lanes<u32>(shadow(warp, op.d));
  for_lanes(mask, [&](int lane) { d[lane] = (upper >> lane & 1 ? 0xFFFF0000u : 0) | (lower >> lane & 1 ? 0xFFFFu : 0); });
}

// ---- lanes together ---------------------------------------------------------------------------------------------------------
void taint_across(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = old_sources(warp, op, rule, kA | kB | kC | kE) & mask ? mask : 0;
  set_lanes(warp, op.d, rule.real->signature.d, mask, old);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, old);
}

// One lane that decides the vote and is not old is enough. `truth`: the value that decides.
void taint_vote(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = warp.mask(shadow(warp, op.a)) & mask, holds = warp.mask(op.a);
  const bool decided = (rule.truth ? holds : ~holds) & ~old & mask;
  set_lanes(warp, op.d, kMask, mask, old && !decided ? mask : 0);
}

void taint_shuffle(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kB | kC) & mask;
  taint_move(warp, op, mask, rule);
  set_lanes(warp, op.e, kMask, mask, lost);
}

}  // namespace emulator
