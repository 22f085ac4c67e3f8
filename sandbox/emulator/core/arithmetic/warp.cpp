// Operations across the lanes of a warp. The interpreter has gathered the lanes of the member mask: `mask` is who takes part.
#include "arithmetic/lanes.hpp"

namespace emulator {

namespace {

// ---- shuffles --------------------------------------------------------------------------------------------------------------
enum class Shuffle { kUp, kDown, kButterfly, kIndex };

struct Partner {
  int lane;
  bool within;  // the segment
};

// From which lane one reads, by b (offset or index) and c (clamp in bits 0-4, segment mask in bits 8-12).
template <Shuffle kShuffle>
Partner partner(int lane, u32 b, u32 c) {
  const int offset = static_cast<int>(b & 31), clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
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

// e: whether the partner lies within the segment; a lane whose partner does not keeps its own value.
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Op& op, u32 mask) {
  u32 values[kLanes];
  std::memcpy(values, warp.lanes<u32>(op.a), sizeof values);
  const u32 *b = warp.lanes<u32>(op.b), *c = warp.lanes<u32>(op.c);
  u32 results[kLanes];
  u32 within = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Partner from = partner<kShuffle>(lane, b[lane], c[lane]);
    results[lane] = values[(from.within ? from.lane : lane) & 31];
    within |= static_cast<u32>(from.within) << lane;
  }
  u32* d = warp.lanes<u32>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = results[lane]; });
  write_mask(warp, op.e, mask, within);
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

// d: the mask, or 0 where not all are equal. e: whether they are.
template <typename T>
void match_all(Warp& warp, const Op& op, u32 mask) {
  const T* values = warp.lanes<T>(op.a);
  const bool equal = lanes_with(values, values[first_lane(mask)], mask) == mask;
  write_all(warp, op.d, mask, equal ? mask : 0);
  write_mask(warp, op.e, mask, equal ? mask : 0);
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
  r.add(name, reduce, {.d = 4, .a = 4});
}

// ---- members ---------------------------------------------------------------------------------------------------------------
void active_mask(Warp& warp, const Op& op, u32 mask) { write_all(warp, op.d, mask, mask); }

void elect(Warp& warp, const Op& op, u32 mask) {
  const auto leader = static_cast<u32>(first_lane(mask));
  write_all(warp, op.d, mask, leader);
  write_mask(warp, op.e, mask, 1u << leader);
}

void meet(Warp& warp, const Op&, u32 mask) { warp.meet(mask); }

void nothing(Warp&, const Op&, u32) {}

}  // namespace

void register_warp(Registry& r) {
  constexpr Signature shuffled{.d = 4, .a = 4, .b = 4, .c = 4, .e = kMask};
  r.add("shfl.up", shuffle<Shuffle::kUp>, shuffled);
  r.add("shfl.down", shuffle<Shuffle::kDown>, shuffled);
  r.add("shfl.bfly", shuffle<Shuffle::kButterfly>, shuffled);
  r.add("shfl.idx", shuffle<Shuffle::kIndex>, shuffled);
  r.add("vote.all", vote_all, {.d = kMask, .a = kMask});
  r.add("vote.any", vote_any, {.d = kMask, .a = kMask});
  r.add("vote.uni", vote_uniform, {.d = kMask, .a = kMask});
  r.add("vote.ballot", vote_ballot, {.d = 4, .a = kMask});
  r.add("match.any.b32", match_any<u32>, {.d = 4, .a = 4});
  r.add("match.any.b64", match_any<u64>, {.d = 4, .a = 8});
  r.add("match.all.b32", match_all<u32>, {.d = 4, .a = 4, .e = kMask});
  r.add("match.all.b64", match_all<u64>, {.d = 4, .a = 8, .e = kMask});
  add_reduction<u32>(r, "redux.add", [](u32 a, u32 b) { return a + b; });
  add_reduction<u32>(r, "redux.and", [](u32 a, u32 b) { return a & b; });
  add_reduction<u32>(r, "redux.or", [](u32 a, u32 b) { return a | b; });
  add_reduction<u32>(r, "redux.xor", [](u32 a, u32 b) { return a ^ b; });
  add_reduction<u32>(r, "redux.min.u32", [](u32 a, u32 b) { return a < b ? a : b; });
  add_reduction<u32>(r, "redux.max.u32", [](u32 a, u32 b) { return a > b ? a : b; });
  add_reduction<i32>(r, "redux.min.s32", [](i32 a, i32 b) { return a < b ? a : b; });
  add_reduction<i32>(r, "redux.max.s32", [](i32 a, i32 b) { return a > b ? a : b; });
  r.add("activemask", active_mask, {.d = 4});
  r.add("elect", elect, {.d = 4, .e = kMask});
  r.add("bar.warp", meet, {});
  r.add("nanosleep", nothing, {});
}

}  // namespace emulator
