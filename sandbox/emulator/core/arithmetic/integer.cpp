// Integer arithmetic, logic, bit fields, selection and comparison.
#include <limits>

#include "arithmetic/integer_functions.hpp"
#include "arithmetic/lanes.hpp"
#include "arithmetic/permutation.hpp"

namespace emulator {

namespace {

// ---- carries ---------------------------------------------------------------------------------------------------------------
// The sum of two numbers and the carry, or their difference less the borrow.
constexpr Operand kCarryIn = slot("carry_in", Field::kC, kMask), kCarryOut = slot("carry_out", Field::kE, kMask);

template <typename T, bool kSubtract>
void with_carry(Warp& warp, const Op& op, u32 mask) {
  const T *a = warp.lanes<T>(op.a), *b = warp.lanes<T>(op.b);
  T* d = warp.lanes<T>(op.d);
  const u32 in = warp.mask(kCarryIn(op));
  u32 out = 0;
  for_lanes(mask, [&](int lane) {
    T result;
    const T carry = in >> lane & 1;
    bool beyond = false;
    if constexpr (kSubtract) {
      beyond = __builtin_sub_overflow(a[lane], b[lane], &result);
      beyond |= __builtin_sub_overflow(result, carry, &result);
    } else {
      beyond = __builtin_add_overflow(a[lane], b[lane], &result);
      beyond |= __builtin_add_overflow(result, carry, &result);
    }
    d[lane] = result;
    out |= static_cast<u32>(beyond) << lane;
  });
  write_mask(warp, kCarryOut(op), mask, out);
}

// ---- predicates ------------------------------------------------------------------------------------------------------------
enum Logic : u32 { kAnd, kOr, kXor, kNot, kMove };

template <Logic kLogic>
void logic(Warp& warp, const Op& op, u32 mask) {
  const u32 a = warp.mask(op.a);
  u32 bits = a;
  if constexpr (kLogic == kNot) bits = ~a;
  if constexpr (kLogic == kAnd) bits = a & warp.mask(op.b);
  if constexpr (kLogic == kOr) bits = a | warp.mask(op.b);
  if constexpr (kLogic == kXor) bits = a ^ warp.mask(op.b);
  write_mask(warp, op.d, mask, bits);
}

// ---- tables ----------------------------------------------------------------------------------------------------------------
// What depends on the width alone.
template <typename T>
void add_bits(Registry& r, const std::string& type) {
  using C = std::conditional_t<sizeof(T) < 4, u32, T>;  // 16-bit factors would be promoted to int, and overflow it
  add_lanes(r, "add." + type, [](T a, T b) { return static_cast<T>(a + b); });
  add_lanes(r, "sub." + type, [](T a, T b) { return static_cast<T>(a - b); });
  add_lanes(r, "mul.lo." + type, [](T a, T b) { return static_cast<T>(C{a} * C{b}); });
  add_lanes(r, "mad.lo." + type, [](T a, T b, T c) { return static_cast<T>(C{a} * C{b} + C{c}); });
  add_lanes(r, "and." + type, [](T a, T b) { return static_cast<T>(a & b); });
  add_lanes(r, "or." + type, [](T a, T b) { return static_cast<T>(a | b); });
  add_lanes(r, "xor." + type, [](T a, T b) { return static_cast<T>(a ^ b); });
  add_lanes(r, "not." + type, [](T a) { return static_cast<T>(~a); });
  add_lanes(r, "cnot." + type, [](T a) { return static_cast<T>(a == 0); });
  add_lanes(r, "shl." + type, [](T a, u32 b) { return shift_left(a, b); }, {"value", "amount"});
  add_lanes(r, "selp." + type, [](T a, T b, bool p) { return p ? a : b; }, {"if_true", "if_false", "predicate"});
  add_lanes(r, "slct." + type + ".s32", [](T a, T b, i32 c) { return c >= 0 ? a : b; }, {"if_positive", "if_negative", "sign"});
  add_lanes(r, "slct." + type + ".f32", [](T a, T b, float c) { return c >= 0 ? a : b; },
            {"if_positive", "if_negative", "sign"});
  add_lanes(r, "setp.eq." + type, [](T a, T b) { return a == b; });
  add_lanes(r, "setp.ne." + type, [](T a, T b) { return a != b; });
}

// What depends on the sign as well.
template <typename T>
void add_integers(Registry& r, const std::string& type) {
  add_lanes(r, "mul.hi." + type, [](T a, T b) { return upper_half(a, b); });
  add_lanes(r, "div." + type, [](T a, T b) { return divide(a, b); });
  add_lanes(r, "rem." + type, [](T a, T b) { return remainder(a, b); });
  add_lanes(r, "min." + type, [](T a, T b) { return a < b ? a : b; });
  add_lanes(r, "max." + type, [](T a, T b) { return a > b ? a : b; });
  add_lanes(r, "sad." + type, [](T a, T b, T c) {
    return static_cast<T>(static_cast<Unsigned<T>>(distance(a, b)) + static_cast<Unsigned<T>>(c));
  });
  add_lanes(r, "shr." + type, [](T a, u32 b) { return shift_right(a, b); }, {"value", "amount"});
  add_lanes(r, "setp.lt." + type, [](T a, T b) { return a < b; });
  add_lanes(r, "setp.le." + type, [](T a, T b) { return a <= b; });
  add_lanes(r, "setp.gt." + type, [](T a, T b) { return a > b; });
  add_lanes(r, "setp.ge." + type, [](T a, T b) { return a >= b; });
}

template <typename T>
void add_widening(Registry& r, const std::string& type) {
  using W = Wide<T>;
  add_lanes(r, "mul.wide." + type, [](T a, T b) { return static_cast<W>(W{a} * W{b}); });
  add_lanes(r, "mad.wide." + type,
            [](T a, T b, W c) { return static_cast<W>(static_cast<Unsigned<W>>(W{a} * W{b}) + static_cast<Unsigned<W>>(c)); });
}

template <typename T>
void add_signed(Registry& r, const std::string& type) {
  using U = Unsigned<T>;
  add_lanes(r, "neg." + type, [](T a) { return static_cast<T>(U{0} - static_cast<U>(a)); });
  add_lanes(r, "abs." + type, [](T a) { return static_cast<T>(a < 0 ? U{0} - static_cast<U>(a) : static_cast<U>(a)); });
}

template <typename T>
void add_fields(Registry& r, const std::string& type) {
  add_lanes(r, "bfe." + type, [](T a, u32 b, u32 c) { return extract_field(a, b, c); }, {"value", "position", "length"});
  add_lanes(r, "bfind." + type, [](T a) { return leading_bit(a); });
  add_lanes(r, "bfind.shiftamt." + type, [](T a) {
    const u32 position = leading_bit(a);
    return position == 0xFFFFFFFF ? position : kBits<T> - 1 - position;
  });
}

template <typename T>
void add_counts(Registry& r, const std::string& type) {
  add_lanes(r, "popc." + type, [](T a) { return static_cast<u32>(std::popcount(a)); });
  add_lanes(r, "clz." + type, [](T a) { return static_cast<u32>(std::countl_zero(a)); });
  add_lanes(r, "brev." + type, [](T a) { return reversed(a); });
  add_lanes(r, "bfi." + type, [](T a, T b, u32 c, u32 d) { return insert_field(a, b, c, d); },
            {"field", "base", "position", "length"});
  constexpr u8 bytes = sizeof(T);
  const std::vector<Operand> operands{slot("result", Field::kD, bytes), slot("left", Field::kA, bytes),
                                      slot("right", Field::kB, bytes), kCarryIn, kCarryOut};
  r.add("addc." + type, with_carry<T, false>, operands);
  r.add("subc." + type, with_carry<T, true>, operands);
}

template <typename A, typename B>
void add_dots(Registry& r, const std::string& types) {
  using Halves = std::conditional_t<std::is_signed_v<A>, i16, u16>;
  add_lanes(r, "dp4a." + types, [](u32 a, u32 b, u32 c) { return dot<A, B, 4>(a, b, c, 0); });
  add_lanes(r, "dp2a.lo." + types, [](u32 a, u32 b, u32 c) { return dot<Halves, B, 2>(a, b, c, 0); });
  add_lanes(r, "dp2a.hi." + types, [](u32 a, u32 b, u32 c) { return dot<Halves, B, 2>(a, b, c, 2); });
}

template <typename T>
void add_pairs(Registry& r, const std::string& type) {
  add_lanes(r, "add." + type, [](u32 a, u32 b) { return paired<T>(a, b, [](T x, T y) { return x + y; }); });
  add_lanes(r, "min." + type, [](u32 a, u32 b) { return paired<T>(a, b, [](T x, T y) { return x < y ? x : y; }); });
  add_lanes(r, "max." + type, [](u32 a, u32 b) { return paired<T>(a, b, [](T x, T y) { return x > y ? x : y; }); });
}

constexpr Operand kMode = number("mode", Field::kP, "Permutation");  // of prmt
constexpr Operand kTable = number("table", Field::kP);               // of lop3

void add_words(Registry& r) {
  add_lanes(r, "add.sat.s32", [](i32 a, i32 b) { return saturated(i64{a} + b); });
  add_lanes(r, "sub.sat.s32", [](i32 a, i32 b) { return saturated(i64{a} - b); });
  add_lanes(r, "mul24.lo.u32", [](u32 a, u32 b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); });
  add_lanes(r, "mul24.hi.u32", [](u32 a, u32 b) { return static_cast<u32>(u64{a & 0xFFFFFF} * (b & 0xFFFFFF) >> 16); });
  add_lanes(r, "mul24.lo.s32", [](i32 a, i32 b) { return static_cast<i32>(product_of_24_bits(a, b)); });
  add_lanes(r, "mul24.hi.s32", [](i32 a, i32 b) { return static_cast<i32>(product_of_24_bits(a, b) >> 16); });
  add_lanes(r, "vabsdiff4.u32", [](u32 a, u32 b) { return differences(a, b).packed; });
  add_lanes(r, "vabsdiff4.add.u32", [](u32 a, u32 b, u32 c) { return c + differences(a, b).sum; });
  add_lanes(r, "fns.b32", [](u32 mask, u32 base, i32 offset) { return find_nth_set(mask, base, offset); },
            {"mask", "base", "offset"});
  add_lanes(r, "prmt.b32", [](u32 a, u32 b, u32 c) { return permute(a, b, c); }, {"low", "high", "selector"});
  add_lanes(
      r, "prmt.mode.b32",
      [](const OpRecord& op, u32 a, u32 b, u32 c) { return permute(a, b, kPermutations[kMode(op) % 6][c & 3]); },
      {"low", "high", "selector"}, kMode);
  add_lanes(
      r, "lop3.b32",
      [](const OpRecord& op, u32 a, u32 b, u32 c) {
        u32 result = 0;
        for (u32 term = 0; term < 8; ++term) {
          const u32 chosen = kTable(op) >> term & 1 ? ~0u : 0u;
          result |= chosen & (term & 4 ? a : ~a) & (term & 2 ? b : ~b) & (term & 1 ? c : ~c);
        }
        return result;
      },
      {"first", "second", "third"}, kTable);
  add_lanes(r, "shf.l.clamp.b32", [](u32 a, u32 b, u32 c) { return funnel_left(a, b, c < 32 ? c : 32); },
            {"low", "high", "amount"});
  add_lanes(r, "shf.l.wrap.b32", [](u32 a, u32 b, u32 c) { return funnel_left(a, b, c & 31); }, {"low", "high", "amount"});
  add_lanes(r, "shf.r.clamp.b32", [](u32 a, u32 b, u32 c) { return funnel_right(a, b, c < 32 ? c : 32); },
            {"low", "high", "amount"});
  add_lanes(r, "shf.r.wrap.b32", [](u32 a, u32 b, u32 c) { return funnel_right(a, b, c & 31); }, {"low", "high", "amount"});
  add_lanes(r, "szext.clamp.u32", [](u32 a, u32 b) { return extended(a, b, true, false); }, {"value", "width"});
  add_lanes(r, "szext.clamp.s32", [](u32 a, u32 b) { return extended(a, b, true, true); }, {"value", "width"});
  add_lanes(r, "szext.wrap.u32", [](u32 a, u32 b) { return extended(a, b, false, false); }, {"value", "width"});
  add_lanes(r, "szext.wrap.s32", [](u32 a, u32 b) { return extended(a, b, false, true); }, {"value", "width"});
  add_lanes(r, "bmsk.clamp.b32", [](u32 a, u32 b) { return bit_mask(a, b, true); }, {"position", "width"});
  add_lanes(r, "bmsk.wrap.b32", [](u32 a, u32 b) { return bit_mask(a, b, false); }, {"position", "width"});
}

void add_predicates(Registry& r) {
  constexpr Operand result = slot("result", Field::kD, kMask);
  const std::vector<Operand> one{result, slot("value", Field::kA, kMask)};
  const std::vector<Operand> two{result, slot("left", Field::kA, kMask), slot("right", Field::kB, kMask)};
  r.add("not.pred", logic<kNot>, one);
  r.add("mov.pred", logic<kMove>, one);
  r.add("and.pred", logic<kAnd>, two);
  r.add("or.pred", logic<kOr>, two);
  r.add("xor.pred", logic<kXor>, two);
}

}  // namespace

void register_integer(Registry& r) {
  add_bits<u16>(r, "b16"), add_bits<u32>(r, "b32"), add_bits<u64>(r, "b64");
  add_integers<u16>(r, "u16"), add_integers<u32>(r, "u32"), add_integers<u64>(r, "u64");
  add_integers<i16>(r, "s16"), add_integers<i32>(r, "s32"), add_integers<i64>(r, "s64");
  add_widening<u16>(r, "u16"), add_widening<u32>(r, "u32"), add_widening<i16>(r, "s16"), add_widening<i32>(r, "s32");
  add_signed<i16>(r, "s16"), add_signed<i32>(r, "s32"), add_signed<i64>(r, "s64");
  add_fields<u32>(r, "u32"), add_fields<u64>(r, "u64"), add_fields<i32>(r, "s32"), add_fields<i64>(r, "s64");
  add_counts<u32>(r, "b32"), add_counts<u64>(r, "b64");
  add_dots<u8, u8>(r, "u32.u32"), add_dots<u8, i8>(r, "u32.s32");
  add_dots<i8, u8>(r, "s32.u32"), add_dots<i8, i8>(r, "s32.s32");
  add_pairs<u16>(r, "u16x2"), add_pairs<i16>(r, "s16x2");
  add_words(r);
  add_predicates(r);
}

}  // namespace emulator
