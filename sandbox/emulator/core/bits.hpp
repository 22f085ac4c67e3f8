// Bit patterns of the types that PTX computes with, and loops over the lanes of a warp.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace emulator {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

constexpr int kLanes = 32;
constexpr u32 kAllLanes = 0xFFFFFFFF;

inline float half_to_float(u16 half) { return _cvtsh_ss(half); }
inline u16 float_to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

inline float bfloat_to_float(u16 bits) { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }

// Rounds to nearest even; every NaN becomes the canonical one, as the hardware has it.
inline u16 float_to_bfloat(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline int first_lane(u32 mask) { return mask ? std::countr_zero(mask) : 0; }

// Calls `body(lane)` for every lane of `mask`; the whole warp is a loop that the compiler can vectorise.
template <typename Body>
inline __attribute__((always_inline)) void for_lanes(u32 mask, Body&& body) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    for (; mask; mask &= mask - 1) body(std::countr_zero(mask));
  }
}

}  // namespace emulator
