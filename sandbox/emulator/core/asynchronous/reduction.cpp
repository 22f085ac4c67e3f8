#include "asynchronous/reduction.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "machine/address_space.hpp"

namespace emulator {

namespace {

template <typename T>
T sum(T x, T y) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<u64>(x) + static_cast<u64>(y));  // wraps around
  return static_cast<T>(x + y);
}

template <typename T>
T reduce_number(T old, T value, u32 how) {
  switch (how) {
    case kAdd:
      return sum(old, value);
    case kMin:
      return std::min(old, value);
    case kMax:
      return std::max(old, value);
    default:
      return value;
  }
}

template <typename T>
T reduce_bits(T old, T value, u32 how) {
  switch (how) {
    case kInc:
      return old >= value ? T{0} : static_cast<T>(old + 1);
    case kDec:
      return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case kAnd:
      return old & value;
    case kOr:
      return old | value;
    case kXor:
      return old ^ value;
    default:
      return reduce_number(old, value, how);
  }
}

template <typename T, typename Reduce>
void reduce_each(u8* target, const u8* source, u64 bytes, Reduce&& reduce) {
  for (u64 at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T old, value;
    std::memcpy(&old, target + at, sizeof(T));
    std::memcpy(&value, source + at, sizeof(T));
    old = reduce(old, value);
    std::memcpy(target + at, &old, sizeof(T));
  }
}

}  // namespace

void put(u8* target, const u8* source, u64 bytes, u32 how, u32 type) {
  if (how == kStore) {
    std::memmove(target, source, bytes);  // a copy within shared memory may overlap
    return;
  }
  const auto bits = [how](auto old, auto value) { return reduce_bits(old, value, how); };
  const auto number = [how](auto old, auto value) { return reduce_number(old, value, how); };
  switch (type) {
    case kTypeU8:
      return reduce_each<u8>(target, source, bytes, bits);
    case kTypeU16:
      return reduce_each<u16>(target, source, bytes, bits);
    case kTypeU32:
      return reduce_each<u32>(target, source, bytes, bits);
    case kTypeI32:
      return reduce_each<i32>(target, source, bytes, number);
    case kTypeU64:
      return reduce_each<u64>(target, source, bytes, bits);
    case kTypeI64:
      return reduce_each<i64>(target, source, bytes, number);
    case kTypeF32:
      return reduce_each<float>(target, source, bytes, number);
    case kTypeF64:
      return reduce_each<double>(target, source, bytes, number);
    case kTypeF16:
      return reduce_each<u16>(target, source, bytes, [how](u16 old, u16 value) {
        return float_to_half(reduce_number(half_to_float(old), half_to_float(value), how));
      });
    case kTypeBf16:
      return reduce_each<u16>(target, source, bytes, [how](u16 old, u16 value) {
        return float_to_bfloat(reduce_number(bfloat_to_float(old), bfloat_to_float(value), how));
      });
    default:
      return;
  }
}

u32 combined_bytes(u32 how, u32 type) {
  constexpr u32 kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};  // by TensorType
  return how == kStore ? 0 : type < std::size(kBytes) ? kBytes[type] : 1;
}

}  // namespace emulator
