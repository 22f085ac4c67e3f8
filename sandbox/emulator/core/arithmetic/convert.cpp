// Conversions between types, moves, and addresses in and out of the generic space.
#include "arithmetic/lanes.hpp"
#include "arithmetic/rounding.hpp"

namespace emulator {

namespace {

// ---- formats ---------------------------------------------------------------------------------------------------------------
// The storage of a floating-point format in a lane, and the type to compute with.
template <typename Format>
struct Stored {  // Half, Bfloat
  using Lane = u16;
  using Value = float;
  static Value value(u16 bits) { return Format::widened(bits); }
};
template <>
struct Stored<float> {
  using Lane = float;
  using Value = float;
  static float value(float lane) { return lane; }
};
template <>
struct Stored<double> {
  using Lane = double;
  using Value = double;
  static double value(double lane) { return lane; }
};

template <typename Format>
constexpr bool kIsHalf = !std::is_floating_point_v<Format>;

// The operand, with the f32 ones flushed where the operation says so.
template <typename S>
typename Stored<S>::Value operand(const OpRecord& op, typename Stored<S>::Lane lane) {
  const auto value = Stored<S>::value(lane);
  if constexpr (std::is_same_v<S, float>) {
    if (kModifiers(op) & kFlush) return flushed(value);
  }
  return value;
}

template <typename Format, typename Value>
u16 to_half(const OpRecord& op, Value value) {
  float rounded_once = odd_float(value);  // subnormals of f32 count even under .ftz
  if (kModifiers(op) & kSaturate) rounded_once = saturated_unit(rounded_once);
  if (kModifiers(op) & kRelu) rounded_once = rectified(rounded_once);
  const u16 bits = Format::rounded(rounded_once, kRounding(op));
  const bool infinite = (bits & 0x7FFF) == Format::kInfinity;
  return infinite && (kModifiers(op) & kSatFinite) ? static_cast<u16>((bits & 0x8000) | Format::kLargest) : bits;
}

// In a RoundingScope. A NaN of f64 keeps its sign and upper bits.
template <typename D, typename Value>
D to_word(const OpRecord& op, Value value) {
  constexpr bool kNarrows = std::is_same_v<D, float> && std::is_same_v<Value, double>;
  D result = static_cast<D>(value);
  if (std::is_integral_v<Value> && value == 0) result = 0;  // the compiler's sequence may give -0 where all is rounded down
  if (std::is_same_v<D, float> && (kModifiers(op) & kFlush)) result = flushed(result);
  if (kModifiers(op) & kSaturate) result = saturated_unit(result);
  if constexpr (std::is_same_v<D, float> && !kNarrows) result = canonical(result);
  return result;
}

template <typename D, typename S>
D to_integer(S value, u32 mode) {
  constexpr bool kNanIsZero = !std::is_same_v<S, double> && sizeof(D) < 8;
  constexpr auto kNan = static_cast<D>(std::make_unsigned_t<D>{1} << (8 * sizeof(D) - 1));
  constexpr double kBeyond = (std::is_signed_v<D> ? 1.0 : 2.0) * static_cast<double>(u64{1} << (8 * sizeof(D) - 1));
  constexpr double kLeast = std::is_signed_v<D> ? -kBeyond : 0;
  if (value != value) return kNanIsZero ? D{0} : kNan;
  const double whole = integral(value, mode);
  if (whole >= kBeyond) return std::numeric_limits<D>::max();
  return whole <= kLeast ? std::numeric_limits<D>::min() : static_cast<D>(whole);
}

float to_tf32(const OpRecord& op, float value) {
  if (value != value) return std::bit_cast<float>((kRounding(op) == kAway ? std::bit_cast<u32>(value) : 0x7FFFFFFF) & ~0x1FFFu);
  const u32 bits = std::bit_cast<u32>(kModifiers(op) & kRelu ? rectified(value) : value);
  const u32 half = kRounding(op) == kZero ? 0 : kRounding(op) == kAway ? 0x1000 : 0xFFF + (bits >> 13 & 1);
  return std::bit_cast<float>((bits + half) & ~0x1FFFu);
}

template <typename Lanes>
void rounded_by_mode(Warp& warp, const Op& op, u32 mask) {
  const RoundingScope scope(kRounding(op), kModifiers(op) & kFlush);
  Lanes::run(warp, op, mask);
}

template <typename Compute>
void add_rounded(Registry& r, const std::string& name, Compute) {
  r.add(name, rounded_by_mode<LanewiseFor<Compute>>, with_modifiers(LanewiseFor<Compute>::operands()));
}

// ---- whole warps of 16-bit numbers -----------------------------------------------------------------------------------------
// A NaN of f16 becomes the canonical one, of bf16 it keeps its bits.
template <typename Format>
void widen(Warp& warp, const Op& op, u32 mask) {
  float values[kLanes];
  Format::widen(warp.lanes<u16>(op.a), values, kLanes);
  float* d = warp.lanes<float>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = std::is_same_v<Format, Half> ? canonical(values[lane]) : values[lane]; });
}

template <typename Format>
void narrow(Warp& warp, const Op& op, u32 mask) {
  u16 values[kLanes];
  Format::narrow(warp.lanes<float>(op.a), values, kLanes);
  u16* d = warp.lanes<u16>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = values[lane]; });
}

// `upper` becomes the upper half of the result, `lower` the lower half.
template <typename Format>
void narrow_two(Warp& warp, const Op& op, u32 mask) {
  u16 upper[kLanes], lower[kLanes];
  Format::narrow(warp.lanes<float>(op.a), upper, kLanes);
  Format::narrow(warp.lanes<float>(op.b), lower, kLanes);
  u32* d = warp.lanes<u32>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<u32>(upper[lane]) << 16 | lower[lane]; });
}

// ---- vectors ---------------------------------------------------------------------------------------------------------------
// The listed slots are the elements of d, the first in the lowest bits.
template <typename Element, int kCount>
void pack(Warp& warp, const Op& op, u32 mask) {
  const u32* elements = warp.run->program.lists.data() + op.list;
  Element* d = warp.lanes<Element>(op.d);
  for (int i = 0; i < kCount; ++i) {
    const Element* from = warp.lanes<Element>(elements[i]);
    for_lanes(mask, [&](int lane) { d[lane * kCount + i] = from[lane]; });
  }
}

template <typename Element, int kCount>
void unpack(Warp& warp, const Op& op, u32 mask) {
  const u32* elements = warp.run->program.lists.data() + op.list;
  const Element* a = warp.lanes<Element>(op.a);
  for (int i = 0; i < kCount; ++i) {
    Element* to = warp.lanes<Element>(elements[i]);
    for_lanes(mask, [&](int lane) { to[lane] = a[lane * kCount + i]; });
  }
}

template <typename Element, int kCount>
void add_vector(Registry& r, const std::string& shape) {
  constexpr u8 all = sizeof(Element) * kCount;
  constexpr Operand elements = list("elements", sizeof(Element), kCount, kCount);
  r.add("pack." + shape, pack<Element, kCount>, {slot("result", Field::kD, all), elements});
  r.add("unpack." + shape, unpack<Element, kCount>, {elements, slot("value", Field::kA, all)});
}

// ---- addresses -------------------------------------------------------------------------------------------------------------
bool in_window(u64 address, u64 window) { return address - window < kWindow; }

void is_of_this_cta(Warp& warp, const Op& op, u32 mask) {
  const u64* a = warp.lanes<u64>(op.a);
  const u32 rank = warp.cta->rank;
  write_mask(warp, op.d, mask, gather([&](int lane) {
               return in_window(a[lane], kSharedWindow) && static_cast<u32>(a[lane]) >> kRankShift == rank;
             }));
}

void add_addresses(Registry& r) {
  add_lanes(r, "cvta.shared", [](u64 a) { return a + kSharedWindow; });
  add_lanes(r, "cvta.local", [](u64 a) { return a + kLocalWindow; });
  add_lanes(r, "cvta.param", [](u64 a) { return a + kParamWindow; });
  add_lanes(r, "cvta.to.shared", [](u64 a) { return a - kSharedWindow; });
  add_lanes(r, "cvta.to.local", [](u64 a) { return a - kLocalWindow; });
  add_lanes(r, "cvta.to.param", [](u64 a) { return a - kParamWindow; });
  add_lanes(r, "isspacep.shared", [](u64 a) { return in_window(a, kSharedWindow); });
  add_lanes(r, "isspacep.local", [](u64 a) { return in_window(a, kLocalWindow); });
  add_lanes(r, "isspacep.param", [](u64 a) { return in_window(a, kParamWindow); });
  add_lanes(r, "isspacep.global",
            [](u64 a) { return !in_window(a, kSharedWindow) && !in_window(a, kLocalWindow) && !in_window(a, kParamWindow); });
  r.add("isspacep.cta", is_of_this_cta, {slot("result", Field::kD, kMask), slot("value", Field::kA, 8)});
}

// ---- tables ----------------------------------------------------------------------------------------------------------------
// Between integers: cut off, or extended by the sign of the source. The sign of the result does not matter.
template <typename D, typename S>
void add_integer(Registry& r, const std::string& name) {
  add_lanes(r, name, [](S a) { return static_cast<D>(a); });
}

template <typename S>
void add_from_integer(Registry& r, const std::string& from) {
  add_integer<u8, S>(r, "cvt.u8." + from), add_integer<u16, S>(r, "cvt.u16." + from);
  add_integer<u32, S>(r, "cvt.u32." + from), add_integer<u64, S>(r, "cvt.u64." + from);
  add_rounded(r, "cvt.f32." + from, [](const OpRecord& op, S a) { return to_word<float>(op, a); });
  add_rounded(r, "cvt.f64." + from, [](const OpRecord& op, S a) { return to_word<double>(op, a); });
  add_lanes(r, "cvt.f16." + from, [](const OpRecord& op, S a) { return to_half<Half>(op, odd_double(a)); });
  add_lanes(r, "cvt.bf16." + from, [](const OpRecord& op, S a) { return to_half<Bfloat>(op, odd_double(a)); });
}

template <typename D, typename S>
void add_to_integer(Registry& r, const std::string& name) {
  using Lane = typename Stored<S>::Lane;
  add_lanes(r, name, [](const OpRecord& op, Lane a) { return to_integer<D>(operand<S>(op, a), kRounding(op)); });
}

template <typename S>
void add_from_float(Registry& r, const std::string& from) {
  using Lane = typename Stored<S>::Lane;
  add_to_integer<u8, S>(r, "cvt.u8." + from), add_to_integer<i8, S>(r, "cvt.s8." + from);
  add_to_integer<u16, S>(r, "cvt.u16." + from), add_to_integer<i16, S>(r, "cvt.s16." + from);
  add_to_integer<u32, S>(r, "cvt.u32." + from), add_to_integer<i32, S>(r, "cvt.s32." + from);
  add_to_integer<u64, S>(r, "cvt.u64." + from), add_to_integer<i64, S>(r, "cvt.s64." + from);
  add_rounded(r, "cvt.f32." + from, [](const OpRecord& op, Lane a) { return to_word<float>(op, operand<S>(op, a)); });
  add_rounded(r, "cvt.f64." + from, [](const OpRecord& op, Lane a) { return to_word<double>(op, operand<S>(op, a)); });
  add_lanes(r, "cvt.f16." + from, [](const OpRecord& op, Lane a) { return to_half<Half>(op, Stored<S>::value(a)); });
  add_lanes(r, "cvt.bf16." + from, [](const OpRecord& op, Lane a) { return to_half<Bfloat>(op, Stored<S>::value(a)); });
  // To an integer in the same format.
  add_lanes(r, "integral." + from, [](const OpRecord& op, Lane a) -> Lane {
    const double whole = integral(operand<S>(op, a), kRounding(op));
    if constexpr (kIsHalf<S>) {
      return S::rounded(static_cast<float>(whole), kNearest);
    } else {
      return std::is_same_v<S, float> ? canonical(static_cast<float>(whole)) : static_cast<Lane>(whole);
    }
  });
}

template <typename Format>
void add_narrow(Registry& r, const std::string& type) {
  r.add("widen." + type, widen<Format>, {slot("result", Field::kD, 4), slot("value", Field::kA, 2)});
  r.add("narrow." + type, narrow<Format>, {slot("result", Field::kD, 2), slot("value", Field::kA, 4)});
  r.add("narrow." + type + "x2", narrow_two<Format>,
        {slot("result", Field::kD, 4), slot("upper", Field::kA, 4), slot("lower", Field::kB, 4)});
}

void add_moves(Registry& r) {
  using u128 = unsigned __int128;
  add_lanes(r, "mov.b8", [](u8 a) { return a; });
  add_lanes(r, "mov.b16", [](u16 a) { return a; });
  add_lanes(r, "mov.b32", [](u32 a) { return a; });
  add_lanes(r, "mov.b64", [](u64 a) { return a; });
  add_lanes(r, "mov.b128", [](u128 a) { return a; });
  add_vector<u8, 2>(r, "2x8"), add_vector<u8, 4>(r, "4x8");
  add_vector<u16, 2>(r, "2x16"), add_vector<u16, 4>(r, "4x16");
  add_vector<u32, 2>(r, "2x32"), add_vector<u32, 4>(r, "4x32");
  add_vector<u64, 2>(r, "2x64");
}

}  // namespace

void register_convert(Registry& r) {
  add_from_integer<u8>(r, "u8"), add_from_integer<u16>(r, "u16");
  add_from_integer<u32>(r, "u32"), add_from_integer<u64>(r, "u64");
  add_from_integer<i8>(r, "s8"), add_from_integer<i16>(r, "s16");
  add_from_integer<i32>(r, "s32"), add_from_integer<i64>(r, "s64");
  add_from_float<float>(r, "f32"), add_from_float<double>(r, "f64");
  add_from_float<Half>(r, "f16"), add_from_float<Bfloat>(r, "bf16");
  add_lanes(r, "cvt.tf32.f32", [](const OpRecord& op, float a) { return to_tf32(op, a); });
  add_narrow<Half>(r, "f16"), add_narrow<Bfloat>(r, "bf16");
  add_moves(r);
  add_addresses(r);
}

}  // namespace emulator
