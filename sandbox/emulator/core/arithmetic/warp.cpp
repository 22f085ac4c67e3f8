// Operations across the lanes of a warp. The interpreter has gathered the lanes of the member mask; `mask` has those that take
// part.
#include "arithmetic/lanes.hpp"

namespace emulator {

namespace {

// ---- operands --------------------------------------------------------------------------------------------------------------
constexpr Operand kResult = slot("result", Field::kD, 4), kHolds = slot("result", Field::kD, kMask);
constexpr Operand kPredicate = slot("predicate", Field::kA, kMask);
constexpr Operand kLane = slot("lane", Field::kB, 4);          // of shfl: an offset, a mask or an index
constexpr Operand kClamp = slot("clamp", Field::kC, 4);        // of shfl: the clamp in bits 0-4, the segment mask in bits 8-12
constexpr Operand kWithin = slot("within", Field::kE, kMask);  // whether the partner lies within the segment
constexpr Operand kEqual = slot("equal", Field::kE, kMask);    // whether the values of all members are equal
constexpr Operand kElected = slot("elected", Field::kE, kMask);  // whether this lane is the one

// ---- shuffles --------------------------------------------------------------------------------------------------------------
enum class Shuffle { kUp, kDown, kButterfly, kIndex };

struct Partner {
  int lane;
  bool within;  // the segment
};

// From which lane one reads.
template <Shuffle kShuffle>
Partner partner(int lane, u32 by, u32 clamps) {
  const int offset = static_cast<int>(by & 31), clamp = static_cast<int>(clamps & 31),
            segment = static_cast<int>(clamps >> 8 & 31);
  const int first = lane & segment, last = first | (clamp & ~segment);
  switch (kShuffle) {
    case Shuffle::kUp:
      return {lane - offset, lane - offset >= last};
    case Shuffle::kDown:
      return {lane + offset, lane + offset <= last};
    case Shuffle::kButterfly:
      return {lane ^ offset, (lane ^ offset) <= last};
    case Shuffle::kIndex:
      return {first | (offset & ~segment), (first | (offset & ~segment)) <= last};
  }
  return {lane, false};
}

// A lane whose partner lies outside the segment keeps its own value.
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Op& op, u32 mask) {
  u32 values[kLanes];
  std::memcpy(values, warp.lanes<u32>(op.a), sizeof values);
  const u32 *by = warp.lanes<u32>(kLane(op)), *clamps = warp.lanes<u32>(kClamp(op));
  u32 results[kLanes];
  u32 within = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Partner from = partner<kShuffle>(lane, by[lane], clamps[lane]);
    results[lane] = values[(from.within ? from.lane : lane) & 31];
    within |= static_cast<u32>(from.within) << lane;
  }
  u32* d = warp.lanes<u32>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = results[lane]; });
  write_mask(warp, kWithin(op), mask, within);
}

// ---- votes and matches -----------------------------------------------------------------------------------------------------
void vote_all(Warp& warp, const Op& op, u32 mask) { write_mask(warp, op.d, mask, (warp.mask(op.a) & mask) == mask ? mask : 0); }
void vote_any(Warp& warp, const Op& op, u32 mask) { write_mask(warp, op.d, mask, warp.mask(op.a) & mask ? mask : 0); }
void vote_uniform(Warp& warp, const Op& op, u32 mask) {
  const u32 bits = warp.mask(op.a) & mask;
  write_mask(warp, op.d, mask, bits == 0 || bits == mask ? mask : 0);
}

void write_all(Warp& warp, u32 slot, u32 mask, u32 value) {
  u32* d = warp.lanes<u32>(slot);
  for_lanes(mask, [&](int lane) { d[lane] = value; });
}

void vote_ballot(Warp& warp, const Op& op, u32 mask) { write_all(warp, op.d, mask, warp.mask(op.a) & mask); }

template <typename T>
u32 lanes_with(const T* values, T value, u32 mask) {
  u32 found = 0;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    found |= static_cast<u32>(values[lane] == value) << lane;
  }
  return found;
}

template <typename T>
void match_any(Warp& warp, const Op& op, u32 mask) {
  T values[kLanes];
  std::memcpy(values, warp.lanes<T>(op.a), sizeof values);
  u32* d = warp.lanes<u32>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = lanes_with(values, values[lane], mask); });
}

// The result is the mask, or 0 where not all values are equal.
template <typename T>
void match_all(Warp& warp, const Op& op, u32 mask) {
  const T* values = warp.lanes<T>(op.a);
  const bool equal = lanes_with(values, values[first_lane(mask)], mask) == mask;
  write_all(warp, op.d, mask, equal ? mask : 0);
  write_mask(warp, kEqual(op), mask, equal ? mask : 0);
}

// ---- reductions ------------------------------------------------------------------------------------------------------------
template <typename T, typename Combine>
void add_reduction(Registry& r, const std::string& name, Combine) {
  const auto reduce = [](Warp& warp, const Op& op, u32 mask) {
    const T* values = warp.lanes<T>(op.a);
    T result = values[first_lane(mask)];
    for (u32 left = mask & (mask - 1); left; left &= left - 1) result = Combine{}(result, values[std::countr_zero(left)]);
    write_all(warp, op.d, mask, static_cast<u32>(result));
  };
  r.add(name, reduce, {kResult, slot("value", Field::kA, 4)});
}

// ---- members ---------------------------------------------------------------------------------------------------------------
void active_mask(Warp& warp, const Op& op, u32 mask) { write_all(warp, op.d, mask, mask); }

void elect(Warp& warp, const Op& op, u32 mask) {
  const auto leader = static_cast<u32>(first_lane(mask));
  write_all(warp, op.d, mask, leader);
  write_mask(warp, kElected(op), mask, 1u << leader);
}

void reconverge(Warp& warp, const Op&, u32 mask) { warp.reconverge(mask); }

void nothing(Warp&, const Op&, u32) {}

}  // namespace

void register_warp(Registry& r) {
  const std::vector<Operand> shuffled{kResult, slot("value", Field::kA, 4), kLane, kClamp, kWithin};
  r.add("shfl.up", shuffle<Shuffle::kUp>, shuffled);
  r.add("shfl.down", shuffle<Shuffle::kDown>, shuffled);
  r.add("shfl.bfly", shuffle<Shuffle::kButterfly>, shuffled);
  r.add("shfl.idx", shuffle<Shuffle::kIndex>, shuffled);
  r.add("vote.all", vote_all, {kHolds, kPredicate});
  r.add("vote.any", vote_any, {kHolds, kPredicate});
  r.add("vote.uni", vote_uniform, {kHolds, kPredicate});
  r.add("vote.ballot", vote_ballot, {kResult, kPredicate});
  r.add("match.any.b32", match_any<u32>, {kResult, slot("value", Field::kA, 4)});
  r.add("match.any.b64", match_any<u64>, {kResult, slot("value", Field::kA, 8)});
  r.add("match.all.b32", match_all<u32>, {kResult, slot("value", Field::kA, 4), kEqual});
  r.add("match.all.b64", match_all<u64>, {kResult, slot("value", Field::kA, 8), kEqual});
  add_reduction<u32>(r, "redux.add", [](u32 a, u32 b) { return a + b; });
  add_reduction<u32>(r, "redux.and", [](u32 a, u32 b) { return a & b; });
  add_reduction<u32>(r, "redux.or", [](u32 a, u32 b) { return a | b; });
  add_reduction<u32>(r, "redux.xor", [](u32 a, u32 b) { return a ^ b; });
  add_reduction<u32>(r, "redux.min.u32", [](u32 a, u32 b) { return a < b ? a : b; });
  add_reduction<u32>(r, "redux.max.u32", [](u32 a, u32 b) { return a > b ? a : b; });
  add_reduction<i32>(r, "redux.min.s32", [](i32 a, i32 b) { return a < b ? a : b; });
  add_reduction<i32>(r, "redux.max.s32", [](i32 a, i32 b) { return a > b ? a : b; });
  r.add("activemask", active_mask, {kResult});
  r.add("elect", elect, {kResult, kElected});
  r.add("bar.warp", reconverge, {});
  r.add("nanosleep", nothing, {});
}

}  // namespace emulator
