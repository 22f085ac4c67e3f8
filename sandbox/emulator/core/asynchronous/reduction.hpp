// Reductions of bulk copies: what arrives is combined with what is there. And those of bar.red, over predicates of threads.
#pragma once

#include "bits.hpp"

namespace emulator {

// kStore: a plain copy.
enum Reduction : u32 { kStore, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// Combines `bytes` bytes of elements of a TensorType with the target.
void put(u8* target, const u8* source, u64 bytes, u32 how, u32 type);

// Bytes of one element that a reduction combines, 0 for a plain copy.
u32 combined_bytes(u32 how, u32 type);

// What bar.red makes of the predicates of the threads that arrive.
enum BarrierReduction : u32 { kNoReduction, kReduceAnd, kReduceOr, kReducePopc };

}  // namespace emulator
