// Atomics and reductions. Vectors have several results, operands and, for cas, replacements. Lanes execute in order.
#include <cmath>

#include "memory/access.hpp"

namespace emulator {

namespace {

constexpr u32 kMaxElements = 8;
using u128 = unsigned __int128;

bool is_shared(u32 space, u64 address) { return space == kShared || (space == kGeneric && address - kSharedWindow < kWindow); }

template <typename T, typename Operation, typename Address>
void atomic(Warp& warp, const Op& op, u32 mask) {
  constexpr u32 kSets = 2 + Operation::kSecond;  // results, operands, second operands
  const u32* slots = listed(warp, op);
  const u32 count = std::min(op.count / kSets, kMaxElements);
  u64 seen = mask;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = effective_address<Address>(warp, op, lane);
    note_combined(warp, op, lane, space_of(op), address, sizeof(T) * count);
    u8* at = reach(warp, op, lane, address, sizeof(T) * count, Access::kWrite, nullptr);
    T old[kMaxElements];
    std::memset(old, warp.run->options.poison, sizeof old);
    if (at) {
      T made[kMaxElements];
      std::memcpy(old, at, sizeof(T) * count);
      for (u32 i = 0; i < count; ++i) {
        const T value = warp.lanes<T>(slots[count + i])[lane];
        const T second = Operation::kSecond ? warp.lanes<T>(slots[(kSets - 1) * count + i])[lane] : T{};
        made[i] = Operation::apply(old[i], value, second, is_shared(space_of(op), address));
      }
      if (std::memcmp(at, made, sizeof(T) * count)) ++warp.run->events;
      std::memcpy(at, made, sizeof(T) * count);
      synchronise(warp, space_of(op), address, order_of(op), true);
    }
    seen = mixed(seen, address);
    for (u32 i = 0; i < count; ++i) {
      warp.lanes<T>(slots[i])[lane] = old[i];
      seen = mixed(seen, static_cast<u64>(old[i]));
      if constexpr (sizeof(T) == sizeof(u128)) seen = mixed(seen, static_cast<u64>(old[i] >> 64));
    }
  }
  if (op.kind == kPoll) note_poll(warp, op, seen);
}

// ---- integers ---------------------------------------------------------------------------------------------------------------
// One operand besides the old value.
struct Single {
  static constexpr u32 kSecond = 0;
};
struct Add : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return old + value;
  }
};
struct And : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return old & value;
  }
};
struct Or : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return old | value;
  }
};
struct Xor : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return old ^ value;
  }
};
struct Exchange : Single {
  template <typename T>
  static T apply(T, T value, T, bool) {
    return value;
  }
};
struct Least : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return std::min(old, value);
  }
};
struct Greatest : Single {
  template <typename T>
  static T apply(T old, T value, T, bool) {
    return std::max(old, value);
  }
};
struct Increment : Single {
  static u32 apply(u32 old, u32 bound, u32, bool) { return old >= bound ? 0 : old + 1; }
};
struct Decrement : Single {
  static u32 apply(u32 old, u32 bound, u32, bool) { return old == 0 || old > bound ? bound : old - 1; }
};
struct CompareAndSwap {
  static constexpr u32 kSecond = 1;
  template <typename T>
  static T apply(T old, T expected, T desired, bool) {
    return old == expected ? desired : old;
  }
};

// ---- floating point ---------------------------------------------------------------------------------------------------------
float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

// The unit at the L2 cache flushes subnormal numbers, that of shared memory does not.
struct AddFloat : Single {
  static u32 apply(u32 old, u32 value, u32, bool shared) {
    const float a = std::bit_cast<float>(old), b = std::bit_cast<float>(value);
    const float sum = shared ? a + b : flushed(flushed(a) + flushed(b));
    return std::isnan(sum) ? 0x7FFFFFFF : std::bit_cast<u32>(sum);
  }
};
// A NaN stays what it is, but that in shared memory it no longer signals.
struct AddDouble : Single {
  static u64 apply(u64 old, u64 value, u64, bool shared) {
    const double a = std::bit_cast<double>(old), b = std::bit_cast<double>(value);
    if (std::isnan(a) || std::isnan(b)) return (std::isnan(b) ? value : old) | (shared ? u64{1} << 51 : 0);
    return std::bit_cast<u64>(a + b);
  }
};

constexpr u16 kHalfNan = 0x7FFF;  // of both 16-bit formats
struct Half {
  static float widen(u16 bits) { return half_to_float(bits); }
  static u16 narrow(float value) { return std::isnan(value) ? kHalfNan : float_to_half(value); }
};
struct Brain {
  static float widen(u16 bits) { return bfloat_to_float(bits); }
  static u16 narrow(float value) { return float_to_bfloat(value); }
};

// A sum of two 16-bit numbers rounded to float and then to 16 bits is rounded as if once: float has twice the digits and two.
template <typename Format>
struct AddHalf : Single {
  static u16 apply(u16 old, u16 value, u16, bool) { return Format::narrow(Format::widen(old) + Format::widen(value)); }
};

// A number is preferred to NaN, and -0 is less than +0.
template <typename Format, bool kGreatest>
struct PickHalf : Single {
  static u16 apply(u16 old, u16 value, u16, bool) {
    const float a = Format::widen(old), b = Format::widen(value);
    if (std::isnan(a)) return std::isnan(b) ? kHalfNan : value;
    if (std::isnan(b)) return old;
    if (a == b) return kGreatest ? old & value : old | value;
    return (a < b) == kGreatest ? value : old;
  }
};

template <typename Each>
struct Both : Single {
  static u32 apply(u32 old, u32 value, u32, bool shared) {
    const u32 low = Each::apply(static_cast<u16>(old), static_cast<u16>(value), 0, shared);
    const u32 high = Each::apply(static_cast<u16>(old >> 16), static_cast<u16>(value >> 16), 0, shared);
    return low | high << 16;
  }
};

// ---- names ------------------------------------------------------------------------------------------------------------------
template <typename T, typename Operation>
void add(Registry& registry, const std::string& name) {
  std::vector<Operand> values{list("results", sizeof(T)), list("operands", sizeof(T))};
  if (Operation::kSecond) values.push_back(list("replacements", sizeof(T)));  // of cas
  registry.add("atom." + name + ".a32", atomic<T, Operation, u32>, memory_operands<u32>(values), has_order);
  registry.add("atom." + name + ".a64", atomic<T, Operation, u64>, memory_operands<u64>(values), has_order);
}

template <typename Operation>
void add_bits(Registry& registry, const std::string& name) {
  add<u32, Operation>(registry, name + ".b32");
  add<u64, Operation>(registry, name + ".b64");
}

template <typename Operation>
void add_ordered(Registry& registry, const std::string& name) {
  add<u32, Operation>(registry, name + ".u32");
  add<i32, Operation>(registry, name + ".s32");
  add<u64, Operation>(registry, name + ".u64");
  add<i64, Operation>(registry, name + ".s64");
}

template <typename Format>
void add_format(Registry& registry, const std::string& format) {
  add<u16, AddHalf<Format>>(registry, "add." + format);
  add<u32, Both<AddHalf<Format>>>(registry, "add." + format + "x2");
  add<u16, PickHalf<Format, false>>(registry, "min." + format);
  add<u32, Both<PickHalf<Format, false>>>(registry, "min." + format + "x2");
  add<u16, PickHalf<Format, true>>(registry, "max." + format);
  add<u32, Both<PickHalf<Format, true>>>(registry, "max." + format + "x2");
}

}  // namespace

void register_atomics(Registry& registry) {
  add_bits<And>(registry, "and");
  add_bits<Or>(registry, "or");
  add_bits<Xor>(registry, "xor");
  add_bits<Exchange>(registry, "exch");
  add_bits<CompareAndSwap>(registry, "cas");
  add<u16, CompareAndSwap>(registry, "cas.b16");
  add<u128, CompareAndSwap>(registry, "cas.b128");
  add<u128, Exchange>(registry, "exch.b128");
  add_ordered<Least>(registry, "min");
  add_ordered<Greatest>(registry, "max");
  add<u32, Add>(registry, "add.u32");
  add<u32, Add>(registry, "add.s32");
  add<u64, Add>(registry, "add.u64");
  add<u32, Increment>(registry, "inc.u32");
  add<u32, Decrement>(registry, "dec.u32");
  add<u32, AddFloat>(registry, "add.f32");
  add<u64, AddDouble>(registry, "add.f64");
  add_format<Half>(registry, "f16");
  add_format<Brain>(registry, "bf16");
}

}  // namespace emulator
