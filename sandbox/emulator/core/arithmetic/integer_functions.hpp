// Functions of integers as PTX has them, of one lane each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "bits.hpp"

namespace emulator {

template <typename T>
constexpr u32 kBits = 8 * sizeof(T);
template <typename T>
using Unsigned = std::make_unsigned_t<T>;

// Twice the width, where the compiler has one.
template <typename T>
struct Twice;
template <>
struct Twice<u16> {
  using Type = u32;
};
template <>
struct Twice<u32> {
  using Type = u64;
};
template <>
struct Twice<u64> {
  using Type = unsigned __int128;
};
template <>
struct Twice<i16> {
  using Type = i32;
};
template <>
struct Twice<i32> {
  using Type = i64;
};
template <>
struct Twice<i64> {
  using Type = __int128;
};
template <typename T>
using Wide = typename Twice<T>::Type;

template <typename T>
T upper_half(T a, T b) {
  return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) >> kBits<T>);
}

// Division by zero, which PTX leaves open, gives all ones on the hardware, as quotient and as remainder.
template <typename T>
T divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  return static_cast<T>(a / b);
}
template <typename T>
T remainder(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

template <typename T>
T distance(T a, T b) {
  using U = Unsigned<T>;
  return static_cast<T>(a < b ? static_cast<U>(b) - static_cast<U>(a) : static_cast<U>(a) - static_cast<U>(b));
}

inline i32 saturated(i64 value) {
  return static_cast<i32>(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

// ---- bits ------------------------------------------------------------------------------------------------------------------
template <typename T>
T ones(u32 count) {
  return count >= kBits<T> ? static_cast<T>(-1) : static_cast<T>((T{1} << count) - 1);
}

template <typename T>
T shift_left(T a, u32 count) {
  return count < kBits<T> ? static_cast<T>(a << (count & (kBits<T> - 1))) : T{0};
}
template <typename T>
T shift_right(T a, u32 count) {
  const T shifted = static_cast<T>(a >> (count & (kBits<T> - 1)));
  return count < kBits<T> ? shifted : a < 0 ? static_cast<T>(-1) : T{0};
}

template <typename T>
T reversed(T value) {
  T result = 0;
  for (u32 bit = 0; bit < kBits<T>; ++bit) result = static_cast<T>(result << 1 | (value >> bit & 1));
  return result;
}

// Position of the most significant bit that is no copy of the sign.
template <typename T>
u32 leading_bit(T value) {
  const auto magnitude = static_cast<Unsigned<T>>(value < 0 ? ~value : value);
  return magnitude ? static_cast<u32>(std::bit_width(magnitude)) - 1 : 0xFFFFFFFF;
}

// Position or length of a bit field: the low byte of 32 bits. Fields of 64 bits are several instructions to the hardware, which
// look at all of it.
template <typename T>
u32 field_bound(u32 value) {
  return sizeof(T) == 8 ? std::min(value, 0xFFu) : value & 0xFF;
}

template <typename T>
T extract_field(T a, u32 first, u32 length) {
  using U = Unsigned<T>;
  const u32 position = field_bound<T>(first), wanted = field_bound<T>(length);
  const u32 present = position < kBits<T> ? std::min(wanted, kBits<T> - position) : 0;
  const U field = present ? static_cast<U>(static_cast<U>(a) >> position) & ones<U>(present) : U{0};
  const u32 last = std::min(position + wanted - 1, kBits<T> - 1);
  const bool negative = std::is_signed_v<T> && wanted && (static_cast<U>(a) >> last & 1);
  return static_cast<T>(negative ? field | static_cast<U>(~ones<U>(present)) : field);
}

inline i64 product_of_24_bits(i32 a, i32 b) { return i64{extract_field(a, 0, 24)} * extract_field(b, 0, 24); }

template <typename T>
T insert_field(T field, T into, u32 first, u32 length) {
  const u32 position = field_bound<T>(first);
  if (position >= kBits<T>) return into;
  const T where = static_cast<T>(ones<T>(field_bound<T>(length)) << position);
  return static_cast<T>((into & ~where) | (static_cast<T>(field << position) & where));
}

inline u32 find_nth_set(u32 mask, u32 base, i32 offset) {
  if (offset == INT32_MIN) return 0;  // what the hardware's sequence makes of it
  if (base >= 32) return 0xFFFFFFFF;
  if (offset == 0) return mask >> base & 1 ? base : 0xFFFFFFFF;
  const i32 step = offset > 0 ? 1 : -1;
  u32 left = offset > 0 ? static_cast<u32>(offset) : 0u - static_cast<u32>(offset);
  for (i32 at = static_cast<i32>(base); at >= 0 && at < 32; at += step) {
    if ((mask >> at & 1) && --left == 0) return static_cast<u32>(at);
  }
  return 0xFFFFFFFF;
}

inline u32 permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 choice = selector >> 4 * i & 0xF;
    const u32 byte = static_cast<u32>(bytes >> 8 * (choice & 7)) & 0xFF;
    result |= (choice & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
  }
  return result;
}

inline u32 funnel_left(u32 low, u32 high, u32 count) {
  return static_cast<u32>((static_cast<u64>(high) << 32 | low) << count >> 32);
}
inline u32 funnel_right(u32 low, u32 high, u32 count) {
  return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> count);
}

inline u32 extended(u32 a, u32 width, bool clamp, bool is_signed) {
  if (clamp && width >= 32) return a;
  const u32 bits = width & 31, above = ~ones<u32>(bits);
  const bool negative = is_signed && bits && (a >> ((bits - 1) & 31) & 1);
  return (a & ~above) | (negative ? above : 0);
}

inline u32 bit_mask(u32 first, u32 width, bool clamp) {
  const u32 position = first & 31, bits = width & 31;
  const u32 from = clamp && first >= 32 ? 0 : ~ones<u32>(position);
  if (position + bits >= 32 || (clamp && (first >= 32 || width >= 32))) return from;
  return from & ones<u32>(position + bits);
}

// Sum of products of bytes with bytes (dp4a) or, from `first` on, with 16-bit halves (dp2a).
template <typename A, typename B, int kProducts>
u32 dot(u32 a, u32 b, u32 c, int first) {
  for (int i = 0; i < kProducts; ++i) {
    const auto left = static_cast<A>(a >> i * static_cast<int>(kBits<A>));
    const auto right = static_cast<B>(b >> 8 * (first + i));
    c += static_cast<u32>(static_cast<i32>(left) * static_cast<i32>(right));
  }
  return c;
}

// Absolute differences of four unsigned bytes, and their sum.
struct Differences {
  u32 packed, sum;
};
inline Differences differences(u32 a, u32 b) {
  Differences made{0, 0};
  for (int at = 0; at < 32; at += 8) {
    const u32 left = a >> at & 0xFF, right = b >> at & 0xFF, away = left > right ? left - right : right - left;
    made.packed |= away << at;
    made.sum += away;
  }
  return made;
}

// Applies a 16-bit function to both halves of 32-bit words.
template <typename T, typename Compute>
u32 paired(u32 a, u32 b, Compute compute) {
  const auto low = static_cast<u16>(compute(static_cast<T>(a), static_cast<T>(b)));
  const auto high = static_cast<u16>(compute(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
  return static_cast<u32>(high) << 16 | low;
}

}  // namespace emulator
