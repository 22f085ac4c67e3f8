// Loads, stores, and the addresses of peers' shared memory.
#include "memory/access.hpp"

namespace emulator {

namespace {

struct Wide {
  u64 low, high;
};

// Memory around a lane's address in which accesses need only checks of bounds and alignment.
struct Piece {
  u8* host = nullptr;
  u64 begin = 0, size = 0;
};

// None if the order of accesses is recorded, or if every lane has its own memory.
Piece piece_at(Warp& warp, const Op& op, u64 address, Access access) {
  const bool races = warp.run->options.races;
  if (warp.run->shadowing) return {};
  const bool windowed = kSpaceOf(op) == kGeneric && address - kSharedWindow < kWindow;
  if (kSpaceOf(op) == kShared || windowed) {
    Cta& cta = *warp.cta;
    if (races) return {};
    const u64 begin = (windowed ? kSharedWindow : 0) + (u64{cta.rank} << kRankShift) + kSharedBase;
    return {cta.smem.data() + kSharedBase, begin, cta.smem_end - kSharedBase};
  }
  if (kSpaceOf(op) == kParam || kSpaceOf(op) == kLocal) return {};
  Buffer* buffer = buffer_at(*warp.run, address);
  if (!buffer || (races && buffer->shadow) || (access == Access::kWrite && !buffer->writable)) return {};
  if (running(warp) & kRunningOthers && !buffer->constant) return {};
  return {buffer->host, buffer->base, buffer->size};
}

// The accesses of a warp's lanes, `bytes` bytes each.
template <typename Address>
class Accesses {
 public:
  Accesses(Warp& warp, const Op& op, u32 mask, u32 bytes, Access access) : bytes_(bytes), access_(access) {
    for (int lane = 0; lane < kLanes; ++lane) addresses_[lane] = effective_address<Address>(warp, op, lane);
    if (kSemanticsOf(op) == kWeak || !warp.run->options.races) find_together(warp, op, mask);
  }

  // Whether all lanes lie in one piece of memory: `at` then needs no more checks.
  bool together() const { return host_ != nullptr; }
  u8* at(int lane) const { return host_ + (addresses_[lane] - begin_); }

  u8* checked(Warp& warp, const Op& op, int lane, bool* poison) const {
    return reach(warp, op, lane, addresses_[lane], bytes_, access_, poison);
  }
  u64 address(int lane) const { return addresses_[lane]; }
  void synchronise(Warp& warp, const Op& op, int lane) const {
    if (kSemanticsOf(op) == kWeak) return;
    const bool writes = access_ == Access::kWrite;
    emulator::synchronise(warp, space_of(op), addresses_[lane], order_of(op), writes);
  }

 private:
  void find_together(Warp& warp, const Op& op, u32 mask) {
    const Piece piece = piece_at(warp, op, addresses_[first_lane(mask)], access_);
    if (piece.size < bytes_) return;
    const u64 most = piece.size - bytes_, unaligned = bytes_ - 1;
    u64 wrong = 0;
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const u64 address = addresses_[std::countr_zero(rest)];
      wrong |= (address & unaligned) | (address - piece.begin > most);
    }
    if (wrong) return;
    host_ = piece.host;
    begin_ = piece.begin;
  }

  u64 addresses_[kLanes];
  u32 bytes_;
  Access access_;
  u8* host_ = nullptr;
  u64 begin_ = 0;
};

template <typename Memory, typename Value, typename Address>
void load(Warp& warp, const Op& op, u32 mask) {
  const u32* slots = listed(warp, op);
  const Accesses<Address> accesses(warp, op, mask, sizeof(Memory) * op.count, Access::kRead);
  const auto put = [&](int lane, const u8* from) {
    for (u32 i = 0; i < op.count; ++i) {
      Memory value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      warp.lanes<Value>(slots[i])[lane] = static_cast<Value>(value);
    }
  };
  if (accesses.together()) {
    for_lanes(mask, [&](int lane) { put(lane, accesses.at(lane)); });
  } else {
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      bool poison = false;
      const u8* from = accesses.checked(warp, op, lane, &poison);
      put(lane, from && !poison ? from : warp.run->poison_bytes);
      accesses.synchronise(warp, op, lane);
    }
  }
  if (op.kind != kPoll) return;
  u64 seen = mask;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    seen = mixed(seen, accesses.address(lane));
    for (u32 i = 0; i < op.count; ++i) {
      u64 words[2] = {};
      std::memcpy(words, &warp.lanes<Value>(slots[i])[lane], sizeof(Value));
      seen = mixed(mixed(seen, words[0]), words[1]);
    }
  }
  note_poll(warp, op, seen);
}

// A store that changes no memory is no event, because a loop that polls may contain one.
template <typename Memory, typename Value, typename Address>
void store(Warp& warp, const Op& op, u32 mask) {
  const u32* slots = listed(warp, op);
  const Accesses<Address> accesses(warp, op, mask, sizeof(Memory) * op.count, Access::kWrite);
  bool changed = false;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    u8* to = accesses.together() ? accesses.at(lane) : accesses.checked(warp, op, lane, nullptr);
    if (!to) continue;
    for (u32 i = 0; i < op.count; ++i, to += sizeof(Memory)) {
      const Memory value = static_cast<Memory>(warp.lanes<Value>(slots[i])[lane]);
      if (!std::memcmp(to, &value, sizeof value)) continue;  // so that pages of zeros stay unmapped
      changed = true;
      std::memcpy(to, &value, sizeof value);
    }
    accesses.synchronise(warp, op, lane);
  }
  if (changed) ++(kSpaceOf(op) == kLocal ? warp.local_changes : warp.run->events);
}

// A read of discarded memory is undefined.
void discard(Warp& warp, const Op& op, u32 mask) {
  constexpr u32 kLine = 128;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = effective_address<u64>(warp, op, lane);
    u8* line = reach(warp, op, lane, address, kLine, Access::kWrite, nullptr);
    if (line) std::memset(line, warp.run->options.poison, kLine);
  }
}

constexpr Operand kRank = slot("rank", Field::kB, 4);

// The same offset in the shared memory of another CTA of the cluster. A rank that no cluster has stays one.
template <typename Address>
void map_to_rank(Warp& warp, const Op& op, u32 mask) {
  constexpr u32 kMaxRank = 0xFF;
  Address* d = warp.lanes<Address>(op.d);
  const Address* a = warp.lanes<Address>(op.a);
  const u32* rank = warp.lanes<u32>(kRank(op));
  for_lanes(mask, [=](int lane) {
    const Address own = a[lane] & ~(Address{kMaxRank} << kRankShift);
    d[lane] = own | Address{rank[lane] < kMaxRank ? rank[lane] : kMaxRank} << kRankShift;
  });
}

template <typename Address>
void rank_of(Warp& warp, const Op& op, u32 mask) {
  u32* d = warp.lanes<u32>(op.d);
  const Address* a = warp.lanes<Address>(op.a);
  for_lanes(mask, [=](int lane) { d[lane] = static_cast<u32>(a[lane] >> kRankShift) & 0xFF; });
}

// At most sizeof poison_bytes, which a load may return instead of memory.
bool is_vector(const OpRecord& op) {
  return has_order(op) && (op.count == 1 || op.count == 2 || op.count == 4 || op.count == 8);
}

template <typename T>
std::string bits_of() {
  return std::to_string(8 * sizeof(T));
}

template <typename Memory, typename Value, typename Address>
void add_load(Registry& registry, const std::string& type) {
  const std::string name = "ld." + type + ".b" + bits_of<Value>() + ".a" + bits_of<Address>();
  registry.add(name, load<Memory, Value, Address>, memory_operands<Address>({list("values", sizeof(Value))}), is_vector);
}

template <typename Memory, typename Value, typename Address>
void add_store(Registry& registry) {
  const std::string name = "st.b" + bits_of<Memory>() + ".b" + bits_of<Value>() + ".a" + bits_of<Address>();
  registry.add(name, store<Memory, Value, Address>, memory_operands<Address>({list("values", sizeof(Value))}), is_vector);
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
  registry.add("discard", discard, {kAddressOf<u64>, kSpaceOf});
  registry.add("mapa.u32", map_to_rank<u32>, {slot("result", Field::kD, 4), slot("address", Field::kA, 4), kRank});
  registry.add("mapa.u64", map_to_rank<u64>, {slot("result", Field::kD, 8), slot("address", Field::kA, 8), kRank});
  registry.add("getctarank.u32", rank_of<u32>, {slot("result", Field::kD, 4), slot("address", Field::kA, 4)});
  registry.add("getctarank.u64", rank_of<u64>, {slot("result", Field::kD, 4), slot("address", Field::kA, 8)});
}

}  // namespace emulator
