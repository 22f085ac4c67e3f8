// Makes a handler of a function that computes one lane's result: slots, sizes and the mask follow from its parameters.
//
// `bool` stands for a predicate. A first parameter of type `const OpRecord&` receives the operation and its small numbers.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

template <typename T>
struct Source {
  Source(Warp& warp, u32 slot) : lanes(warp.lanes<T>(slot)) {}
  T operator[](int lane) const { return lanes[lane]; }
  const T* lanes;
};

template <>
struct Source<bool> {
  Source(Warp& warp, u32 slot) : mask(warp.mask(slot)) {}
  bool operator[](int lane) const { return mask >> lane & 1; }
  u32 mask;
};

// The mask of the lanes for which `holds(lane)`; asks all of them.
template <typename Holds>
inline __attribute__((always_inline)) u32 gather(Holds&& holds) {
  alignas(32) u8 flags[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) flags[lane] = holds(lane) ? 0xFF : 0;
  return static_cast<u32>(_mm256_movemask_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(flags))));
}

inline void write_mask(Warp& warp, u32 slot, u32 mask, u32 bits) {
  u32& held = warp.mask(slot);
  held = (held & ~mask) | (bits & mask);
}

template <typename T>
constexpr u8 lane_bytes() {
  return std::is_same_v<T, bool> ? kMask : sizeof(T);
}

using Names = std::vector<const char*>;

inline Names usual_names(std::size_t sources) {
  return sources == 1 ? Names{"value"} : sources == 2 ? Names{"left", "right"} : Names{"left", "right", "addend"};
}

// How a result is rounded and what else happens to it (rounding.hpp).
constexpr Operand kRounding = optional(number("rounding", Field::kP, "Rounding"));
constexpr Operand kModifiers = optional(number("modifiers", Field::kQ, "Modifier"));

inline std::vector<Operand> with_modifiers(std::vector<Operand> operands) {
  operands.push_back(kRounding);
  operands.push_back(kModifiers);
  return operands;
}

template <typename Compute, bool kWithOp, typename D, typename... A>
struct Lanewise {
  static constexpr bool kTakesOp = kWithOp;
  static_assert(sizeof...(A) <= 4, "an operation has four source slots");

  // `names`: of the sources where they are not of one kind.
  static std::vector<Operand> operands(Names names = {}) {
    constexpr Field kFields[] = {Field::kA, Field::kB, Field::kC, Field::kE};
    constexpr u8 kBytes[] = {lane_bytes<A>()..., 0};
    const Names& chosen = names.empty() ? usual_names(sizeof...(A)) : names;
    std::vector<Operand> made{slot("result", Field::kD, lane_bytes<D>())};
    for (std::size_t i = 0; i < sizeof...(A); ++i) made.push_back(slot(chosen[i], kFields[i], kBytes[i]));
    return made;
  }
  static void run(Warp& warp, const Op& op, u32 mask) { run(warp, op, mask, std::index_sequence_for<A...>{}); }

 private:
  template <std::size_t... kIndex>
  static inline __attribute__((always_inline)) void run(Warp& warp, const Op& op, u32 mask, std::index_sequence<kIndex...>) {
    const u32 slots[] = {op.a, op.b, op.c, op.e};
    execute(warp, op, mask, Source<A>(warp, slots[kIndex])...);
  }

  static inline __attribute__((always_inline)) void execute(Warp& warp, const Op& op, u32 mask, Source<A>... sources) {
    const OpRecord record = op;  // results do not alias it, so that its numbers stay in registers
    auto value = [&](int lane) -> D {
      if constexpr (kWithOp) {
        return Compute{}(record, sources[lane]...);
      } else {
        return Compute{}(sources[lane]...);
      }
    };
    if constexpr (std::is_same_v<D, bool>) {
      write_mask(warp, op.d, mask, gather(value));
    } else {
      D* d = warp.lanes<D>(op.d);
      for_lanes(mask, [&](int lane) { d[lane] = value(lane); });
    }
  }
};

template <typename Member>
struct LanewiseOf;
template <typename Compute, typename D, typename... A>
struct LanewiseOf<D (Compute::*)(A...) const> {
  using Type = Lanewise<Compute, false, D, A...>;
};
template <typename Compute, typename D, typename... A>
struct LanewiseOf<D (Compute::*)(const OpRecord&, A...) const> {
  using Type = Lanewise<Compute, true, D, A...>;
};

template <typename Compute>
using LanewiseFor = typename LanewiseOf<decltype(&Compute::operator())>::Type;

// Registers a lambda without captures. One that takes the operation reads how to round from it.
template <typename Compute>
void add_lanes(Registry& registry, const std::string& name, Compute, Names names = {}) {
  using Made = LanewiseFor<Compute>;
  std::vector<Operand> operands = Made::operands(std::move(names));
  registry.add(name, Made::run, Made::kTakesOp ? with_modifiers(std::move(operands)) : std::move(operands));
}

// The same with a number of its own.
template <typename Compute>
void add_lanes(Registry& registry, const std::string& name, Compute, Names names, Operand number) {
  using Made = LanewiseFor<Compute>;
  std::vector<Operand> operands = Made::operands(std::move(names));
  operands.push_back(number);
  registry.add(name, Made::run, std::move(operands));
}

}  // namespace emulator
