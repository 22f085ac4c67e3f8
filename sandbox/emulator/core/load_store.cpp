// Loads, stores, and the addresses of peers' shared memory.
#include "access.hpp"

namespace emulator {

namespace {

struct Wide {
  u64 low, high;
};

template <typename Memory, typename Value, typename Address>
void load(Warp& warp, const Op& op, u32 mask) {
  const u32* slots = listed(warp, op);
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = effective_address<Address>(warp, op, lane);
    bool poison = false;
    const u8* from = reach(warp, op, lane, address, sizeof(Memory) * op.count, Access::kRead, &poison);
    for (u32 i = 0; i < op.count; ++i) {
      Memory value;
      if (from && !poison) {
        std::memcpy(&value, from + i * sizeof value, sizeof value);
      } else {
        std::memset(&value, 0xFF, sizeof value);
      }
      warp.lanes<Value>(slots[i])[lane] = static_cast<Value>(value);
    }
    if (op.q != kWeak) synchronise(warp, static_cast<Space>(op.p), address, static_cast<Semantics>(op.q), false);
  }
}

// A store that changes nothing is no event: who polls with one waits all the same.
template <typename Memory, typename Value, typename Address>
void store(Warp& warp, const Op& op, u32 mask) {
  const u32* slots = listed(warp, op);
  bool changed = false;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = effective_address<Address>(warp, op, lane);
    u8* to = reach(warp, op, lane, address, sizeof(Memory) * op.count, Access::kWrite, nullptr);
    if (!to) continue;
    for (u32 i = 0; i < op.count; ++i, to += sizeof(Memory)) {
      const Memory value = static_cast<Memory>(warp.lanes<Value>(slots[i])[lane]);
      changed |= std::memcmp(to, &value, sizeof value) != 0;
      std::memcpy(to, &value, sizeof value);
    }
    if (op.q != kWeak) synchronise(warp, static_cast<Space>(op.p), address, static_cast<Semantics>(op.q), true);
  }
  if (changed && op.p != kLocal) ++warp.run->events;
}

// Whoever reads what was discarded reads something undefined.
void discard(Warp& warp, const Op& op, u32 mask) {
  constexpr u32 kLine = 128;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = effective_address<u64>(warp, op, lane);
    if (u8* line = reach(warp, op, lane, address, kLine, Access::kWrite, nullptr)) std::memset(line, 0xFF, kLine);
  }
}

// The same place in the shared memory of another CTA of the cluster. A rank that no cluster has stays one.
template <typename Address>
void map_to_rank(Warp& warp, const Op& op, u32 mask) {
  constexpr u32 kMostRank = 0xFF;
  Address* d = warp.lanes<Address>(op.d);
  const Address* a = warp.lanes<Address>(op.a);
  const u32* rank = warp.lanes<u32>(op.b);
  for_lanes(mask, [=](int lane) {
    const Address own = a[lane] & ~(Address{kMostRank} << kRankShift);
    d[lane] = own | Address{rank[lane] < kMostRank ? rank[lane] : kMostRank} << kRankShift;
  });
}

template <typename Address>
void rank_of(Warp& warp, const Op& op, u32 mask) {
  u32* d = warp.lanes<u32>(op.d);
  const Address* a = warp.lanes<Address>(op.a);
  for_lanes(mask, [=](int lane) { d[lane] = static_cast<u32>(a[lane] >> kRankShift) & 0xFF; });
}

template <typename T>
std::string bits_of() {
  return std::to_string(8 * sizeof(T));
}

template <typename Memory, typename Value, typename Address>
void add_load(Registry& registry, const std::string& type) {
  const std::string name = "ld." + type + ".b" + bits_of<Value>() + ".a" + bits_of<Address>();
  registry.add(name, load<Memory, Value, Address>, {.a = sizeof(Address), .list = sizeof(Value), .least = 1});
}

template <typename Memory, typename Value, typename Address>
void add_store(Registry& registry) {
  const std::string name = "st.b" + bits_of<Memory>() + ".b" + bits_of<Value>() + ".a" + bits_of<Address>();
  registry.add(name, store<Memory, Value, Address>, {.a = sizeof(Address), .list = sizeof(Value), .least = 1});
}

// One type in memory with every register that can hold it.
template <typename Unsigned, typename Signed, typename Value, typename Address>
void add_pair(Registry& registry) {
  if constexpr (sizeof(Value) >= sizeof(Unsigned)) {
    add_load<Unsigned, Value, Address>(registry, "u" + bits_of<Unsigned>());
    if constexpr (sizeof(Value) > sizeof(Unsigned)) add_load<Signed, Value, Address>(registry, "s" + bits_of<Signed>());
    add_store<Unsigned, Value, Address>(registry);
  }
}

template <typename Value, typename Address>
void add_register(Registry& registry) {
  add_pair<u8, i8, Value, Address>(registry);
  add_pair<u16, i16, Value, Address>(registry);
  add_pair<u32, i32, Value, Address>(registry);
  add_pair<u64, i64, Value, Address>(registry);
}

template <typename Address>
void add_address(Registry& registry) {
  add_register<u8, Address>(registry);
  add_register<u16, Address>(registry);
  add_register<u32, Address>(registry);
  add_register<u64, Address>(registry);
  add_load<Wide, Wide, Address>(registry, "u128");
  add_store<Wide, Wide, Address>(registry);
}

}  // namespace

void register_memory(Registry& registry) {
  add_address<u32>(registry);
  add_address<u64>(registry);
  registry.add("discard", discard, {.a = 8});
  registry.add("mapa.u32", map_to_rank<u32>, {.d = 4, .a = 4, .b = 4});
  registry.add("mapa.u64", map_to_rank<u64>, {.d = 8, .a = 8, .b = 4});
  registry.add("getctarank.u32", rank_of<u32>, {.d = 4, .a = 4});
  registry.add("getctarank.u64", rank_of<u64>, {.d = 4, .a = 8});
}

}  // namespace emulator
