// Arithmetic and comparison of f32, f64, f16 and bf16.
//
// Approximations (.approx, .full) are computed as exactly as the C library can, which is within the bounds that PTX states.
#include "arithmetic/lanes.hpp"
#include "arithmetic/rounding.hpp"

namespace emulator {

namespace {

template <typename T, std::size_t>
using Repeat = T;

// ---- f32 and f64 -----------------------------------------------------------------------------------------------------------
// A NaN of f32 is the canonical one; of f64 it is that of b, of c or of a, the first of them that is one.
template <typename... A>
inline float settled(float value, A...) {
  return canonical(value);
}
inline double settled(double value, double a, double b = 0, double c = 0) {
  return value == value ? value : quiet(b != b ? b : c != c ? c : a != a ? a : value);
}

// `Compute` of operands of one type, rounded to nearest.
template <typename T, typename Compute, typename... A>
struct Plain {
  T operator()(A... operands) const { return settled(static_cast<T>(Compute{}(operands...)), operands...); }
};

// The same with modifiers.
template <typename T, typename Compute, typename... A>
struct Modified {
  T operator()(const OpRecord& op, A... operands) const {
    const bool flush = kModifiers(op) & kFlush;
    const T value = static_cast<T>(Compute{}((flush ? flushed(operands) : operands)...));
    return settled(kModifiers(op) & kSaturate ? saturated_unit(value) : value, operands...);
  }
};

// Rounds everything by the operation's mode. Results are flushed if they would be too small with exponents of any size.
template <typename Lanes>
void rounded_by_mode(Warp& warp, const Op& op, u32 mask) {
  const RoundingScope scope(kRounding(op), kModifiers(op) & kFlush);
  Lanes::run(warp, op, mask);
}

template <typename T, typename Compute, std::size_t... kIndex>
void add_arithmetic(Registry& r, const std::string& name, std::index_sequence<kIndex...>) {
  using Fast = LanewiseFor<Plain<T, Compute, Repeat<T, kIndex>...>>;
  using Full = LanewiseFor<Modified<T, Compute, Repeat<T, kIndex>...>>;
  r.add(name, Fast::run, Fast::operands());
  r.add(name + ".modified", rounded_by_mode<Full>, with_modifiers(Full::operands()));
}

template <int kOperands, typename Compute>
void add_arithmetic(Registry& r, const std::string& name, Compute) {
  add_arithmetic<float, Compute>(r, name + ".f32", std::make_index_sequence<kOperands>{});
  add_arithmetic<double, Compute>(r, name + ".f64", std::make_index_sequence<kOperands>{});
}

// A function of the C library, through double so that an f32 result is off by no more than its rounding.
template <typename Compute>
void add_approximation(Registry& r, const std::string& name, Compute) {
  using Rounded = decltype([](auto value) { return Compute{}(static_cast<double>(value)); });
  add_arithmetic<1>(r, name, Rounded{});
}

// a / b as the product of a with b's reciprocal, which is zero where it would be subnormal.
template <typename T>
inline T approximate_quotient(T a, T b) {
  const T least = 1 / std::numeric_limits<T>::min();
  return std::fabs(b) > least ? a * std::copysign(T{0}, b) : a / b;
}

// Greater or lesser of two: a number before NaN, and -0 less than +0.
template <bool kGreater, typename T>
inline T extreme(T a, T b) {
  const auto bits_a = std::bit_cast<BitsOf<T>>(a), bits_b = std::bit_cast<BitsOf<T>>(b);
  const T alike = std::bit_cast<T>(kGreater ? bits_a & bits_b : bits_a | bits_b);  // differ in the sign of zero at most
  const T ordered = (kGreater ? a > b : a < b) ? a : b;
  const T number = a == b ? alike : ordered;
  return b != b ? a : a != a ? b : number;
}

template <bool kGreater, typename T>
inline T extreme_or_nan(T a, T b) {
  return a != a ? a : b != b ? b : extreme<kGreater>(a, b);
}

template <typename T>
inline T magnitude(T value) {
  return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(value) & ~kSignBit<T>);
}
template <typename T>
inline T negated(T value) {
  return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(value) ^ kSignBit<T>);
}
template <typename T>
inline T with_sign(T sign, T value) {
  return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(magnitude(value)) | (std::bit_cast<BitsOf<T>>(sign) & kSignBit<T>));
}

// The extreme of the magnitudes, negative where the signs differ.
template <bool kGreater, bool kNan, typename T>
inline T extreme_magnitude(T a, T b) {
  const T left = magnitude(a), right = magnitude(b);
  const T sign = std::bit_cast<T>(std::bit_cast<BitsOf<T>>(a) ^ std::bit_cast<BitsOf<T>>(b));
  return with_sign(sign, kNan ? extreme_or_nan<kGreater>(left, right) : extreme<kGreater>(left, right));
}

// neg and abs: a NaN of f64 keeps its sign.
template <typename T>
void add_signs(Registry& r, const std::string& type) {
  add_lanes(r, "flush." + type, [](T a) { return flushed(a); });
  add_lanes(r, "neg." + type,
            [](const OpRecord& op, T a) { return settled(a == a ? negated(kModifiers(op) & kFlush ? flushed(a) : a) : a, a); });
  add_lanes(r, "abs." + type, [](const OpRecord& op, T a) {
    return settled(a == a ? magnitude(kModifiers(op) & kFlush ? flushed(a) : a) : a, a);
  });
  add_lanes(r, "copysign." + type, [](T sign, T value) { return with_sign(sign, value); }, {"sign", "value"});
  add_lanes(r, "testp.finite." + type, [](T a) { return magnitude(a) <= std::numeric_limits<T>::max(); });
  add_lanes(r, "testp.infinite." + type, [](T a) { return magnitude(a) == std::numeric_limits<T>::infinity(); });
  add_lanes(r, "testp.number." + type, [](T a) { return a == a; });
  add_lanes(r, "testp.notanumber." + type, [](T a) { return a != a; });
  add_lanes(r, "testp.normal." + type,
            [](T a) { return magnitude(a) >= std::numeric_limits<T>::min() && magnitude(a) <= std::numeric_limits<T>::max(); });
  add_lanes(r, "testp.subnormal." + type, [](T a) { return a != 0 && magnitude(a) < std::numeric_limits<T>::min(); });
}

// ---- f16 and bf16 ----------------------------------------------------------------------------------------------------------
// `Compute` of widened operands; what it returns is exact, rounded to odd, or of a precision that rounding twice cannot spoil.
template <typename Format, int kPacked, typename Compute, int kOperands>
void halves(Warp& warp, const Op& op, u32 mask) {
  constexpr int kCount = kLanes * kPacked;
  const u32 slots[] = {op.a, op.b, op.c};
  float operands[3][kCount], values[kCount];
  u16 results[kCount];
  for (int i = 0; i < kOperands; ++i) {
    const u16* from = warp.lanes<u16>(slots[i]);
    std::copy(from, from + kCount, results);
    if (kModifiers(op) & kFlush) std::transform(results, results + kCount, results, flushed_bits<Format>);
    Format::widen(results, operands[i], kCount);
  }
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kOperands == 1) values[i] = Compute{}(Format{}, operands[0][i]);
    if constexpr (kOperands == 2) values[i] = Compute{}(Format{}, operands[0][i], operands[1][i]);
    if constexpr (kOperands == 3) values[i] = Compute{}(Format{}, operands[0][i], operands[1][i], operands[2][i]);
  }
  if (kModifiers(op) & kRelu) std::transform(values, values + kCount, values, rectified<float>);
  if (kModifiers(op) & kSaturate) std::transform(values, values + kCount, values, saturated_unit<float>);
  if (kModifiers(op) & kFlush) std::transform(values, values + kCount, values, flushed_value<Format>);
  Format::narrow(values, results, kCount);
  u16* d = warp.lanes<u16>(op.d);
  for_lanes(mask, [&](int lane) {
    for (int i = lane * kPacked; i < (lane + 1) * kPacked; ++i) d[i] = results[i];
  });
}

template <int kOperands, typename Compute>
void add_halves(Registry& r, const std::string& name, Compute) {
  const auto operands = [](u8 bytes) {
    constexpr Field kFields[] = {Field::kA, Field::kB, Field::kC};
    const Names names = usual_names(kOperands);
    std::vector<Operand> made{slot("result", Field::kD, bytes)};
    for (std::size_t i = 0; i < kOperands; ++i) made.push_back(slot(names[i], kFields[i], bytes));
    return with_modifiers(std::move(made));
  };
  r.add(name + ".f16", halves<Half, 1, Compute, kOperands>, operands(2));
  r.add(name + ".f16x2", halves<Half, 2, Compute, kOperands>, operands(4));
  r.add(name + ".bf16", halves<Bfloat, 1, Compute, kOperands>, operands(2));
  r.add(name + ".bf16x2", halves<Bfloat, 2, Compute, kOperands>, operands(4));
}

// ---- comparison ------------------------------------------------------------------------------------------------------------
template <typename T>
inline T comparable(const OpRecord& op, T value) {
  return kModifiers(op) & kFlush ? flushed(value) : value;
}

// Under the names of setp, ordered and unordered.
template <typename T, typename Compare>
void add_comparison(Registry& r, const std::string& name, Compare) {
  if constexpr (std::is_floating_point_v<T>) {
    add_lanes(r, name, [](const OpRecord& op, T a, T b) { return Compare{}(comparable(op, a), comparable(op, b)); });
  } else {
    add_lanes(r, name, [](const OpRecord& op, u16 a, u16 b) {
      const bool flush = kModifiers(op) & kFlush;
      const float left = T::widened(flush ? flushed_bits<T>(a) : a), right = T::widened(flush ? flushed_bits<T>(b) : b);
      return Compare{}(left, right);
    });
  }
}

template <typename T>
void add_comparisons(Registry& r, const std::string& type) {
  add_comparison<T>(r, "setp.eq." + type, [](auto a, auto b) { return a == b; });
  add_comparison<T>(r, "setp.ne." + type, [](auto a, auto b) { return a < b || a > b; });
  add_comparison<T>(r, "setp.lt." + type, [](auto a, auto b) { return a < b; });
  add_comparison<T>(r, "setp.le." + type, [](auto a, auto b) { return a <= b; });
  add_comparison<T>(r, "setp.gt." + type, [](auto a, auto b) { return a > b; });
  add_comparison<T>(r, "setp.ge." + type, [](auto a, auto b) { return a >= b; });
  add_comparison<T>(r, "setp.equ." + type, [](auto a, auto b) { return !(a < b || a > b); });
  add_comparison<T>(r, "setp.neu." + type, [](auto a, auto b) { return a != b; });
  add_comparison<T>(r, "setp.ltu." + type, [](auto a, auto b) { return !(a >= b); });
  add_comparison<T>(r, "setp.leu." + type, [](auto a, auto b) { return !(a > b); });
  add_comparison<T>(r, "setp.gtu." + type, [](auto a, auto b) { return !(a <= b); });
  add_comparison<T>(r, "setp.geu." + type, [](auto a, auto b) { return !(a < b); });
  add_comparison<T>(r, "setp.num." + type, [](auto a, auto b) { return a == a && b == b; });
  add_comparison<T>(r, "setp.nan." + type, [](auto a, auto b) { return a != a || b != b; });
}

// ---- tables ----------------------------------------------------------------------------------------------------------------
void add_words(Registry& r) {
  add_arithmetic<2>(r, "add", [](auto a, auto b) { return a + b; });
  add_arithmetic<2>(r, "sub", [](auto a, auto b) { return a - b; });
  add_arithmetic<2>(r, "mul", [](auto a, auto b) { return a * b; });
  add_arithmetic<2>(r, "div", [](auto a, auto b) { return a / b; });
  add_arithmetic<2>(r, "div.approx", [](auto a, auto b) { return approximate_quotient(a, b); });
  add_arithmetic<3>(r, "fma", [](auto a, auto b, auto c) { return std::fma(a, b, c); });
  add_arithmetic<2>(r, "min", [](auto a, auto b) { return extreme<false>(a, b); });
  add_arithmetic<2>(r, "max", [](auto a, auto b) { return extreme<true>(a, b); });
  add_arithmetic<2>(r, "min.nan", [](auto a, auto b) { return extreme_or_nan<false>(a, b); });
  add_arithmetic<2>(r, "max.nan", [](auto a, auto b) { return extreme_or_nan<true>(a, b); });
  add_arithmetic<2>(r, "min.xorsign", [](auto a, auto b) { return extreme_magnitude<false, false>(a, b); });
  add_arithmetic<2>(r, "max.xorsign", [](auto a, auto b) { return extreme_magnitude<true, false>(a, b); });
  add_arithmetic<2>(r, "min.nan.xorsign", [](auto a, auto b) { return extreme_magnitude<false, true>(a, b); });
  add_arithmetic<2>(r, "max.nan.xorsign", [](auto a, auto b) { return extreme_magnitude<true, true>(a, b); });
  add_arithmetic<1>(r, "rcp", [](auto a) { return decltype(a){1} / a; });
  add_arithmetic<1>(r, "sqrt", [](auto a) { return std::sqrt(a); });
  add_approximation(r, "rsqrt", [](double a) { return 1 / std::sqrt(a); });
  add_approximation(r, "ex2", [](double a) { return std::exp2(a); });
  add_approximation(r, "lg2", [](double a) { return std::log2(a); });
  add_approximation(r, "sin", [](double a) { return std::sin(a); });
  add_approximation(r, "cos", [](double a) { return std::cos(a); });
  add_approximation(r, "tanh", [](double a) { return std::tanh(a); });
}

void add_halfwords(Registry& r) {
  add_halves<2>(r, "add", [](auto, float a, float b) { return a + b; });
  add_halves<2>(r, "sub", [](auto, float a, float b) { return a - b; });
  add_halves<2>(r, "mul", [](auto format, float a, float b) {
    using Exact = typename decltype(format)::Exact;
    return odd_float(static_cast<Exact>(a) * static_cast<Exact>(b));
  });
  add_halves<3>(r, "fma", [](auto format, float a, float b, float c) {
    using Exact = typename decltype(format)::Exact;
    return odd_float(odd_fma<Exact>(a, b, c));
  });
  add_halves<2>(r, "min", [](auto, float a, float b) { return extreme<false>(a, b); });
  add_halves<2>(r, "max", [](auto, float a, float b) { return extreme<true>(a, b); });
  add_halves<2>(r, "min.nan", [](auto, float a, float b) { return extreme_or_nan<false>(a, b); });
  add_halves<2>(r, "max.nan", [](auto, float a, float b) { return extreme_or_nan<true>(a, b); });
  add_halves<2>(r, "min.xorsign", [](auto, float a, float b) { return extreme_magnitude<false, false>(a, b); });
  add_halves<2>(r, "max.xorsign", [](auto, float a, float b) { return extreme_magnitude<true, false>(a, b); });
  add_halves<2>(r, "min.nan.xorsign", [](auto, float a, float b) { return extreme_magnitude<false, true>(a, b); });
  add_halves<2>(r, "max.nan.xorsign", [](auto, float a, float b) { return extreme_magnitude<true, true>(a, b); });
  add_halves<1>(r, "ex2", [](auto, float a) { return odd_float(std::exp2(static_cast<double>(a))); });
  add_halves<1>(r, "tanh", [](auto, float a) { return odd_float(std::tanh(static_cast<double>(a))); });
  add_halves<1>(r, "neg", [](auto, float a) { return negated(a); });
  add_halves<1>(r, "abs", [](auto, float a) { return magnitude(a); });
}

}  // namespace

void register_float(Registry& r) {
  add_words(r);
  add_signs<float>(r, "f32"), add_signs<double>(r, "f64");
  add_halfwords(r);
  add_comparisons<float>(r, "f32"), add_comparisons<double>(r, "f64");
  add_comparisons<Half>(r, "f16"), add_comparisons<Bfloat>(r, "bf16");
}

}  // namespace emulator
