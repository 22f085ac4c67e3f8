// The modes of prmt.
#pragma once

#include "bits.hpp"

namespace emulator {

enum Permutation : u32 { kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };

// Selectors by mode and by the two low bits of the operand.
constexpr u16 kPermutations[6][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
    {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232},
};

}  // namespace emulator
