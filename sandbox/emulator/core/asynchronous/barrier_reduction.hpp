// What bar.red makes of the predicates of the threads that arrive.
#pragma once

#include "bits.hpp"

namespace emulator {

enum BarrierReduction : u32 { kNoReduction, kReduceAnd, kReduceOr, kReducePopc };

}  // namespace emulator
