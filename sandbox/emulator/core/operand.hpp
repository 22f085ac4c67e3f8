// The operands of a handler by name, and the field of an operation's record in which each lies.
//
// A handler declares its operands once. The checks of a program, the taint rules and the lowering in Python (exported by
// module.cpp) follow from the declaration; the handler itself reads a field through it: `kTarget(op)`.
#pragma once

#include "bits.hpp"

namespace emulator {

// Bytes per lane of a predicate's slot, which is one 32-bit mask with a bit per lane.
constexpr u8 kMask = 255;

// A field of an operation that an operand takes: five slots, the list, four small numbers and a large one.
enum class Field : u8 { kNone, kD, kA, kB, kC, kE, kList, kP, kQ, kR, kS, kImm };

enum class Role : u8 {
  kSlot,     // a register or constant: `bytes` per lane
  kAddress,  // a memory operand: a slot of 4 or 8 bytes per lane, perhaps its width in a number, and a constant offset
  kList,     // several slots; the parts of a list follow one another as they are declared
  kNumber,   // a constant, or some bits of one
};

// As the Python side lays it out; bindings/declarations.cpp exports the layout.
struct OpRecord {
  u16 handler;  // index in the registry
  u8 kind;
  u8 flags;
  u32 guard;          // predicate slot, 0: always
  u32 d, a, b, c, e;  // slots
  u32 members;        // slot of the member mask of a collective
  u32 list, count;    // range of Program::lists: slots of vector operands, branch targets
  u32 p, q, r, s;     // small numbers
  u32 instruction;    // index of the PTX instruction, for reports
  i64 imm;
};
static_assert(sizeof(OpRecord) == 72, "the table is shared with Python");

struct Operand {
  const char* name = "";
  Role role = Role::kSlot;
  Field field = Field::kNone;
  u8 bytes = 0;                // per lane of a slot, or of each listed slot; of an address the most it may have
  bool optional = false;       // a slot of 0, an empty list, or the number 0 where it is not given
  Field width = Field::kNone;  // of an address: the number that says whether it has 4 or 8 bytes
  Field offset = Field::kNone;
  u8 minimum = 0, maximum = 0;  // slots of a part of the list; maximum 0: any number
  u8 shift = 0;                 // of a number: its first bit in the field
  const char* type = "";        // of a number: the exported enum that names its values

  constexpr u32 operator()(const OpRecord& op) const {
    switch (field) {
      case Field::kD:
        return op.d;
      case Field::kA:
        return op.a;
      case Field::kB:
        return op.b;
      case Field::kC:
        return op.c;
      case Field::kE:
        return op.e;
      case Field::kP:
        return op.p >> shift;
      case Field::kQ:
        return op.q >> shift;
      case Field::kR:
        return op.r >> shift;
      case Field::kS:
        return op.s >> shift;
      default:
        return 0;
    }
  }
  // Bytes per lane of an address.
  constexpr u32 bytes_of(const OpRecord& op) const { return width == Field::kNone ? bytes : Operand{.field = width}(op); }
  constexpr i64 offset_of(const OpRecord& op) const {
    return offset == Field::kImm ? op.imm : static_cast<i64>(Operand{.field = offset}(op));
  }
};

constexpr Operand slot(const char* name, Field field, u8 bytes) { return {.name = name, .field = field, .bytes = bytes}; }

// An address of a fixed width, with its offset in `imm`.
constexpr Operand address(const char* name, Field field, u8 bytes) {
  return {.name = name, .role = Role::kAddress, .field = field, .bytes = bytes, .offset = Field::kImm};
}
// An address of 4 or 8 bytes, which `width` says; with an offset where the instruction may have one.
constexpr Operand address(const char* name, Field field, Field width, Field offset = Field::kNone) {
  return {.name = name, .role = Role::kAddress, .field = field, .bytes = 8, .width = width, .offset = offset};
}

constexpr Operand list(const char* name, u8 bytes, u8 minimum = 1, u8 maximum = 0) {
  return {.name = name, .role = Role::kList, .field = Field::kList, .bytes = bytes, .minimum = minimum, .maximum = maximum};
}

constexpr Operand number(const char* name, Field field, const char* type = "", u8 shift = 0) {
  return {.name = name, .role = Role::kNumber, .field = field, .shift = shift, .type = type};
}

constexpr Operand optional(Operand operand) {
  operand.optional = true;
  operand.minimum = 0;
  return operand;
}

}  // namespace emulator
