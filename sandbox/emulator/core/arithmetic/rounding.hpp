// Rounding as PTX has it: modes, subnormals flushed, saturation, canonical NaNs, and conversions that round once.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "bits.hpp"

namespace emulator {

// Modes as the processor's control register numbers them; the last one is only for cvt.
enum Rounding : u32 { kNearest, kDown, kUp, kZero, kAway };

// What an operation does with its results beside rounding them.
enum Modifier : u32 {
  kFlush = 1,      // .ftz: subnormal operands and results become zeros of their sign
  kSaturate = 2,   // .sat: [0, 1], and NaN becomes 0
  kRelu = 4,       // .relu: what is below zero becomes 0
  kSatFinite = 8,  // .satfinite: infinities become the largest number
};

// Rounds all arithmetic of its scope by a mode, and flushes subnormal results where asked. Memory is a border that no load,
// store or what lies between them passes.
class RoundingScope {
 public:
  explicit RoundingScope(u32 mode, bool flush = false) : saved_(_mm_getcsr()) {
    set((saved_ & ~0x6000u) | (mode & 3) << 13 | (flush ? _MM_FLUSH_ZERO_ON : 0));
  }
  ~RoundingScope() { set(saved_); }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  static void set(u32 control) { asm volatile("ldmxcsr %0" : : "m"(control) : "memory"); }
  u32 saved_;
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, u32, u64>;
template <typename T>
constexpr BitsOf<T> kSignBit = BitsOf<T>{1} << (8 * sizeof(T) - 1);

// The NaN that arithmetic of f32 gives: every bit but the sign.
inline float canonical(float value) { return value != value ? std::bit_cast<float>(0x7FFFFFFFu) : value; }

// A NaN of f64 with its sign and payload, which no longer signals.
inline double quiet(double nan) { return std::bit_cast<double>(std::bit_cast<u64>(nan) | u64{1} << 51); }

template <typename T>
inline T flushed(T value) {
  const auto bits = std::bit_cast<BitsOf<T>>(value);
  const bool subnormal = (bits & ~kSignBit<T>) < std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::min());
  return std::bit_cast<T>(subnormal ? bits & kSignBit<T> : bits);
}

template <typename T>
inline T saturated_unit(T value) {
  const T positive = value > 0 ? value : T{0};
  return positive < 1 ? positive : T{1};
}

template <typename T>
inline T rectified(T value) {
  return value > 0 ? value : value != value ? value : T{0};
}

// Nearest integer by a mode, as a floating-point number.
inline double integral(double value, u32 mode) {
  switch (mode) {
    case kDown:
      return std::floor(value);
    case kUp:
      return std::ceil(value);
    case kZero:
      return std::trunc(value);
    default:
      return std::nearbyint(value);
  }
}

// ---- rounding once ---------------------------------------------------------------------------------------------------------
// A number rounded to odd (what does not fit leaves the last bit set) can be rounded to a shorter format as if it were exact.
// Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).

// Corrects `rounded`, which misses the exact value by `error`. Selections only, so that loops over it are vectorised.
template <typename T>
inline T odd(T rounded, T error) {
  using U = BitsOf<T>;
  const U bits = std::bit_cast<U>(rounded), apart = bits ^ std::bit_cast<U>(error);
  U step = apart & kSignBit<T> ? static_cast<U>(-1) : U{1};
  step = bits & 1 ? U{0} : step;
  step = error != 0 ? step : U{0};
  step = (bits & ~kSignBit<T>) < std::bit_cast<U>(std::numeric_limits<T>::infinity()) ? step : U{0};
  return std::bit_cast<T>(bits + step);
}

// a * b + c, where the product is exact in T.
template <typename T>
inline T odd_fma(T a, T b, T c) {
  const T product = a * b, sum = product + c;
  const T from_c = sum - product;
  return odd(sum, (product - (sum - from_c)) + (c - from_c));
}

inline float odd_float(float value) { return value; }
inline float odd_float(double value) {
  const auto near = static_cast<float>(value);
  const u32 bits = std::bit_cast<u32>(near);
  const double back = near;
  if (back == value || value != value || (bits & 1) || std::isinf(value)) return near;
  return std::bit_cast<float>(std::fabs(back) > std::fabs(value) ? bits - 1 : bits + 1);
}

template <typename T>
inline double odd_double(T integer) {
  if constexpr (sizeof(T) <= 4) {
    return integer;
  } else {  // the last 11 bits only tell whether the rest is all
    const bool negative = integer < 0;
    const u64 magnitude = negative ? u64{0} - static_cast<u64>(integer) : static_cast<u64>(integer);
    const u64 kept = magnitude >> 53 ? (magnitude & ~u64{0x7FF}) | (magnitude & 0x7FF ? 0x800 : 0) : magnitude;
    const auto value = static_cast<double>(kept);
    return negative ? -value : value;
  }
}

// ---- 16-bit formats --------------------------------------------------------------------------------------------------------
inline u16 rounded_half(float value, u32 mode) {
  if (value != value) return 0x7FFF;
  switch (mode) {
    case kDown:
      return static_cast<u16>(_cvtss_sh(value, _MM_FROUND_TO_NEG_INF));
    case kUp:
      return static_cast<u16>(_cvtss_sh(value, _MM_FROUND_TO_POS_INF));
    case kZero:
      return static_cast<u16>(_cvtss_sh(value, _MM_FROUND_TO_ZERO));
    default:
      return float_to_half(value);
  }
}

inline u16 rounded_bfloat(float value, u32 mode) {
  const u32 bits = std::bit_cast<u32>(value);
  if (mode == kNearest || value != value) return float_to_bfloat(value);
  const bool outward = (bits & 0xFFFF) && std::isfinite(value) && mode == (bits >> 31 ? kDown : kUp);
  return static_cast<u16>((bits >> 16) + outward);
}

// f16 and bf16 in arithmetic. `Exact` holds every product of two; `widen` and `narrow` convert multiples of 8
// numbers; a widened NaN keeps its sign and payload. `kFlushedBelow`: what .ftz leaves is at least so large; it would round to
// the smallest normal number if there were exponents below that.
struct Half {
  using Exact = float;
  static constexpr u16 kInfinity = 0x7C00, kSmallestNormal = 0x0400, kLargest = 0x7BFF;

  static constexpr float kFlushedBelow = 0x1.ffep-15f;

  static float widened(u16 bits) { return half_to_float(bits); }
  static u16 rounded(float value, u32 mode) { return rounded_half(value, mode); }
  static void widen(const u16* from, float* to, int count) {
    for (int i = 0; i < count; i += 8) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
    }
  }
  static void narrow(const float* from, u16* to, int count) {
    for (int i = 0; i < count; i += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
    }
    for (int i = 0; i < count; ++i) to[i] = (to[i] & 0x7FFF) > kInfinity ? 0x7FFF : to[i];
  }
};

struct Bfloat {
  using Exact = double;
  static constexpr u16 kInfinity = 0x7F80, kSmallestNormal = 0x0080, kLargest = 0x7F7F;

  static constexpr float kFlushedBelow = 0x1.ffp-127f;

  static float widened(u16 bits) { return bfloat_to_float(bits); }
  static u16 rounded(float value, u32 mode) { return rounded_bfloat(value, mode); }
  static void widen(const u16* from, float* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = bfloat_to_float(from[i]);
  }
  static void narrow(const float* from, u16* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = float_to_bfloat(from[i]);
  }
};

// Subnormals of a 16-bit format as zeros of their sign: operands, and results that are still to be rounded.
template <typename Format>
inline u16 flushed_bits(u16 bits) {
  return (bits & 0x7FFF) < Format::kSmallestNormal ? static_cast<u16>(bits & 0x8000) : bits;
}
template <typename Format>
inline float flushed_value(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return (bits & 0x7FFFFFFF) < std::bit_cast<u32>(Format::kFlushedBelow) ? std::bit_cast<float>(bits & 0x80000000) : value;
}

}  // namespace emulator
