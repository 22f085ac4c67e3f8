// The check of a program before it is executed.
#pragma once

#include "machine/program.hpp"

namespace emulator {

// Throws std::invalid_argument for a program whose operations could reach outside the register file, the lists or the table.
void check(const Program& program);

}  // namespace emulator
