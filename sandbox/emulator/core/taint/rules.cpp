// How operations propagate taint of old contents: one rule for each handler, found by its name.
//
// A rule is executed before its operation, while source registers still hold what it reads; it writes shadows only.
#include <algorithm>
#include <string_view>

#include "memory/access.hpp"
#include "taint/taint.hpp"
#include "taint/taint_rows.hpp"

namespace emulator {

namespace {

struct Rule;
using Propagate = void (*)(Warp&, const Op&, u32 mask, const Rule&);

enum Operands : u8 { kA = 1, kB = 2, kC = 4, kE = 8 };

struct Rule {
  Propagate propagate = nullptr;
  const Registered* real = nullptr;
  u8 moved = 0;                         // operands whose bits go into the result; the others select which
  u8 truth = 0;                         // of a bitwise operation, as of lop3
  bool effect = false;                  // not a result in registers alone: memory, a barrier, an asynchronous engine
  bool second = false;                  // operand e is a result
  u32 results = 0;                      // listed slots that are results, at the most
  u8 rows = 0, columns = 0, depth = 0;  // blocks of an mma
  bool to_floats = false, from_floats = false;
};

const Rule& rule_of(const Op& op);

// ---- shadows of registers ---------------------------------------------------------------------------------------------------
u32 shadow(Warp& warp, u32 slot) { return slot + warp.run->shadow_offset; }

template <typename T>
u32 lanes_set(const T* values) {
  u32 lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= static_cast<u32>(values[lane] != 0) << lane;
  return lanes;
}

// Lanes of a slot with an old bit; `bytes` of a lane, kMask for a predicate, 0 for no operand.
u32 old_lanes(Warp& warp, u32 slot, u32 bytes) {
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
void set_lanes(Warp& warp, u32 slot, u32 bytes, u32 lanes, u32 old) {
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

u32 old_sources(Warp& warp, const Op& op, const Rule& rule, u8 which) {
  const Signature& bytes = rule.real->signature;
  u32 old = 0;
  if (which & kA) old |= old_lanes(warp, op.a, bytes.a);
  if (which & kB) old |= old_lanes(warp, op.b, bytes.b);
  if (which & kC) old |= old_lanes(warp, op.c, bytes.c);
  if (which & kE && !rule.second) old |= old_lanes(warp, op.e, bytes.e);
  return old;
}

// Makes all results of an operation old in these lanes.
void spoil(Warp& warp, const Op& op, const Rule& rule, u32 lanes) {
  if (!lanes) return;
  const Signature& bytes = rule.real->signature;
  set_lanes(warp, op.d, bytes.d, lanes, lanes);
  if (rule.second) set_lanes(warp, op.e, bytes.e, lanes, lanes);
  const u32* slots = listed(warp, op);
  for (u32 i = 0; i < std::min(op.count, rule.results); ++i) set_lanes(warp, slots[i], bytes.list, lanes, lanes);
}

void reach_fault(Warp& warp, const Op& op, u32 lanes, const char* what) {
  if (lanes) report(warp, op, lanes, "uninitialised-read", 0, std::string("old contents, which nobody wrote, reach ") + what);
}

constexpr const char* kBranchFault = "a branch";
constexpr const char* kAddressFault = "an address";
constexpr const char* kGuardFault = "the guard of a memory access or barrier";
constexpr const char* kControlFault = "an operand of a barrier, a shuffle mask or an asynchronous operation";

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

// ---- registers --------------------------------------------------------------------------------------------------------------
void general(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = old_sources(warp, op, rule, kA | kB | kC | kE);
  set_lanes(warp, op.d, rule.real->signature.d, mask, old);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, old);
}

void clean(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  set_lanes(warp, op.d, rule.real->signature.d, mask, 0);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, 0);
}

// Bits are moved, shifted or chosen; where what chooses is old, all of the result is.
void move(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, static_cast<u8>(~rule.moved)) & mask;
  on_shadows(warp, op, mask, rule);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, 0);
  spoil(warp, op, rule, lost);
}

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

void bitwise(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
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

// Two 16-bit elements of a lane, each for itself.
void halves(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
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
void narrow_two(Warp& warp, const Op& op, u32 mask, const Rule&) {
  const u32 upper = old_lanes(warp, op.a, 4), lower = old_lanes(warp, op.b, 4);
  u32* d = warp.lanes<u32>(shadow(warp, op.d));
  for_lanes(mask, [&](int lane) { d[lane] = (upper >> lane & 1 ? 0xFFFF0000u : 0) | (lower >> lane & 1 ? 0xFFFFu : 0); });
}

// ---- lanes together ---------------------------------------------------------------------------------------------------------
void across(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = old_sources(warp, op, rule, kA | kB | kC | kE) & mask ? mask : 0;
  set_lanes(warp, op.d, rule.real->signature.d, mask, old);
  if (rule.second) set_lanes(warp, op.e, rule.real->signature.e, mask, old);
}

// One lane that is known to decide is enough. `truth`: the value that decides.
void vote(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 old = warp.mask(shadow(warp, op.a)) & mask, holds = warp.mask(op.a);
  const bool decided = (rule.truth ? holds : ~holds) & ~old & mask;
  set_lanes(warp, op.d, kMask, mask, old && !decided ? mask : 0);
}

void shuffle(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kB | kC) & mask;
  move(warp, op, mask, rule);
  set_lanes(warp, op.e, kMask, mask, lost);
}

// ---- memory -----------------------------------------------------------------------------------------------------------------
// A value from an old address is old.
void load(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kA | kB) & mask;
  on_shadows(warp, op, mask, rule);
  spoil(warp, op, rule, lost);
}

void load_fragment(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const u32 lost = old_sources(warp, op, rule, kA | kB) & mask;
  on_shadows(warp, op, mask, rule);
  spoil(warp, op, rule, lost ? mask : 0);
}

void store(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  reach_fault(warp, op, old_sources(warp, op, rule, kA | kB) & mask, kAddressFault);
  on_shadows(warp, op, mask, rule);
}

u64 address_of(Warp& warp, const Op& op, int lane, const Rule& rule) {
  return rule.real->signature.a == 4 ? effective_address<u32>(warp, op, lane) : effective_address<u64>(warp, op, lane);
}

u8* shadow_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes) {
  warp.run->shadowing = true;
  u8* at = reach(warp, op, lane, address, bytes, Access::kWrite, nullptr);
  warp.run->shadowing = false;
  return at;
}

// Results are what memory held; it then holds what depends on all that took part, but after an exchange.
void atomic(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  reach_fault(warp, op, old_sources(warp, op, rule, kA) & mask, kAddressFault);
  const u32 bytes = rule.real->signature.list, sets = rule.real->signature.least, count = std::min(op.count / sets, 8u);
  const u32* slots = listed(warp, op);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u8* at = shadow_at(warp, op, lane, address_of(warp, op, lane, rule), bytes * count);
    const auto of_lane = [&](u32 i) { return warp.registers + shadow(warp, slots[i]) + static_cast<u32>(lane) * bytes; };
    for (u32 i = 0; i < count && at; ++i, at += bytes) {
      u8 held[8], given[8];
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

void discard(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  constexpr u32 kLine = 128;
  reach_fault(warp, op, old_sources(warp, op, rule, kA) & mask, kAddressFault);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (u8* at = shadow_at(warp, op, lane, address_of(warp, op, lane, rule), kLine)) std::memset(at, 0xFF, kLine);
  }
}

// ---- mma --------------------------------------------------------------------------------------------------------------------
// Slots in the list: d, a, b, c; see mma.cpp for their order.
void multiply(Warp& warp, const Op& op, u32, const Rule& rule) {
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

// ---- barriers and asynchronous work -----------------------------------------------------------------------------------------
// Addresses that may have 4 or 8 bytes say in p, q and r how many; results of barriers are not old.
struct Needed {
  u32 slot, bytes;
};

void require(Warp& warp, const Op& op, u32 mask, std::initializer_list<Needed> operands, const char* what) {
  u32 old = 0;
  for (const Needed& each : operands) old |= each.slot ? old_lanes(warp, each.slot, each.bytes) : 0;
  reach_fault(warp, op, old & mask, what);
}

void barrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  require(warp, op, mask, {{op.a, 4}, {op.b, 4}, {op.c, kMask}}, kControlFault);
  if (op.d && rule.real->signature.d) {
    set_lanes(warp, op.d, op.p == 3 ? 4 : u32{kMask}, mask, 0);  // a count, or a predicate
  }
}

void mbarrier(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
  const Signature& bytes = rule.real->signature;
  const u32 second = bytes.b == 8 && op.r ? 4 : bytes.b;  // the parity or the state that is waited for
  require(warp, op, mask, {{op.a, op.p == 4 ? 4u : 8u}, {bytes.b ? op.b : 0, second}, {bytes.c ? op.c : 0, 4}}, kControlFault);
  if (op.d) set_lanes(warp, op.d, bytes.d, mask, 0);
}

void bulk(Warp& warp, const Op& op, u32 mask, const Rule& rule) {
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

void copy(Warp& warp, const Op& op, u32 mask, const Rule&) {
  require(warp, op, mask, {{op.a, op.q == 4 ? 4u : 8u}}, kAddressFault);
}

// The registers and shared memory that it reads are looked at when it is executed.
void warpgroup_product(Warp& warp, const Op& op, u32 mask, const Rule&) {
  constexpr u32 kRegisterA = 64;
  require(warp, op, mask, {{op.q & kRegisterA ? 0 : op.a, 8}, {op.b, 8}, {op.c, kMask}}, kControlFault);
}

void nothing(Warp&, const Op&, u32, const Rule&) {}

// ---- the table --------------------------------------------------------------------------------------------------------------
bool begins(std::string_view name, std::string_view with) { return name.substr(0, with.size()) == with; }
bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// cvt between integers extends or cuts off.
bool moves_integer(std::string_view name) {
  const std::size_t from = name.rfind('.') + 1;
  return begins(name, "cvt.u") && (name[from] == 'u' || name[from] == 's');
}

Rule registers_rule(std::string_view name, const Signature& bytes) {
  struct Named {
    std::string_view begins;
    Rule rule;
  };
  static const Named kNamed[] = {
      {"mov.pred", {.propagate = move, .moved = kA}},
      {"mov.b", {.propagate = move, .moved = kA}},
      {"pack.", {.propagate = move, .moved = kA}},
      {"unpack.", {.propagate = move, .moved = kA, .results = 16}},
      {"movmatrix.", {.propagate = move, .moved = kA}},
      {"brev.", {.propagate = move, .moved = kA}},
      {"shl.", {.propagate = move, .moved = kA}},
      {"shr.", {.propagate = move, .moved = kA}},
      {"bfe.", {.propagate = move, .moved = kA}},
      {"bfi.", {.propagate = move, .moved = kA | kB}},
      {"shf.", {.propagate = move, .moved = kA | kB}},
      {"prmt.", {.propagate = move, .moved = kA | kB}},
      {"selp.", {.propagate = move, .moved = kA | kB}},
      {"slct.", {.propagate = move, .moved = kA | kB}},
      {"vote.ballot", {.propagate = move, .moved = kA}},
      {"shfl.", {.propagate = shuffle, .moved = kA, .second = true}},
      {"and.", {.propagate = bitwise, .truth = 0xC0}},
      {"or.", {.propagate = bitwise, .truth = 0xFC}},
      {"xor.", {.propagate = bitwise, .truth = 0x3C}},
      {"not.", {.propagate = bitwise, .truth = 0x0F}},
      {"lop3.", {.propagate = bitwise}},
      {"narrow.f16x2", {.propagate = narrow_two}},
      {"narrow.bf16x2", {.propagate = narrow_two}},
      {"vote.all", {.propagate = vote, .truth = 0}},
      {"vote.any", {.propagate = vote, .truth = 1}},
      {"vote.", {.propagate = across}},
      {"match.all", {.propagate = across, .second = true}},
      {"match.", {.propagate = across}},
      {"redux.", {.propagate = across}},
      {"elect", {.propagate = clean, .second = true}},
      {"activemask", {.propagate = clean}},
      {"addc.", {.propagate = general, .second = true}},
      {"subc.", {.propagate = general, .second = true}},
  };
  for (const Named& each : kNamed) {
    if (begins(name, each.begins)) return each.rule;
  }
  if (moves_integer(name)) return {.propagate = move, .moved = kA};
  if (holds(name, "x2") && bytes.d == 4 && bytes.a == 4) return {.propagate = halves};
  return {.propagate = general};
}

// "mma.m16n8k16.f32.f16.f32": shape, type of D, of A and B, of C.
Rule product_rule(std::string_view name) {
  Rule rule{.propagate = multiply};
  rule.rows = begins(name, "mma.m32") ? 4 : 2;
  rule.columns = holds(name, "n16") ? 2 : 1;
  rule.depth = holds(name, "k16.") ? 2 : 1;
  rule.to_floats = holds(name, "k16.f32.") || holds(name, "k8.f32.");
  rule.from_floats = name.substr(name.rfind('.') + 1) == "f32";
  rule.results = rule.rows * rule.columns * (rule.to_floats ? 2 : 1);
  return rule;
}

Rule make_rule(std::string_view name, const Signature& bytes) {
  static const struct {
    std::string_view begins;
    Rule rule;
  } kEffects[] = {
      {"ldmatrix.", {.propagate = load_fragment, .results = 4}},
      {"wmma.load.", {.propagate = load_fragment, .results = 64}},
      {"ld.", {.propagate = load, .results = 8}},
      {"st.async", {.propagate = bulk, .effect = true}},
      {"st.", {.propagate = store, .effect = true}},
      {"stmatrix.", {.propagate = store, .effect = true}},
      {"wmma.store.", {.propagate = store, .effect = true}},
      {"atom.exch.", {.propagate = atomic, .moved = kA, .effect = true}},
      {"atom.", {.propagate = atomic, .effect = true}},
      {"discard", {.propagate = discard, .effect = true}},
      {"cp.async.bulk.commit", {.propagate = nothing, .effect = true}},
      {"cp.async.bulk.wait", {.propagate = nothing, .effect = true}},
      {"cp.async.bulk.", {.propagate = bulk, .effect = true}},
      {"cp.async.commit", {.propagate = nothing, .effect = true}},
      {"cp.async.wait", {.propagate = nothing, .effect = true}},
      {"cp.async.arrive", {.propagate = mbarrier, .effect = true}},
      {"cp.async", {.propagate = copy, .effect = true}},
      {"mbarrier.pending", {.propagate = general}},
      {"mbarrier.", {.propagate = mbarrier, .effect = true}},
      {"bar.warp", {.propagate = nothing, .effect = true}},
      {"bar.", {.propagate = barrier, .effect = true}},
      {"barrier.cluster.", {.propagate = nothing, .effect = true}},
      {"fence", {.propagate = nothing, .effect = true}},
      {"griddepcontrol.", {.propagate = nothing, .effect = true}},
      {"nothing", {.propagate = nothing}},
      {"nanosleep", {.propagate = nothing}},
      {"wgmma.", {.propagate = nothing, .effect = true}},
      {"wgmma", {.propagate = warpgroup_product, .effect = true}},
  };
  for (const auto& each : kEffects) {
    if (begins(name, each.begins)) return each.rule;
  }
  return begins(name, "mma.") ? product_rule(name) : registers_rule(name, bytes);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> made;
    const std::vector<std::string>& names = registry().names();
    for (u32 i = 0; i < names.size(); ++i) {
      const Registered* real = registry().find(i);
      made.push_back(make_rule(names[i], real->signature));
      made.back().real = real;
    }
    return made;
  }();
  return all;
}

const Rule& rule_of(const Op& op) { return rules()[op.handler]; }

// What stands in place of every handler.
void run_tainted(Warp& warp, const Op& op, u32 mask) {
  const Rule& rule = rule_of(op);
  const u32 doubtful = op.guard ? warp.mask(shadow(warp, op.guard)) & mask : 0;
  if (op.meeting) reach_fault(warp, op, old_lanes(warp, op.meeting, 4) & mask, kControlFault);
  rule.propagate(warp, op, mask, rule);
  spoil(warp, op, rule, rule.effect ? 0 : doubtful);
  rule.real->run(warp, op, mask);
}

}  // namespace

Program with_taint(const Program& program) {
  Program made = program;
  for (Op& op : made.ops) {
    if (op.run) op.run = run_tainted;
  }
  const std::size_t count = program.lists.size();
  made.lists.resize(2 * count);
  const u32 away = shadow_offset(program);
  std::transform(program.lists.begin(), program.lists.end(), made.lists.begin() + static_cast<std::ptrdiff_t>(count),
                 [away](u32 slot) { return slot + away; });
  return made;
}

void taint_guard(Warp& warp, const Op& op, u32 lanes, u32 running) {
  const u32 doubtful = warp.mask(shadow(warp, op.guard)) & lanes;
  if (!doubtful) return;
  if (op.kind == kBranch || op.kind == kBranchIndexed || op.kind == kExit) return reach_fault(warp, op, doubtful, kBranchFault);
  const Rule& rule = rule_of(op);
  if (rule.effect) return reach_fault(warp, op, doubtful, kGuardFault);
  spoil(warp, op, rule, doubtful & ~running);
}

void taint_indexed_branch(Warp& warp, const Op& op, u32 lanes) {
  reach_fault(warp, op, old_lanes(warp, op.a, 4) & lanes, kBranchFault);
}

u32 keep_taint(Warp& warp, const Op& op, int lane, u64 source, u32 bytes) {
  u32 lost = old_lanes(warp, op.b, op.r == 4 ? 4 : 8);
  if (op.c) lost |= old_lanes(warp, op.c, 4);
  if (op.e) lost |= old_lanes(warp, op.e, kMask);
  CopyTaint old{};
  if (lost >> lane & 1) {
    old.fill(0xFF);
  } else if (bytes) {
    warp.run->shadowing = true;
    const u8* from = global_at(warp, op, lane, source, bytes, Access::kRead, nullptr);
    warp.run->shadowing = false;
    if (from) std::memcpy(old.data(), from, bytes);
  }
  if (!any_of(old.data(), old.size())) return 0;
  if (warp.open_copies.empty() && warp.copy_groups.empty() && warp.copy_arrivals.empty()) warp.copy_taints.clear();
  if (warp.copy_taints.size() >= kMostIssued) {
    warp.run->stop("unsupported", "a warp with more copies of old contents under way than are kept");
    return 0;
  }
  warp.copy_taints.push_back(old);
  return static_cast<u32>(warp.copy_taints.size());
}

}  // namespace emulator
